//! The harness itself: what it promises to the tests that stand on it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubeconfig;
use tart_kubelet_tests::mac::{Fault, Mac};
use tart_kubelet_tests::sandbox::{Sandbox, processes};
use tart_kubelet_tests::wait::{eventually, until};

const MINUTE: Duration = Duration::from_mins(1);

#[tokio::test]
async fn kubectl_talks_to_a_server_of_its_own_version() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let versions: serde_json::Value =
        serde_json::from_str(&control_plane.kubectl().run(["version", "--output", "json"]).await?)?;
    let version = &versions["serverVersion"]["gitVersion"];
    ensure!(version.as_str().is_some_and(|version| version.starts_with("v1.")), "server version {version}");
    assert_eq!(&versions["clientVersion"]["gitVersion"], version);
    Ok(())
}

#[tokio::test]
async fn an_error_of_kubectl_has_its_words() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let error =
        control_plane.kubectl().run(["get", "node", "nowhere"]).await.expect_err("there is no such Node");
    let error = format!("{error:#}");
    assert!(error.contains("get node nowhere failed") && error.contains("\"nowhere\" not found"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_pod_reaches_the_scheduler() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let namespace = control_plane.namespace("scheduler").await?;
    let pods = Api::<Pod>::namespaced(control_plane.client().await?, &namespace);
    let pod = json!({
        "metadata": { "name": "lonely" },
        "spec": {
            "nodeSelector": { "no-node-has": "this" },
            "containers": [{ "name": "vm", "image": "registry.example/macos:26" }],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    until(&pods, "lonely", "called unschedulable", MINUTE, |pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.reason.as_deref() == Some("Unschedulable")))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_node_may_touch_only_itself() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let client = kubeconfig::client(&control_plane.node_kubeconfig("mac-own")?).await?;
    let nodes = Api::<Node>::all(client.clone());

    nodes.create(&PostParams::default(), &node("mac-own")).await?;
    forbidden(nodes.create(&PostParams::default(), &node("mac-other")).await.map(drop))?;

    let label = |name: &str| Patch::Merge(json!({ "metadata": { "labels": { name: "yes" } } }));
    nodes.patch("mac-own", &PatchParams::default(), &label("tuist.dev/runtime")).await?;
    let restricted = label("node-restriction.kubernetes.io/trusted");
    forbidden(nodes.patch("mac-own", &PatchParams::default(), &restricted).await.map(drop))?;

    let secrets = Api::<Secret>::namespaced(client, "kube-system");
    forbidden(secrets.list(&kube::api::ListParams::default()).await.map(drop))
}

#[tokio::test]
async fn a_bootstrap_token_becomes_a_node_identity() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let bootstrapper = kubeconfig::client(&control_plane.bootstrap_kubeconfig().await?).await?;
    let client_usages = ["digital signature", "client auth"];
    let request =
        request_certificate(&bootstrapper, "kubernetes.io/kube-apiserver-client-kubelet", &client_usages);
    let name = request.await?;
    signed(control_plane, &name).await?;

    // The Node that it became asks for its serving certificate, which a person or a controller has to approve.
    let node = kubeconfig::client(&control_plane.node_kubeconfig("mac-bootstrapped")?).await?;
    let server_usages = ["digital signature", "server auth"];
    let name = request_certificate(&node, "kubernetes.io/kubelet-serving", &server_usages).await?;
    control_plane.kubectl().run(["certificate", "approve", &name]).await?;
    signed(control_plane, &name).await
}

#[tokio::test]
async fn a_component_that_dies_is_named_with_its_last_words() -> Result<()> {
    let builder = ControlPlane::builder().api_server_flag("--no-such-flag");
    let error = builder.start(&Sandbox::new()?).await.expect_err("kube-apiserver does not know the flag");
    let error = format!("{error:#}");
    assert!(error.contains("kube-apiserver died: exit status: 1"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
    Ok(())
}

#[tokio::test]
async fn an_agent_keeps_its_state_and_its_log_over_a_restart() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let mac = Mac::new(control_plane.sandbox())?;
    let agent = Agent::new(&mac, "mac-agent", &control_plane.node_kubeconfig("mac-agent")?)?.start()?;
    let nodes = Api::<Node>::all(control_plane.client().await?);
    until(&nodes, "mac-agent", "registered", MINUTE, |_| true).await?;
    agent.kill(Signal::SIGTERM)?;
    agent.wait_for_exit(MINUTE).await?;
    let first = agent.log()?;

    let agent = agent.restart()?;
    eventually("words of the second run after the first one's", MINUTE, async || {
        agent.process().ensure_running()?;
        let log = agent.log()?;
        let second = log.strip_prefix(&first).context("the second run's log has replaced the first one's")?;
        ensure!(second.contains("serving health and metrics"), "{second}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_mac_can_be_given_images_and_faults() -> Result<()> {
    let mac = Mac::new(&Sandbox::shared()?)?;
    if !mac.is_simulated() {
        return Ok(());
    }
    let image = "registry.example/tuist/macos:26";
    let error = format!("{:#}", mac.tart(["pull", image]).await.expect_err("there is no such image yet"));
    assert!(error.contains("tart pull registry.example/tuist/macos:26 failed"), "{error}");
    mac.add_image(image, &json!({ "cpu": 6 }))?;
    mac.tart(["pull", image]).await?;
    ensure!(mac.tart(["list"]).await?.contains(image), "a pulled image is not listed");

    mac.set_fault(Fault::Hang, "list get")?;
    assert_eq!(std::fs::read_to_string(mac.host().join("faults/hang"))?, "list get");
    mac.clear_fault(Fault::Hang)?;
    mac.clear_fault(Fault::Hang).context("it is off already")?;

    let refused = mac.set_fault(Fault::Hang, "lits").expect_err("there is no such command");
    assert_eq!(format!("{refused:#}"), "`hang` takes commands, not \"lits\"");
    let refused = mac.set_fault(Fault::Hang.of_vm("vm"), "").expect_err("it is a fault of commands");
    assert_eq!(format!("{refused:#}"), "`hang` cannot be switched on for one VM");
    Ok(())
}

#[test]
fn a_dropped_sandbox_takes_its_processes_along() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let path = sandbox.path().to_owned();
    let mut marked = sandbox.command("sleep").arg("600").spawn()?;
    let mut child_without_marker = sandbox.command("sh").args(["-c", "env -i sleep 600; true"]).spawn()?;
    drop(sandbox);
    assert!(!path.exists(), "{} is left", path.display());
    assert!(!marked.wait()?.success());
    assert!(!child_without_marker.wait()?.success());
    assert_eq!(processes::of(&path)?, []);
    Ok(())
}

#[tokio::test]
async fn a_sandbox_whose_keeper_was_killed_is_removed_by_the_next() -> Result<()> {
    let mut keeper = Command::new(env!("CARGO_BIN_EXE_sandbox-keeper"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let path = PathBuf::from(read_line(&mut keeper)?);
    ensure!(path.is_dir(), "{} is not there", path.display());
    keeper.kill()?;
    keeper.wait()?;

    let _next = Sandbox::new()?;
    nothing_is_left(&path).await
}

#[tokio::test]
async fn nothing_is_left_after_kill_9() -> Result<()> {
    let mut user = User::start(Ending::Wait)?;
    user.signal(Signal::SIGKILL)?;
    nothing_is_left(&user.sandbox).await
}

#[tokio::test]
async fn nothing_is_left_after_an_interrupt() -> Result<()> {
    let mut user = User::start(Ending::Wait)?;
    user.signal(Signal::SIGINT)?;
    nothing_is_left(&user.sandbox).await
}

#[tokio::test]
async fn nothing_is_left_after_a_panic() -> Result<()> {
    let mut user = User::start(Ending::Panic)?;
    let status = user.process.wait()?;
    assert!(!status.success(), "it should have panicked");
    nothing_is_left(&user.sandbox).await
}

/// How the process that uses the harness ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ending {
    Wait,
    Panic,
}

/// A test process of its own that has started a control plane.
struct User {
    process: Child,
    sandbox: PathBuf,
}

impl User {
    fn start(ending: Ending) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--exact", "user_of_the_harness", "--ignored", "--nocapture"])
            .env("USER_OF_THE_HARNESS", format!("{ending:?}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let sandbox = PathBuf::from(read_line(&mut process)?);
        if ending == Ending::Wait {
            let running = processes::of(&sandbox)?;
            ensure!(running.len() >= 4, "a control plane has four processes, not {running:?}");
        }
        Ok(Self { process, sandbox })
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.process.id().try_into()?), signal)?;
        self.process.wait()?;
        Ok(())
    }
}

#[tokio::test]
#[ignore = "started by the tests of what is left behind, as a process of its own"]
async fn user_of_the_harness() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    println!("sandbox: {}", control_plane.sandbox().path().display());
    std::io::stdout().flush()?;
    let ending = std::env::var("USER_OF_THE_HARNESS")?;
    assert_eq!(ending, "Wait", "a panic, as asked for");
    tokio::time::timeout(MINUTE, std::future::pending::<()>())
        .await
        .context("the test did not end this process")
}

/// The path that a process tells on a line of its stdout, alone or after `sandbox: `.
fn read_line(process: &mut Child) -> Result<String> {
    let stdout = process.stdout.take().context("its stdout is not a pipe")?;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        if let Some(at) = line.find('/') {
            return Ok(line[at..].to_owned());
        }
    }
    anyhow::bail!("it ended before it told its sandbox")
}

async fn nothing_is_left(sandbox: &Path) -> Result<()> {
    eventually("the sandbox to be gone", MINUTE, async || {
        let running = processes::of(sandbox)?;
        ensure!(running.is_empty(), "processes {running:?} are still running");
        ensure!(!sandbox.exists(), "{} is still there", sandbox.display());
        Ok(())
    })
    .await
}

fn node(name: &str) -> Node {
    Node { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, ..Node::default() }
}

fn forbidden(result: kube::Result<()>) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        Err(error) => Err(error).context("it failed for another reason than being forbidden"),
        Ok(()) => anyhow::bail!("it was allowed"),
    }
}

/// Creates a certificate request of Node `mac-bootstrapped` and returns its name.
async fn request_certificate(client: &Client, signer: &str, usages: &[&str]) -> Result<String> {
    let mut subject = rcgen::DistinguishedName::new();
    subject.push(rcgen::DnType::CommonName, "system:node:mac-bootstrapped");
    subject.push(rcgen::DnType::OrganizationName, "system:nodes");
    let hosts = if signer.ends_with("serving") { vec!["127.0.0.1".to_owned()] } else { Vec::new() };
    let mut params = rcgen::CertificateParams::new(hosts)?;
    params.distinguished_name = subject;
    let request = params.serialize_request(&rcgen::KeyPair::generate()?)?.pem()?;
    let object = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("mac-".to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: signer.to_owned(),
            usages: Some(usages.iter().map(|&usage| usage.to_owned()).collect()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let created = Api::all(client.clone()).create(&PostParams::default(), &object).await?;
    created.metadata.name.context("the request has no name")
}

async fn signed(control_plane: &ControlPlane, request: &str) -> Result<()> {
    let requests = Api::<CertificateSigningRequest>::all(control_plane.client().await?);
    until(&requests, request, "signed", MINUTE, |request| {
        request.status.as_ref().is_some_and(|status| status.certificate.is_some())
    })
    .await?;
    Ok(())
}
