//! Two agents with one Node name: one owns the Lease.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::wait;

use crate::agent::startup::{exit_line, exit_lines};
use crate::scene::{DEADLINE, Scene, renew_time};

/// An agent with the same Node name on another Mac.
fn another(scene: &Scene) -> Result<Agent> {
    let mac = Mac::new(scene.control_plane.sandbox())?;
    let kubeconfig = scene.control_plane.node_kubeconfig(&scene.node)?;
    Ok(Agent::new(&mac, &scene.node, &kubeconfig)?.flag("--node-ip", "127.0.0.1"))
}

/// The instance of the agent that owns a Lease.
fn instance(lease: &Lease) -> String {
    lease.annotations().get("tart-kubelet.tuist.dev/instance").cloned().unwrap_or_default()
}

#[tokio::test]
async fn second_agent_of_a_live_node_exits() -> Result<()> {
    let (scene, first) = Scene::with_agent("rival").await?;
    let second = another(&scene)?.start()?;
    let line = exit_line(&second).await?;
    ensure!(
        line.contains("another agent") && line.contains(&scene.node) && line.contains("--node-name"),
        "{line}"
    );
    first.process().ensure_running()?;
    // A restarted agent is not a second one.
    first.kill9()?;
    let before = renew_time(&scene.leases().await?.get(&scene.node).await?);
    let first = scene.agent.start()?;
    scene.lease_renewed_after(before).await.with_context(|| first.log().unwrap_or_default())?;
    ensure!(!first.log()?.contains("watching whether it is alive"), "{}", first.log()?);
    Ok(())
}

#[tokio::test]
async fn agent_takes_the_lease_of_a_dead_agent_which_then_exits() -> Result<()> {
    let (scene, first) = Scene::with_agent("heir").await?;
    let leases = scene.leases().await?;
    let before =
        wait::until(&leases, &scene.node, "there", DEADLINE, |lease| !instance(lease).is_empty()).await?;
    // The first agent is stopped. When it continues, it must notice that it has lost the Lease.
    first.kill(nix::sys::signal::Signal::SIGSTOP)?;
    let second = another(&scene)?.start()?;
    let taken = |lease: &Lease| !instance(lease).is_empty() && instance(lease) != instance(&before);
    wait::until(&leases, &scene.node, "taken over", DEADLINE, taken)
        .await
        .with_context(|| second.log().unwrap_or_default())?;
    first.kill(nix::sys::signal::Signal::SIGCONT)?;
    let words = exit_lines(&first).await?;
    ensure!(words.iter().any(|line| line.contains("another agent")), "{words:#?}");
    second.process().ensure_running()
}

/// Has an admission policy refuse the creation of the Node. The policy is in force when this returns.
async fn forbid_creation(scene: &Scene) -> Result<()> {
    let name = format!("no-{}", scene.node);
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nodes"]});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "ours", "expression": format!("object.metadata.name == '{}'", scene.node)}],
            "validations": [{"expression": "false", "message": "not yet"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    for object in [policy, binding] {
        scene.apply(&object).await?;
    }
    let node: Node = serde_json::from_value(json!({"metadata": {"name": scene.node}}))?;
    let try_only = PostParams { dry_run: true, ..PostParams::default() };
    wait::eventually("a policy that is in force", DEADLINE, async || {
        match scene.nodes.create(&try_only, &node).await {
            Err(kube::Error::Api(answer)) if answer.message.contains("not yet") => Ok(()),
            other => anyhow::bail!("{other:?}"),
        }
    })
    .await
}

#[tokio::test]
async fn agent_exits_when_it_loses_the_lease_before_registration() -> Result<()> {
    let scene = Scene::new("claimed").await?;
    forbid_creation(&scene).await?;
    let agent = scene.agent.start()?;
    let leases = scene.leases().await?;
    wait::until(&leases, &scene.node, "claimed", DEADLINE, |lease| !instance(lease).is_empty())
        .await
        .with_context(|| agent.log().unwrap_or_default())?;
    // Another agent takes the Lease.
    let other = json!({
        "metadata": {"annotations": {"tart-kubelet.tuist.dev/instance": "another"}},
        "spec": {"renewTime": MicroTime(Timestamp::now())},
    });
    leases.patch(&scene.node, &PatchParams::default(), &Patch::Merge(other)).await?;
    let name = format!("no-{}", scene.node);
    scene
        .kubectl
        .run(["delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", &name])
        .await?;
    let words = exit_lines(&agent).await?;
    ensure!(words.iter().any(|line| line.contains("another agent (another)")), "{words:#?}");
    let lease = leases.get(&scene.node).await?;
    assert_eq!(instance(&lease), "another", "the Lease is still the other one's");
    Ok(())
}
