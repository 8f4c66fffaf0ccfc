//! Lifecycle hooks, and the SIGTERM that a command gets.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ContainerStateTerminated;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tart_kubelet_tests::{tls, wait};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

use crate::scene::{DEADLINE, PodBuilder, PodView as _, Scene, UP, every_second, exec, until_exists};

/// The command and its hooks write to this file. It is the termination message.
const TRACE: &str = "/private/tmp/trace";

/// A `postStart` hook that ends when the command has set its signal handlers.
fn command_is_up() -> Value {
    exec(format!("until [ -e {UP} ]; do sleep 0.05; done"))
}

/// Deletes a Pod with a finalizer and waits for its end.
async fn stop(scene: &Scene, name: &str) -> Result<ContainerStateTerminated> {
    scene.begin_delete(name).await?;
    scene.until(name, "an end", |pod| pod.main().has_ended()).await?.main().end()
}

/// The same, and removes the finalizer.
async fn delete(scene: &Scene, name: &str) -> Result<ContainerStateTerminated> {
    let end = stop(scene, name).await?;
    scene.remove_finalizers(name).await?;
    Ok(end)
}

#[tokio::test]
async fn post_start_and_pre_stop_hooks_run_in_order() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("hooks").await?;
    let script = format!("trap 'echo term >>{TRACE}; exit 3' TERM; touch {UP}; while :; do sleep 0.1; done");
    scene
        .pod("hooks")
        .sh(script)
        .env("WHO", "hook")
        .post_start(exec(format!("until [ -e {UP} ]; do sleep 0.05; done; echo $WHO started >>{TRACE}")))
        .pre_stop(exec(format!("echo stopping >>{TRACE}")))
        .message_path(TRACE)
        .finalizer()
        .create_until("Running")
        .await?;
    let end = delete(&scene, "hooks").await?;
    assert_eq!((end.exit_code, end.message.as_deref()), (3, Some("hook started\nstopping\nterm\n")));
    scene.nothing_left().await
}

#[tokio::test]
async fn command_that_ignores_sigterm_is_killed_after_the_grace_period() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("stubborn").await?;
    let script = format!("trap '' TERM; touch {UP}; while :; do sleep 0.1; done");
    let pod = scene.pod("stubborn").sh(script).post_start(command_is_up()).grace(1).finalizer();
    pod.create_until("Running").await?;
    assert_eq!(delete(&scene, "stubborn").await?.exit_code, 137);
    scene.nothing_left().await
}

/// A value that is nowhere else, so that the test can look for it.
const SECRET: &str = "sesame-shut-yourself";

/// Checks that the secret is in no Event, and in no log but the container's own.
async fn is_kept(scene: &Scene, pod: &str) -> Result<()> {
    for said in [scene.events().await?, scene.agent_log(), scene.shim_log(pod).await?] {
        ensure!(!said.contains(SECRET), "{said}");
    }
    Ok(())
}

#[tokio::test]
async fn failed_post_start_hook_ends_the_container() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("bad-hook").await?;
    scene.secret("keys", "token", SECRET).await?;
    let pod = scene.pod("bad").sh("sleep 1000").message_path(TRACE).env_secret("TOKEN", "keys", "token");
    let pod = pod.post_start(exec("echo $TOKEN; exit 5")).create_until("Failed").await?;
    let end = pod.main().end()?;
    let message = format!("PostStartHookError: command `/bin/sh` exited with 5: {SECRET}");
    assert_eq!((end.exit_code, end.message.as_deref()), (143, Some(message.as_str())));
    // The container starts before its hook.
    ensure!(end.started_at.is_some(), "{end:?}");
    scene.event("bad", "FailedPostStartHook", "PostStartHook failed").await?;
    scene.no_vms().await?;
    is_kept(&scene, "bad").await
}

/// A Pod with a finalizer whose command heeds SIGTERM, with a `preStop` hook.
fn obedient<'a>(scene: &'a Scene, name: &str, hook: Value) -> PodBuilder<'a> {
    let script = format!("trap 'echo term >>{TRACE}; exit 0' TERM; touch {UP}; while :; do sleep 0.1; done");
    let pod = scene.pod(name).sh(script).message_path(TRACE).finalizer();
    pod.post_start(command_is_up()).pre_stop(hook)
}

#[tokio::test]
async fn failed_pre_stop_hook_is_reported() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("bad-end").await?;
    scene.secret("keys", "token", SECRET).await?;
    for (name, hook) in [("fails", exec("echo $TOKEN; exit 9")), ("sleeps", json!({"sleep": {"seconds": 1}}))]
    {
        let pod = obedient(&scene, name, hook).env_secret("TOKEN", "keys", "token");
        pod.create_until("Running").await?;
        let end = stop(&scene, name).await?;
        // Whatever the hook's result, the command gets its SIGTERM and the time to heed it.
        assert_eq!((name, end.exit_code, end.message.as_deref()), (name, 0, Some("term\n")));
    }
    scene.event("fails", "FailedPreStopHook", "PreStopHook failed").await?;
    is_kept(&scene, "fails").await
}

#[tokio::test]
async fn slow_pre_stop_hook_leaves_two_seconds_for_the_command() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("slow-hook").await?;
    // The command has two seconds left. A busy machine may need longer, but not each time.
    for attempt in 0..8 {
        let name = format!("hangs-{attempt}");
        obedient(&scene, &name, exec("sleep 1000")).grace(3).create_until("Running").await?;
        let end = delete(&scene, &name).await?;
        scene.event(&name, "FailedPreStopHook", "PreStopHook did not end within the grace period").await?;
        if (end.exit_code, end.message.as_deref()) == (0, Some("term\n")) {
            return Ok(());
        }
        assert_eq!(end.exit_code, 137);
    }
    anyhow::bail!("no command had the time to heed its SIGTERM")
}

#[tokio::test]
async fn pre_stop_hook_without_time_to_start_is_reported() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("late-hook").await?;
    let command = obedient(&scene, "command", exec("true"));
    let boot = scene.pod("boot").pre_stop(exec("true")).finalizer();
    for (name, pod) in [("command", command), ("boot", boot)] {
        let pod = pod.grace(1).create_until("Running").await?;
        let uid = pod.uid_of()?;
        // The shim hears of the deletion too late.
        scene.signal_shim(uid, Signal::SIGSTOP)?;
        scene.begin_delete(name).await?;
        let request = scene.first_run_dir(uid).join("stop.json");
        wait::eventually("a deadline that is over", DEADLINE, async || {
            let asked: Value = serde_json::from_str(&std::fs::read_to_string(&request)?)?;
            let deadline: jiff::Timestamp = asked["deadline"].as_str().context("no deadline")?.parse()?;
            ensure!(jiff::Timestamp::now() > deadline, "it is at {deadline}");
            Ok(())
        })
        .await?;
        scene.signal_shim(uid, Signal::SIGCONT)?;
        let words = "PreStopHook did not end within the grace period";
        scene.event(name, "FailedPreStopHook", words).await?;
    }
    Ok(())
}

#[tokio::test]
async fn boot_only_vm_runs_its_hooks() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("boot-hook").await?;
    let status = "/Volumes/My Shared Files/pod_status/status";
    // The shell reads each argument list itself: a program that looks for the secret would have it in its own list.
    let look = "for f in /proc/[0-9]*/cmdline; do a=$(tr '\\0' ' ' <\"$f\" 2>/dev/null); \
                case $a in *\"$TOKEN\"*) echo \"$f\";; esac; done";
    scene.secret("keys", "token", SECRET).await?;
    scene
        .pod("boot")
        .env_secret("TOKEN", "keys", "token")
        .env_field("IP", "status.podIP")
        .env("WHO", "hook")
        .post_start(exec(format!("printf '0\\nup %s %s%s' ${{#TOKEN}} $IP \"$({look})\" >'{status}'")))
        .pre_stop(exec(format!("printf ' and down %s' \"$WHO\" >>'{status}'")))
        .readiness(every_second(exec("[ -n \"$TOKEN\" ] && [ -n \"$IP\" ]")))
        .finalizer()
        .create()
        .await?;
    let pod = scene.ready("boot").await?;
    // Other users of the host cannot read the secret.
    let volumes = scene.volumes_dir(pod.uid_of()?);
    let plan = scene.first_run_dir(pod.uid_of()?).join("spec.json");
    let closed = [volumes.join(".boot-0"), volumes, plan];
    let modes = closed.map(|path| std::fs::metadata(path).map(|found| found.permissions().mode() & 0o777));
    let modes: Vec<u32> = modes.into_iter().collect::<Result<_, _>>()?;
    assert_eq!(modes, [0o700, 0o700, 0o600]);
    let ip = pod.ip().unwrap_or_default();
    let end = delete(&scene, "boot").await?;
    let said = format!("up {} {ip} and down hook", SECRET.len());
    assert_eq!((end.exit_code, end.message), (0, Some(said)));
    // Hooks that are no commands need no guest agent.
    let bare = "registry.test/macos/bare:1";
    scene.mac.add_image(bare, &json!({"agent": false}))?;
    let nap = json!({"sleep": {"seconds": 1}});
    let pod = scene.pod("bare").image(bare).post_start(nap.clone()).pre_stop(nap).grace(20).finalizer();
    pod.create_until("Running").await?;
    delete(&scene, "bare").await?;
    let told = scene.kubectl.run(["get", "events", "--field-selector=involvedObject.name=bare"]).await?;
    ensure!(!told.contains("Hook"), "{told}");
    // A hook that hangs does not delay the deletion.
    scene.pod("hangs").post_start(exec("sleep 1000")).create().await?;
    scene.until("hangs", "an address", |pod| pod.ip().is_some()).await?;
    scene.kubectl.run(["delete", "pod", "hangs", "--grace-period=5"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn boot_only_vm_runs_its_pre_stop_hook_after_a_failed_post_start_hook() -> Result<()> {
    let (scene, _agent) = Scene::with_local_probe_hosts("boot-end").await?;
    let hangs = exec("touch '/Volumes/My Shared Files/pod_status/begun'; sleep 1000");
    for (name, first) in [("fails", exec("exit 5")), ("hangs", hangs)] {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let asked = tokio::spawn(async move { answer(listener.accept().await?.0).await });
        let last = json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": "/down"}});
        scene.pod(name).post_start(first).pre_stop(last).finalizer().create().await?;
        if name == "hangs" {
            let begun = scene.volumes_dir(&scene.uid(name).await?).join(".boot-0/pod_status/begun");
            until_exists("a hook that has begun", &begun).await?;
        } else {
            let end = scene.phase(name, "Failed").await?.main().end()?;
            let message = "PostStartHookError: command `/bin/sh` exited with 5";
            assert_eq!((end.exit_code, end.message.as_deref()), (137, Some(message)));
            scene.event(name, "FailedPostStartHook", "PostStartHook failed").await?;
        }
        delete(&scene, name).await?;
        let asked = tokio::time::timeout(DEADLINE, asked).await.context("the hook was not called")???;
        assert_eq!(asked, "GET /down HTTP/1.1", "{name}");
    }
    // A guest that shuts down before its preStop hook is over has not succeeded.
    let down = exec("sudo shutdown -h now; sleep 1000");
    let pod = scene.pod("gone").post_start(exec("exit 5")).pre_stop(down).create_until("Failed").await?;
    let end = pod.main().end()?;
    assert_eq!(end.exit_code, 137);
    ensure!(end.message.as_ref().is_some_and(|words| words.contains("PostStartHookError")), "{end:?}");
    scene.delete("gone").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn agent_restart_runs_no_hook_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("once").await?;
    let script =
        format!("trap 'exit 0' TERM; until [ -e {TRACE} ]; do sleep 0.1; done; while :; do sleep 0.1; done");
    let started =
        format!("echo started >>{TRACE}; until [ -e {UP} ]; do sleep 0.05; done; echo done >>{TRACE}");
    scene
        .pod("once")
        .sh(script)
        .post_start(exec(started))
        .pre_stop(exec(format!("echo stopping >>{TRACE}")))
        .message_path(TRACE)
        .finalizer()
        .create()
        .await?;
    let mut vm = String::new();
    wait::eventually("the hook to run", DEADLINE, async || {
        vm = scene.running_vms().await?.pop().context("no VM runs")?;
        let trace = scene.mac.tart(["exec", &vm, "cat", TRACE]).await?;
        ensure!(trace.contains("started"), "{trace}");
        Ok(())
    })
    .await?;
    agent.kill9()?;
    let agent = scene.agent.start()?;
    scene.mac.tart(["exec", &vm, "touch", UP]).await?;
    scene.phase("once", "Running").await?;
    agent.kill9()?;
    let _agent = scene.agent.start()?;
    let end = delete(&scene, "once").await?;
    assert_eq!(end.message.as_deref(), Some("started\ndone\nstopping\n"));
    Ok(())
}

/// Answers one request with 200, and returns its first line.
async fn answer(mut connection: impl AsyncRead + AsyncWrite + Unpin) -> Result<String> {
    let mut request = vec![0; 4096];
    let length = connection.read(&mut request).await?;
    connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    connection.flush().await?;
    Ok(String::from_utf8_lossy(&request[..length]).lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn http_hooks_call_the_host_of_the_pod_spec() -> Result<()> {
    let (scene, _agent) = Scene::with_local_probe_hosts("http-hook").await?;
    // Simulated guests share the machine's network, so the test itself can answer.
    let (plain, secure) = (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
    let (port, secure_port) = (plain.local_addr()?.port(), secure.local_addr()?.port());
    let asked = tokio::spawn(async move {
        let first = answer(plain.accept().await?.0).await?;
        // As for a probe, the server's certificate is not verified.
        let second = answer(tls::self_signed()?.accept(secure.accept().await?.0).await?).await?;
        anyhow::Ok([first, second])
    });
    let up = json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": "/up"}});
    let down =
        json!({"httpGet": {"host": "127.0.0.1", "port": secure_port, "path": "/down", "scheme": "HTTPS"}});
    scene.pod("http").sh("sleep 1000").post_start(up).pre_stop(down).create_until("Running").await?;
    scene.delete("http").await?;
    assert_eq!(asked.await??, ["GET /up HTTP/1.1", "GET /down HTTP/1.1"]);
    Ok(())
}

/// Reads from a connection once, and writes `words`.
async fn reply(mut connection: impl AsyncRead + AsyncWrite + Unpin, words: &str) -> Result<Vec<u8>> {
    let mut request = vec![0; 4096];
    let length = connection.read(&mut request).await?;
    connection.write_all(words.as_bytes()).await?;
    connection.shutdown().await?;
    request.truncate(length);
    Ok(request)
}

#[tokio::test]
async fn http_hook_accepts_any_answer() -> Result<()> {
    let (scene, _agent) = Scene::with_local_probe_hosts("any-answer").await?;
    let (first, last) = (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
    let (first_port, last_port) = (first.local_addr()?.port(), last.local_addr()?.port());
    // The answer may be incomplete.
    let half = "HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\nhalf";
    let broken = tokio::spawn(async move { reply(first.accept().await?.0, half).await });
    let asked = tokio::spawn(async move {
        // A server that should speak TLS, and does not.
        let hello = reply(last.accept().await?.0, "HTTP/1.1 400 Bad Request\r\n\r\n").await?;
        let plain = reply(last.accept().await?.0, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
        anyhow::Ok((hello[0], String::from_utf8_lossy(&plain).into_owned()))
    });
    let up = json!({"httpGet": {"host": "127.0.0.1", "port": first_port}});
    let headers = json!([{"name": "Authorization", "value": SECRET}, {"name": "X-Key", "value": "one"}]);
    let down = json!({"httpGet": {
        "host": "127.0.0.1", "port": last_port, "scheme": "HTTPS", "path": "/down", "httpHeaders": headers,
    }});
    obedient(&scene, "any", down).create_until("Running").await?;
    assert_eq!(delete(&scene, "any").await?.exit_code, 0);
    let fallback = format!(
        "request to HTTPS lifecycle hook 127.0.0.1:{last_port} got HTTP response, retry with HTTP succeeded"
    );
    scene.event("any", "LifecycleHTTPFallback", &fallback).await?;
    scene.pod("broken").sh("sleep 1000").post_start(up).create_until("Running").await?;
    broken.await??;
    let (hello, plain) = asked.await??;
    assert_eq!(hello, 22, "the first byte of TLS");
    ensure!(plain.starts_with("GET /down HTTP/1.1") && plain.contains("x-key: one"), "{plain}");
    ensure!(!plain.contains(SECRET), "the password went to a server without TLS: {plain}");
    Ok(())
}

#[tokio::test]
async fn http_hook_without_an_answer_fails() -> Result<()> {
    let (scene, _agent) = Scene::with_local_probe_hosts("no-answer").await?;
    // A port that is taken, so that no other process listens there.
    let silent = TcpSocket::new_v4()?;
    silent.bind(([127, 0, 0, 1], 0).into())?;
    let port = silent.local_addr()?.port();
    let up = json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": "/up"}});
    let pod = scene.pod("alone").sh("sleep 1000").post_start(up).create_until("Failed").await?;
    let message = pod.main().message().unwrap_or_default();
    let words = format!("PostStartHookError: Get \"http://127.0.0.1:{port}/up\": ");
    ensure!(message.starts_with(&words) && message.contains("refused"), "{message}");
    scene.event("alone", "FailedPostStartHook", "PostStartHook failed").await
}

#[tokio::test]
async fn http_hook_reaches_neither_this_machine_nor_its_links() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("inside").await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let reached = tokio::spawn(async move { listener.accept().await.map(|(_, from)| from) });
    let get = |host: &str| json!({"httpGet": {"host": host, "port": port, "path": "/secret"}});
    for (name, host, what) in [
        ("loopback", "127.0.0.1", "127.0.0.1 is a loopback address"),
        ("by-name", "localhost", " is a loopback address"),
        ("metadata", "169.254.169.254", "169.254.169.254 is a link-local address"),
    ] {
        let pod = scene.pod(name).sh("sleep 1000").post_start(get(host)).create_until("Failed").await?;
        let message = pod.main().message().unwrap_or_default();
        ensure!(
            message.starts_with("PostStartHookError: Get \"http://") && message.contains(what),
            "{message}"
        );
        ensure!(message.contains("leave `host` out"), "{message}");
        scene.delete(name).await?;
    }
    // A guest without a command has its hook elsewhere in the shim.
    let pod = scene.pod("boots").post_start(get("127.0.0.1")).create_until("Failed").await?;
    let message = pod.main().message().unwrap_or_default();
    ensure!(message.contains("127.0.0.1 is a loopback address"), "{message}");
    ensure!(!reached.is_finished(), "a hook has reached the machine");
    reached.abort();
    Ok(())
}
