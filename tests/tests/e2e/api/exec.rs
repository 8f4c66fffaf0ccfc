//! `kubectl exec` and `kubectl cp` through the API server, over `WebSockets` and over SPDY.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::ChildStdout;
use tokio::time::timeout;

use super::kubectl::{TRANSPORTS, Transport, pipes};
use super::port_forward::{Forward, echo};
use crate::scene::{DEADLINE, PodView, SLEEP, Scene, every_second, exec};

/// Bytes of all values that no compression makes small.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(length).collect()
}

/// Whether the Node declares that it takes `WebSockets` itself.
fn declares_web_sockets(node: &Node) -> bool {
    let declared = node.status.as_ref().and_then(|status| status.declared_features.as_deref());
    declared.unwrap_or_default().iter().any(|feature| feature == "ExtendWebSocketsToKubelet")
}

async fn commands_have_streams_exit_codes_and_the_containers_environment(scene: &Scene) -> Result<()> {
    scene
        .pod("one")
        .command(SLEEP)
        .env("GREETING", "hello")
        .container(json!({"workingDir": "/private/tmp/work"}))
        .create_until("Running")
        .await?;
    for transport in TRANSPORTS {
        let script = "echo $GREETING; pwd; echo err >&2";
        let done = transport.run(scene, &["exec", "one", "--", "sh", "-c", script], Vec::new()).await?;
        assert_eq!((done.code, done.text().as_str()), (Some(0), "hello\n/private/tmp/work\n"), "{done:?}");
        assert_eq!(done.stderr, "err\n");
        for (script, code) in [("exit 1", 1), ("kill -9 $$", 137)] {
            let done = transport.run(scene, &["exec", "one", "--", "sh", "-c", script], Vec::new()).await?;
            assert_eq!(done.code, Some(code), "{transport:?} {script}: {done:?}");
        }
        let bytes = noise(8 << 20);
        let done = transport.run(scene, &["exec", "-i", "one", "--", "cat"], bytes.clone()).await?;
        assert!(
            done.code == Some(0) && done.stdout == bytes,
            "{transport:?}: {} bytes, {:?}, {}",
            done.stdout.len(),
            done.code,
            done.stderr
        );
        let missing = transport.run(scene, &["exec", "one", "--", "/no/such"], Vec::new()).await?;
        assert_eq!(missing.code, Some(127), "{missing:?}");
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_exec_has_streams_exit_codes_and_the_containers_environment() -> Result<()> {
    let (scene, _agent) = Scene::with_api("exec").await?;
    // An API server before 1.36 does not know the field, and drops it.
    let minor: u32 = scene.control_plane.client().await?.apiserver_version().await?.minor.parse()?;
    assert_eq!(declares_web_sockets(&scene.nodes.get(&scene.node).await?), minor >= 36);
    Box::pin(commands_have_streams_exit_codes_and_the_containers_environment(&scene)).await
}

#[tokio::test]
async fn kubectl_exec_and_cp_work_on_a_node_that_declares_no_web_sockets() -> Result<()> {
    let (scene, _agent) = Scene::without_declared_features("exec-spdy").await?;
    assert!(!declares_web_sockets(&scene.nodes.get(&scene.node).await?));
    Box::pin(commands_have_streams_exit_codes_and_the_containers_environment(&scene)).await?;
    copies_both_ways(&scene).await
}

#[tokio::test]
async fn kubectl_exec_works_in_a_vm_that_only_boots_and_is_refused_in_words_otherwise() -> Result<()> {
    let (scene, _agent) = Scene::with_api("exec-boot").await?;
    scene.pod("boots").env("GREETING", "hello").create_until("Running").await?;
    for transport in TRANSPORTS {
        let arguments = ["exec", "boots", "--", "sh", "-c", "echo $GREETING"];
        let done = transport.run(&scene, &arguments, Vec::new()).await?;
        assert_eq!((done.code, done.text().as_str()), (Some(0), "hello\n"), "{done:?}");
        let attach = transport.run(&scene, &["attach", "boots"], Vec::new()).await?;
        ensure!(attach.code == Some(1) && attach.stderr.contains("only boots"), "{attach:?}");
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_exec_carries_a_hundred_megabytes_both_ways() -> Result<()> {
    let (scene, _agent) = Scene::with_api("exec-bulk").await?;
    a_hundred_megabytes_are_carried_both_ways(&scene).await
}

#[tokio::test]
async fn kubectl_exec_carries_a_hundred_megabytes_on_a_node_that_declares_no_web_sockets() -> Result<()> {
    let (scene, _agent) = Scene::without_declared_features("exec-bulk-spdy").await?;
    a_hundred_megabytes_are_carried_both_ways(&scene).await
}

async fn a_hundred_megabytes_are_carried_both_ways(scene: &Scene) -> Result<()> {
    scene.pod("one").command(SLEEP).create_until("Running").await?;
    let bytes = noise(100_000_000);
    for transport in TRANSPORTS {
        let done = transport.run(scene, &["exec", "-i", "one", "--", "cat"], bytes.clone()).await?;
        ensure!(done.code == Some(0), "{transport:?}: {:?}, {}", done.code, done.stderr);
        ensure!(done.stdout == bytes, "{transport:?}: {} bytes, or others, came back", done.stdout.len());
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_cp_copies_both_ways() -> Result<()> {
    let (scene, _agent) = Scene::with_api("cp").await?;
    scene.pod("one").command(SLEEP).create_until("Running").await?;
    copies_both_ways(&scene).await
}

/// Copies a file to the Pod `one`, and back.
async fn copies_both_ways(scene: &Scene) -> Result<()> {
    let directory = tempfile::tempdir_in(scene.control_plane.sandbox().path())?;
    let at = |name: &str| directory.path().join(name).display().to_string();
    let bytes = noise(3 << 20);
    for transport in TRANSPORTS {
        std::fs::write(at("there"), &bytes)?;
        let there = transport.run(scene, &["cp", &at("there"), "one:/private/tmp/copy"], Vec::new()).await?;
        ensure!(there.code == Some(0), "{there:?}");
        let back = transport.run(scene, &["cp", "one:/private/tmp/copy", &at("back")], Vec::new()).await?;
        ensure!(back.code == Some(0), "{back:?}");
        ensure!(std::fs::read(at("back"))? == bytes, "{transport:?}");
        std::fs::remove_file(at("back"))?;
    }
    Ok(())
}

#[tokio::test]
async fn a_command_is_killed_when_its_client_vanishes() -> Result<()> {
    let (scene, _agent) = Scene::with_api("vanish").await?;
    let vm = scene.pod("one").command(SLEEP).create_until("Running").await?.vm()?;
    commands_end_with_their_clients(&scene, &vm).await
}

#[tokio::test]
async fn a_command_runs_as_the_containers_user_and_is_killed_as_such() -> Result<()> {
    let (scene, _agent) = Scene::with_api("user").await?;
    let image = "registry.test/macos/admin:1";
    scene.mac.add_image(image, &json!({"uid": 501}))?;
    let pod = scene.pod("one").image(image).command(SLEEP).security_context(json!({"runAsUser": 12345}));
    let vm = pod.create_until("Running").await?.vm()?;
    for transport in TRANSPORTS {
        let done = transport.run(&scene, &["exec", "one", "--", "id", "-u"], Vec::new()).await?;
        ensure!(done.code == Some(0) && done.text() == "12345\n", "{transport:?}: {done:?}");
    }
    commands_end_with_their_clients(&scene, &vm).await
}

/// Starts commands in the Pod `one`, and has their clients vanish.
async fn commands_end_with_their_clients(scene: &Scene, vm: &str) -> Result<()> {
    for transport in TRANSPORTS {
        let script = "trap '' HUP; echo $$ >/private/tmp/pid-of-command; echo up; sleep 1000 & wait";
        let mut child = transport.start(scene, &["exec", "one", "--", "sh", "-c", script])?;
        let (_stdin, stdout, _stderr) = pipes(&mut child)?;
        let mut lines = BufReader::new(stdout).lines();
        let first = timeout(DEADLINE, lines.next_line()).await.context("no output")??;
        assert_eq!(first.as_deref(), Some("up"));
        child.kill().await?;
        wait::eventually("the end of the command", DEADLINE, async || {
            let alive = ["exec", vm, "/bin/sh", "-c", "sudo -n kill -0 $(cat /private/tmp/pid-of-command)"];
            ensure!(scene.mac.tart(alive).await.is_err(), "{transport:?}: it runs");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// What a Pod does whose VM is to die while clients use it: it answers each line of its standard input.
const ANSWERS: &str = "echo up; while read -r line; do echo \"got $line\"; done";

#[tokio::test]
async fn streams_of_a_vm_that_dies_end_in_words() -> Result<()> {
    let (scene, _agent) = Scene::with_api("vm-dies").await?;
    for transport in TRANSPORTS {
        let pod =
            scene.pod("one").sh(ANSWERS).container(json!({"stdin": true})).create_until("Running").await?;
        let address = pod.status.and_then(|status| status.pod_ip).context("no address")?;
        let listener = TcpListener::bind((address.as_str(), 0)).await?;
        let port = listener.local_addr()?.port();
        tokio::spawn(echo(listener));
        let script = "echo up; sleep 1000";
        let mut exec = transport.start(&scene, &["exec", "one", "--", "sh", "-c", script])?;
        let (_stdin, stdout, mut stderr) = pipes(&mut exec)?;
        heard(stdout, "up").await?;
        let mut attach = transport.start(&scene, &["attach", "-i", "one"])?;
        let (mut stdin, stdout, _attach_stderr) = pipes(&mut attach)?;
        stdin.write_all(b"word\n").await?;
        heard(stdout, "got word").await?;
        let mut logs = transport.start(&scene, &["logs", "-f", "one"])?;
        let (_logs_stdin, stdout, _logs_stderr) = pipes(&mut logs)?;
        heard(stdout, "up").await?;
        let mut forward = Forward::start(transport, &scene, "one", &[port]).await?;
        forward.echoes().await?;

        scene.mac.set_fault(Fault::GuestPanic, "")?;
        let status = timeout(DEADLINE, exec.wait()).await.context("exec does not end")??;
        let mut words = String::new();
        stderr.read_to_string(&mut words).await?;
        ensure!(!status.success() && !words.is_empty(), "{transport:?}: {status} {words}");
        timeout(DEADLINE, attach.wait()).await.context("attach does not end")??;
        timeout(DEADLINE, logs.wait()).await.context("logs does not end")??;
        scene.phase("one", "Failed").await?;
        // Another Pod may have the address by now.
        forward.is_refused(port, "pod is not running").await?;
        scene.mac.clear_fault(Fault::GuestPanic)?;
        scene.delete("one").await?;
    }
    Ok(())
}

/// Waits for a line of output.
async fn heard(stdout: ChildStdout, expected: &str) -> Result<()> {
    let line = timeout(DEADLINE, BufReader::new(stdout).lines().next_line()).await.context("no output")??;
    ensure!(line.as_deref() == Some(expected), "{line:?} instead of {expected}");
    Ok(())
}

#[tokio::test]
async fn probes_and_commands_share_one_connection_to_the_guest() -> Result<()> {
    let (scene, _agent) = Scene::with_api("connections").await?;
    let probe = every_second(exec("true"));
    let pod = scene.pod("one").command(SLEEP).readiness(probe.clone()).liveness(probe);
    let vm = pod.create_until("Running").await?.vm()?;
    scene.until("one", "ready", PodView::is_ready).await?;
    // The shim has its own.
    let accepted =
        || Ok::<_, std::io::Error>(std::fs::metadata(scene.vm_dir(&vm).join("control.sock.accepted"))?.len());
    let before = accepted()?;
    for _ in 0..3 {
        let done = Transport::WebSockets.run(&scene, &["exec", "one", "--", "true"], Vec::new()).await?;
        ensure!(done.code == Some(0), "{done:?}");
    }
    assert_eq!(accepted()?, before, "no command has made another connection");
    Ok(())
}

#[tokio::test]
async fn a_terminal_has_the_clients_size_and_its_keys() -> Result<()> {
    let (scene, _agent) = Scene::with_api("tty").await?;
    a_terminal_is_the_clients(&scene).await
}

#[tokio::test]
async fn a_terminal_has_the_clients_size_on_a_node_that_declares_no_web_sockets() -> Result<()> {
    let (scene, _agent) = Scene::without_declared_features("tty-spdy").await?;
    a_terminal_is_the_clients(&scene).await
}

async fn a_terminal_is_the_clients(scene: &Scene) -> Result<()> {
    scene.pod("one").command(SLEEP).create_until("Running").await?;
    for transport in TRANSPORTS {
        let script = "until [ \"$(stty size)\" = '33 101' ]; do sleep 0.1; done; read -r word; echo \"got $word\"; exit 5";
        let arguments = ["exec", "-it", "one", "--", "sh", "-c", script];
        let mut child = transport.start_on_terminal(scene, (33, 101), &arguments)?;
        let (mut stdin, stdout, _stderr) = pipes(&mut child)?;
        stdin.write_all(b"hello\n").await?;
        let (mut lines, mut said) = (BufReader::new(stdout).lines(), Vec::new());
        loop {
            let line = timeout(DEADLINE, lines.next_line()).await.context("no output")??;
            let line = line.with_context(|| format!("kubectl has ended: {said:?}"))?;
            if line.trim() == "got hello" {
                break;
            }
            said.push(line);
        }
        drop(stdin);
        let status = timeout(DEADLINE, child.wait()).await.context("no end")??;
        assert_eq!(status.code(), Some(5), "{transport:?}");
    }
    Ok(())
}
