//! The main job, shown: a Pod becomes a VM on a Mac, on a real control plane.

mod board;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubectl::Kubectl;
use tart_kubelet_tests::mac::{Mac, REAL_TART};
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::wait;
use tokio::signal::unix::{SignalKind, signal};

use board::Board;

const NODE: &str = "demo-mac";
const POD: &str = "hello";
/// How long the Pod may take; a real Mac may have to fetch its image first.
const DEADLINE: Duration = Duration::from_mins(2);
const REAL_DEADLINE: Duration = Duration::from_mins(90);
const SIMULATED_IMAGE: &str = "registry.test/macos/sequoia:15";
/// What the Pod does in its VM: something to look at for a few seconds.
const JOB: &str = "echo \"hello from $(hostname)\"; sw_vers; for step in 1 2 3; do echo \"step $step of 3\"; sleep 3; done; echo done";

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start")
        .and_then(|runtime| runtime.block_on(demo(check)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(check: bool) -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let sandbox = Sandbox::new()?;
    // Dropping the show ends all of it; what does not end is killed by the sandbox's keeper.
    tokio::select! {
        outcome = show(&sandbox, check) => outcome,
        _ = interrupt.recv() => ended(check),
        _ = terminate.recv() => ended(check),
    }
}

/// A user has ended the demo, which is an error with `--check` only.
fn ended(check: bool) -> Result<()> {
    say("ending");
    ensure!(!check, "it was ended before it could prove anything");
    Ok(())
}

async fn show(sandbox: &Sandbox, check: bool) -> Result<()> {
    let start = Instant::now();
    say("starting a control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler");
    let control_plane = ControlPlane::builder().start(sandbox).await?;
    say(&format!("it is ready after {:.1} s", start.elapsed().as_secs_f64()));

    let (mac, image) = mac(sandbox)?;
    say(&format!(
        "starting tart-kubelet on {}",
        if mac.is_simulated() { "a simulated Mac" } else { "this Mac" }
    ));
    // The control plane is on this machine, too.
    let agent = Agent::new(&mac, NODE, &control_plane.node_kubeconfig(NODE)?)?.flag("--node-ip", "127.0.0.1");
    let running = agent.start()?;

    let client = control_plane.client().await?;
    let kubectl = control_plane.kubectl();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let nodes: Api<Node> = Api::all(client.clone());
    let board = Board::new(nodes.clone(), pods.clone(), mac.clone(), start);
    let steps = async {
        wait::until(&nodes, NODE, "ready", DEADLINE, board::is_ready).await.context("the Mac is no Node")?;
        let deadline = if mac.is_simulated() { DEADLINE } else { REAL_DEADLINE };
        approve(&kubectl, &Api::all(client.clone()), &running).await?;
        Box::pin(run_pod(&kubectl, &pods, &image, deadline)).await?;
        if check {
            finish(&kubectl, &pods, &mac).await?;
            say("check passed");
            return Ok(());
        }
        hint(&control_plane, &kubectl);
        std::future::pending().await
    };
    let outcome: Result<()> = tokio::select! {
        outcome = steps => outcome,
        never = board.follow() => match never {},
    };
    outcome.with_context(|| format!("the agent says:\n{}", running.process().last_lines()))
}

/// The Mac to run on: this one when it is one and has tart, a simulated one elsewhere.
fn mac(sandbox: &Sandbox) -> Result<(Mac, String)> {
    let mac = Mac::new(sandbox)?;
    if !mac.is_simulated() {
        let image = std::env::var("IMAGE").ok().filter(|image| !image.is_empty());
        let image = image.with_context(|| {
            format!("{REAL_TART} names a real tart: name an image too, with `make demo IMAGE=…`")
        })?;
        return Ok((mac, image));
    }
    mac.add_image(SIMULATED_IMAGE, &json!({"pullSeconds": 1, "bootDelay": 1}))?;
    Ok((mac, SIMULATED_IMAGE.to_owned()))
}

/// Approves the Node's request for a certificate of the kubelet API: this control plane takes no other, and Kubernetes approves none by
/// itself.
async fn approve(
    kubectl: &Kubectl,
    requests: &Api<CertificateSigningRequest>,
    agent: &RunningAgent,
) -> Result<()> {
    let request = wait::eventually("a request for a certificate", DEADLINE, async || {
        let all = requests.list(&ListParams::default()).await?;
        let serving = all.iter().find(|one| one.spec.signer_name == "kubernetes.io/kubelet-serving");
        serving.map(ResourceExt::name_any).context("the agent has not asked for one")
    })
    .await?;
    say(&format!("$ kubectl certificate approve {request}"));
    print(&kubectl.run(["certificate", "approve", &request]).await?);
    wait::eventually("a certificate for logs and exec", DEADLINE, async || {
        let has_it = agent.log()?.contains("the kubelet API has a certificate of the cluster");
        ensure!(has_it, "the agent has none yet");
        Ok(())
    })
    .await
}

async fn run_pod(kubectl: &Kubectl, pods: &Api<Pod>, image: &str, deadline: Duration) -> Result<()> {
    let manifest = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD},
        "spec": {
            "restartPolicy": "Never",
            "tolerations": [{"key": "tuist.dev/macos", "operator": "Exists"}],
            "nodeSelector": {"kubernetes.io/os": "darwin"},
            "containers": [{"name": "main", "image": image, "command": ["/bin/sh", "-c", JOB]}],
        },
    });
    say("$ kubectl apply -f hello.yaml");
    print(&kubectl.apply(&manifest.to_string()).await?);
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    let started = |pod: &Pod| matches!(phase(pod).as_str(), "Running" | "Succeeded" | "Failed");
    let pod = wait::until(pods, POD, "running", deadline, started).await?;
    ensure!(phase(&pod) == "Running", "the Pod is {}: {}", phase(&pod), describe(kubectl).await);
    say("$ kubectl exec hello -- sw_vers");
    let version = kubectl.run(["exec", POD, "--", "sw_vers"]).await?;
    print(&version);
    ensure!(version.contains("macOS"), "the guest is no macOS");
    say("$ kubectl logs -f hello");
    let text = kubectl.clone().deadline(deadline).run(["logs", "--follow", POD]).await?;
    print(&text);
    ensure!(text.contains("step 3 of 3"), "the log is not complete");
    let done = |pod: &Pod| matches!(phase(pod).as_str(), "Succeeded" | "Failed");
    let pod = wait::until(pods, POD, "finished", deadline, done).await?;
    ensure!(phase(&pod) == "Succeeded", "the Pod is {}: {}", phase(&pod), describe(kubectl).await);
    say("$ kubectl get pod hello -o wide");
    print(&kubectl.run(["get", "pod", POD, "--output", "wide"]).await?);
    Ok(())
}

async fn describe(kubectl: &Kubectl) -> String {
    kubectl.run(["describe", "pod", POD]).await.unwrap_or_else(|error| error.to_string())
}

/// Deletes the Pod, and sees to it that nothing is left of it.
async fn finish(kubectl: &Kubectl, pods: &Api<Pod>, mac: &Mac) -> Result<()> {
    say("$ kubectl delete pod hello");
    print(&kubectl.run(["delete", "pod", POD]).await?);
    wait::until_gone(pods, POD, DEADLINE).await?;
    wait::eventually("a Mac without the demo's VMs", DEADLINE, async || {
        let vms = mac.tart(["list", "--source", "local", "--quiet"]).await?;
        // The image's base VM stays for the next Pod.
        let left = vms.lines().any(|vm| vm.starts_with("tk-") && !vm.starts_with("tk-base-"));
        ensure!(!left, "it has {vms}");
        Ok(())
    })
    .await
}

fn hint(control_plane: &ControlPlane, kubectl: &Kubectl) {
    let program = PathBuf::from(kubectl.command().get_program());
    let path = program.parent().map(|directory| directory.display().to_string()).unwrap_or_default();
    say("try it yourself, in another shell; Ctrl-C here ends everything:");
    print(&format!(
        "  export KUBECONFIG={} PATH={path}:$PATH\n  kubectl get nodes,pods -o wide\n  kubectl delete pod {POD}\n",
        control_plane.admin_kubeconfig().display(),
    ));
}

fn say(line: &str) {
    print(&format!("\x1b[1m==> {line}\x1b[0m\n"));
}

/// Writes at once: a reader of a pipe wants to see each line when it comes.
fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
