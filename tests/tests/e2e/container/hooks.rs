//! Lifecycle hooks and the way a command is told to end.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tart_kubelet_tests::{tls, wait};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

use crate::scene::{DEADLINE, Scene, UP, state_of};

/// Where the command and its hooks leave a trace that is read when they are over.
const TRACE: &str = "/private/tmp/trace";

fn container(script: &str, lifecycle: &Value) -> Value {
    json!({"command": ["/bin/sh", "-c", script], "lifecycle": lifecycle, "terminationMessagePath": TRACE})
}

/// Until the command has seen to its signals: it says so by a file.
fn is_up() -> Value {
    exec(&format!("until [ -e {UP} ]; do sleep 0.05; done"))
}

fn exec(script: &str) -> Value {
    json!({"exec": {"command": ["/bin/sh", "-c", script]}})
}

/// A Pod that stays in the API after its deletion, for somebody to read how it ended.
fn lingering(scene: &Scene, name: &str, container: &Value, spec: &Value) -> Value {
    let mut pod = scene.pod(name, container, spec);
    pod["metadata"]["finalizers"] = json!(["example.com/linger"]);
    pod
}

fn end_of(pod: &Pod) -> Option<ContainerStateTerminated> {
    state_of(pod).and_then(|state| state.terminated)
}

/// Deletes a lingering Pod and waits for its end.
async fn stop(scene: &Scene, name: &str) -> Result<ContainerStateTerminated> {
    scene.kubectl.run(["delete", "pod", name, "--wait=false"]).await?;
    let ended = wait::until(&scene.pods, name, "an end", DEADLINE, |pod| end_of(pod).is_some()).await?;
    end_of(&ended).context("no end")
}

/// The same, and lets go of it.
async fn delete(scene: &Scene, name: &str) -> Result<ContainerStateTerminated> {
    let end = stop(scene, name).await?;
    let free = r#"{"metadata":{"finalizers":null}}"#;
    scene.kubectl.run(["patch", "pod", name, "--type=merge", "--patch", free]).await?;
    Ok(end)
}

#[tokio::test]
async fn a_pod_starts_and_ends_through_its_hooks() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("hooks").await?;
    let script = format!("trap 'echo term >>{TRACE}; exit 3' TERM; touch {UP}; while :; do sleep 0.1; done");
    let lifecycle = json!({
        "postStart": exec(&format!("until [ -e {UP} ]; do sleep 0.05; done; echo $WHO started >>{TRACE}")),
        "preStop": exec(&format!("echo stopping >>{TRACE}")),
    });
    let mut container = container(&script, &lifecycle);
    container["env"] = json!([{"name": "WHO", "value": "hook"}]);
    scene.create(&lingering(&scene, "hooks", &container, &json!({}))).await?;
    scene.phase("hooks", "Running").await?;
    let end = delete(&scene, "hooks").await?;
    assert_eq!((end.exit_code, end.message.as_deref()), (3, Some("hook started\nstopping\nterm\n")));
    scene.nothing_left().await
}

#[tokio::test]
async fn a_command_that_ignores_sigterm_is_killed_when_its_time_is_over() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("stubborn").await?;
    let script = format!("trap '' TERM; touch {UP}; while :; do sleep 0.1; done");
    let container = container(&script, &json!({"postStart": is_up()}));
    let spec = json!({"terminationGracePeriodSeconds": 1});
    scene.create(&lingering(&scene, "stubborn", &container, &spec)).await?;
    scene.phase("stubborn", "Running").await?;
    assert_eq!(delete(&scene, "stubborn").await?.exit_code, 137);
    scene.nothing_left().await
}

/// A value that is nowhere else, so that it can be looked for.
const SECRET: &str = "sesame-shut-yourself";

/// Adds a Secret, in the variable `TOKEN`.
async fn add_secret(scene: &Scene, container: &mut Value) -> Result<()> {
    let literal = format!("--from-literal=token={SECRET}");
    scene.kubectl.run(["create", "secret", "generic", "keys", &literal]).await?;
    let from = json!({"secretKeyRef": {"name": "keys", "key": "token"}});
    container["env"] = json!([{"name": "TOKEN", "valueFrom": from}]);
    Ok(())
}

/// No Event has the secret, nor has any log but the container's own.
async fn is_kept(scene: &Scene, pod: &str) -> Result<()> {
    let told = scene.kubectl.run(["get", "events", "--output", "json"]).await?;
    for said in [told, scene.agent_log(), scene.shim_log(pod).await?] {
        ensure!(!said.contains(SECRET), "{said}");
    }
    Ok(())
}

#[tokio::test]
async fn a_post_start_hook_that_fails_ends_the_container() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("bad-hook").await?;
    let mut container = container("sleep 1000", &json!({"postStart": exec("echo $TOKEN; exit 5")}));
    add_secret(&scene, &mut container).await?;
    scene.create(&scene.pod("bad", &container, &json!({}))).await?;
    let pod = scene.phase("bad", "Failed").await?;
    let end = end_of(&pod).context("no end")?;
    let message = format!("PostStartHookError: command `/bin/sh` exited with 5: {SECRET}");
    assert_eq!((end.exit_code, end.message.as_deref()), (143, Some(message.as_str())));
    // It had started before its hook did.
    ensure!(end.started_at.is_some(), "{end:?}");
    scene.told_as("bad", "FailedPostStartHook", "PostStartHook failed").await?;
    scene.no_vms().await?;
    is_kept(&scene, "bad").await
}

/// A command that heeds SIGTERM, with a `preStop` hook.
fn obedient(hook: &Value) -> Value {
    let script = format!("trap 'echo term >>{TRACE}; exit 0' TERM; touch {UP}; while :; do sleep 0.1; done");
    container(&script, &json!({"postStart": is_up(), "preStop": hook}))
}

#[tokio::test]
async fn a_pre_stop_hook_that_fails_is_told() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("bad-end").await?;
    let mut fails = obedient(&exec("echo $TOKEN; exit 9"));
    add_secret(&scene, &mut fails).await?;
    for (name, container) in [("fails", fails), ("sleeps", obedient(&json!({"sleep": {"seconds": 1}})))] {
        scene.create(&lingering(&scene, name, &container, &json!({}))).await?;
        scene.phase(name, "Running").await?;
        let end = stop(&scene, name).await?;
        // However the hook went, the command got its SIGTERM and the time to heed it.
        assert_eq!((name, end.exit_code, end.message.as_deref()), (name, 0, Some("term\n")));
    }
    scene.told_as("fails", "FailedPreStopHook", "PreStopHook failed").await?;
    is_kept(&scene, "fails").await
}

#[tokio::test]
async fn a_pre_stop_hook_that_takes_too_long_leaves_time_for_the_command() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("slow-hook").await?;
    // Two seconds are left to the command then. A busy machine may need them for itself, but not each time.
    for attempt in 0..8 {
        let name = format!("hangs-{attempt}");
        let spec = json!({"terminationGracePeriodSeconds": 3});
        scene.create(&lingering(&scene, &name, &obedient(&exec("sleep 1000")), &spec)).await?;
        scene.phase(&name, "Running").await?;
        let end = delete(&scene, &name).await?;
        scene.told_as(&name, "FailedPreStopHook", "PreStopHook did not end within the grace period").await?;
        if (end.exit_code, end.message.as_deref()) == (0, Some("term\n")) {
            return Ok(());
        }
        assert_eq!(end.exit_code, 137);
    }
    anyhow::bail!("no command had the time to heed its SIGTERM")
}

#[tokio::test]
async fn a_pre_stop_hook_whose_time_is_over_before_it_could_start_is_told() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("late-hook").await?;
    let spec = json!({"terminationGracePeriodSeconds": 1});
    for (name, container) in
        [("command", obedient(&exec("true"))), ("boot", json!({"lifecycle": {"preStop": exec("true")}}))]
    {
        scene.create(&lingering(&scene, name, &container, &spec)).await?;
        let uid = scene.phase(name, "Running").await?.metadata.uid.context("no UID")?;
        let vm = scene.agent.state_dir().join("pods").join(uid).join("0");
        // Its shim hears of the deletion too late.
        let shim = Pid::from_raw(std::fs::read_to_string(vm.join("shim.pid"))?.trim().parse()?);
        kill(shim, Signal::SIGSTOP)?;
        scene.kubectl.run(["delete", "pod", name, "--wait=false"]).await?;
        wait::eventually("a deadline that is over", DEADLINE, async || {
            let asked: Value = serde_json::from_str(&std::fs::read_to_string(vm.join("stop.json"))?)?;
            let deadline: jiff::Timestamp = asked["deadline"].as_str().context("no deadline")?.parse()?;
            ensure!(jiff::Timestamp::now() > deadline, "it is at {deadline}");
            Ok(())
        })
        .await?;
        kill(shim, Signal::SIGCONT)?;
        let words = "PreStopHook did not end within the grace period";
        scene.told_as(name, "FailedPreStopHook", words).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_vm_that_only_boots_has_hooks_too() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("boot-hook").await?;
    let status = "/Volumes/My Shared Files/pod_status/status";
    // The shell reads each list of arguments itself: a program that looks for the word would have it in its own.
    let look = "for f in /proc/[0-9]*/cmdline; do a=$(tr '\\0' ' ' <\"$f\" 2>/dev/null); \
                case $a in *\"$TOKEN\"*) echo \"$f\";; esac; done";
    let lifecycle = json!({
        "postStart": exec(&format!("printf '0\\nup %s %s%s' ${{#TOKEN}} $IP \"$({look})\" >'{status}'")),
        "preStop": exec(&format!("printf ' and down %s' \"$WHO\" >>'{status}'")),
    });
    let mut probe = exec("[ -n \"$TOKEN\" ] && [ -n \"$IP\" ]");
    probe["periodSeconds"] = json!(1);
    let mut container = json!({"lifecycle": lifecycle, "readinessProbe": probe});
    add_secret(&scene, &mut container).await?;
    let more = [
        json!({"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}),
        json!({"name": "WHO", "value": "hook"}),
    ];
    container["env"].as_array_mut().context("no variables")?.extend(more);
    scene.create(&lingering(&scene, "boot", &container, &json!({}))).await?;
    let pod = wait::until(&scene.pods, "boot", "ready", DEADLINE, |pod| {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        statuses.is_some_and(|all| all.iter().all(|one| one.ready))
    })
    .await?;
    // What is secret is closed to other users of the host.
    let state = scene.agent.state_dir();
    let uid = pod.metadata.uid.context("no UID")?;
    let boot = state.join("volumes").join(&uid).join(".boot-0/pod_environment");
    let plan = state.join("pods").join(&uid).join("0/spec.json");
    let closed = [state.join("volumes").join(&uid), boot.clone(), boot.join("environment"), plan];
    let modes = closed.map(|path| std::fs::metadata(path).map(|found| found.permissions().mode() & 0o777));
    let modes: Vec<u32> = modes.into_iter().collect::<Result<_, _>>()?;
    assert_eq!(modes, [0o700, 0o700, 0o600, 0o600]);
    let ip = pod.status.and_then(|status| status.pod_ip).unwrap_or_default();
    let end = delete(&scene, "boot").await?;
    let said = format!("up {} {ip} and down hook", SECRET.len());
    assert_eq!((end.exit_code, end.message), (0, Some(said)));
    // What is no command needs no guest agent.
    let bare = "registry.test/macos/bare:1";
    scene.mac.add_image(bare, &json!({"agent": false}))?;
    let nap = json!({"sleep": {"seconds": 1}});
    let container = json!({"image": bare, "lifecycle": {"postStart": nap, "preStop": nap}});
    let spec = json!({"terminationGracePeriodSeconds": 20});
    scene.create(&lingering(&scene, "bare", &container, &spec)).await?;
    scene.phase("bare", "Running").await?;
    delete(&scene, "bare").await?;
    let told = scene.kubectl.run(["get", "events", "--field-selector=involvedObject.name=bare"]).await?;
    ensure!(!told.contains("Hook"), "{told}");
    // One that hangs hears of the deletion.
    let hangs = json!({"lifecycle": {"postStart": exec("sleep 1000")}});
    scene.create(&scene.pod("hangs", &hangs, &json!({}))).await?;
    wait::until(&scene.pods, "hangs", "an address", DEADLINE, |pod| {
        pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some())
    })
    .await?;
    scene.kubectl.run(["delete", "pod", "hangs", "--grace-period=5"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_vm_that_only_boots_ends_by_its_hook_whatever_becomes_of_the_first() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("boot-end").await?;
    let hangs = exec("touch '/Volumes/My Shared Files/pod_status/begun'; sleep 1000");
    for (name, first) in [("fails", exec("exit 5")), ("hangs", hangs)] {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let asked = tokio::spawn(async move { answer(listener.accept().await?.0).await });
        let last = json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": "/down"}});
        let container = json!({"lifecycle": {"postStart": first, "preStop": last}});
        scene.create(&lingering(&scene, name, &container, &json!({}))).await?;
        if name == "hangs" {
            let uid = scene.pods.get(name).await?.metadata.uid.context("no UID")?;
            let status = scene.agent.state_dir().join("volumes").join(uid).join(".boot-0/pod_status");
            wait::eventually("a hook that has begun", DEADLINE, async || {
                ensure!(status.join("begun").exists());
                Ok(())
            })
            .await?;
        } else {
            let end = end_of(&scene.phase(name, "Failed").await?).context("no end")?;
            let message = "PostStartHookError: command `/bin/sh` exited with 5";
            assert_eq!((end.exit_code, end.message.as_deref()), (137, Some(message)));
            scene.told_as(name, "FailedPostStartHook", "PostStartHook failed").await?;
        }
        delete(&scene, name).await?;
        let asked = tokio::time::timeout(DEADLINE, asked).await.context("nobody has asked")???;
        assert_eq!(asked, "GET /down HTTP/1.1", "{name}");
    }
    // A guest that is gone before its last hook is over has not succeeded.
    let hooks = json!({"postStart": exec("exit 5"), "preStop": exec("sudo shutdown -h now; sleep 1000")});
    scene.create(&scene.pod("gone", &json!({"lifecycle": hooks}), &json!({}))).await?;
    let end = end_of(&scene.phase("gone", "Failed").await?).context("no end")?;
    assert_eq!(end.exit_code, 137);
    ensure!(end.message.as_ref().is_some_and(|words| words.contains("PostStartHookError")), "{end:?}");
    scene.kubectl.run(["delete", "pod", "gone"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_restarted_agent_runs_no_hook_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("once").await?;
    let script =
        format!("trap 'exit 0' TERM; until [ -e {TRACE} ]; do sleep 0.1; done; while :; do sleep 0.1; done");
    let lifecycle = json!({
        "postStart": exec(&format!("echo started >>{TRACE}; until [ -e {UP} ]; do sleep 0.05; done; echo done >>{TRACE}")),
        "preStop": exec(&format!("echo stopping >>{TRACE}")),
    });
    scene.create(&lingering(&scene, "once", &container(&script, &lifecycle), &json!({}))).await?;
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

/// Says yes to one request, and returns its first line.
async fn answer(mut connection: impl AsyncRead + AsyncWrite + Unpin) -> Result<String> {
    let mut request = vec![0; 4096];
    let length = connection.read(&mut request).await?;
    connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    connection.flush().await?;
    Ok(String::from_utf8_lossy(&request[..length]).lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn hooks_by_http_ask_whom_the_pod_names() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("http-hook").await?;
    // Simulated guests share the machine's network, so the test itself can answer.
    let (plain, secure) = (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
    let (port, secure_port) = (plain.local_addr()?.port(), secure.local_addr()?.port());
    let asked = tokio::spawn(async move {
        let first = answer(plain.accept().await?.0).await?;
        // As for a probe, nobody has to prove who it is.
        let second = answer(tls::unvouched()?.accept(secure.accept().await?.0).await?).await?;
        anyhow::Ok([first, second])
    });
    let up = json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": "/up"}});
    let down =
        json!({"httpGet": {"host": "127.0.0.1", "port": secure_port, "path": "/down", "scheme": "HTTPS"}});
    let lifecycle = json!({"postStart": up, "preStop": down});
    scene.create(&scene.pod("http", &container("sleep 1000", &lifecycle), &json!({}))).await?;
    scene.phase("http", "Running").await?;
    scene.kubectl.run(["delete", "pod", "http"]).await?;
    assert_eq!(asked.await??, ["GET /up HTTP/1.1", "GET /down HTTP/1.1"]);
    Ok(())
}

/// Reads what comes by a connection, and says this.
async fn reply(mut connection: impl AsyncRead + AsyncWrite + Unpin, words: &str) -> Result<Vec<u8>> {
    let mut request = vec![0; 4096];
    let length = connection.read(&mut request).await?;
    connection.write_all(words.as_bytes()).await?;
    connection.shutdown().await?;
    request.truncate(length);
    Ok(request)
}

#[tokio::test]
async fn any_answer_to_a_hook_by_http_will_do() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("any-answer").await?;
    let (first, last) = (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
    let (first_port, last_port) = (first.local_addr()?.port(), last.local_addr()?.port());
    // Not even all of it has to come.
    let half = "HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\nhalf";
    let broken = tokio::spawn(async move { reply(first.accept().await?.0, half).await });
    let asked = tokio::spawn(async move {
        // A server that was to speak TLS, and does not.
        let hello = reply(last.accept().await?.0, "HTTP/1.1 400 Bad Request\r\n\r\n").await?;
        let plain = reply(last.accept().await?.0, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
        anyhow::Ok((hello[0], String::from_utf8_lossy(&plain).into_owned()))
    });
    let up = json!({"httpGet": {"host": "127.0.0.1", "port": first_port}});
    let headers = json!([{"name": "Authorization", "value": SECRET}, {"name": "X-Key", "value": "one"}]);
    let down = json!({"httpGet": {
        "host": "127.0.0.1", "port": last_port, "scheme": "HTTPS", "path": "/down", "httpHeaders": headers,
    }});
    scene.create(&lingering(&scene, "any", &obedient(&down), &json!({}))).await?;
    scene.phase("any", "Running").await?;
    assert_eq!(delete(&scene, "any").await?.exit_code, 0);
    let fallback = format!(
        "request to HTTPS lifecycle hook 127.0.0.1:{last_port} got HTTP response, retry with HTTP succeeded"
    );
    scene.told_as("any", "LifecycleHTTPFallback", &fallback).await?;
    scene
        .create(&scene.pod("broken", &container("sleep 1000", &json!({"postStart": up})), &json!({})))
        .await?;
    scene.phase("broken", "Running").await?;
    broken.await??;
    let (hello, plain) = asked.await??;
    assert_eq!(hello, 22, "the first byte of TLS");
    ensure!(plain.starts_with("GET /down HTTP/1.1") && plain.contains("x-key: one"), "{plain}");
    ensure!(!plain.contains(SECRET), "whoever cannot prove who it is gets no password: {plain}");
    Ok(())
}

#[tokio::test]
async fn a_hook_by_http_that_nobody_answers_has_failed() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("no-answer").await?;
    // A port that nobody else can have, and where nobody listens.
    let silent = TcpSocket::new_v4()?;
    silent.bind(([127, 0, 0, 1], 0).into())?;
    let port = silent.local_addr()?.port();
    let up = json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": "/up"}});
    scene
        .create(&scene.pod("alone", &container("sleep 1000", &json!({"postStart": up})), &json!({})))
        .await?;
    let end = end_of(&scene.phase("alone", "Failed").await?).context("no end")?;
    let message = end.message.unwrap_or_default();
    let words = format!("PostStartHookError: Get \"http://127.0.0.1:{port}/up\": ");
    ensure!(message.starts_with(&words) && message.contains("refused"), "{message}");
    scene.told_as("alone", "FailedPostStartHook", "PostStartHook failed").await
}
