//! Two agents with one Node name, or with one home of tart's.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::proxy::Proxy;
use tart_kubelet_tests::wait;

use crate::agent::startup::last_words;
use crate::scene::{DEADLINE, Scene};

fn another(scene: &Scene) -> Result<Agent> {
    let mac = Mac::new(scene.control_plane.sandbox())?;
    let kubeconfig = scene.control_plane.node_kubeconfig(&scene.node)?;
    Ok(Agent::new(&mac, &scene.node, &kubeconfig)?.flag("--node-ip", "127.0.0.1"))
}

fn instance(lease: &Lease) -> String {
    lease.annotations().get("tart-kubelet.tuist.dev/instance").cloned().unwrap_or_default()
}

#[tokio::test]
async fn the_second_of_two_live_agents_refuses_in_words() -> Result<()> {
    let (scene, first) = Scene::with_agent("rival").await?;
    let second = another(&scene)?.start()?;
    let words = last_words(&second).await?;
    let [line] = words.as_slice() else { anyhow::bail!("not one line: {words:#?}") };
    ensure!(
        line.contains("another agent") && line.contains(&scene.node) && line.contains("--node-name"),
        "{line}"
    );
    first.process().ensure_running()?;
    // Its own restart is not a second agent.
    first.kill9()?;
    let leases: Api<Lease> = Api::namespaced(scene.control_plane.client().await?, "kube-node-lease");
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    let before = renewed(&leases.get(&scene.node).await?);
    let first = scene.agent.start()?;
    wait::until(&leases, &scene.node, "renewed", DEADLINE, |lease| renewed(lease) != before)
        .await
        .with_context(|| first.log().unwrap_or_default())?;
    ensure!(!first.log()?.contains("watching whether it is alive"), "{}", first.log()?);
    Ok(())
}

#[tokio::test]
async fn an_agent_on_a_new_mac_takes_over_from_a_dead_one_which_then_gives_way() -> Result<()> {
    let (scene, first) = Scene::with_agent("heir").await?;
    let leases: Api<Lease> = Api::namespaced(scene.control_plane.client().await?, "kube-node-lease");
    let before =
        wait::until(&leases, &scene.node, "there", DEADLINE, |lease| !instance(lease).is_empty()).await?;
    // Stopped, not killed: it comes back, and must notice that it has lost its Node.
    first.kill(nix::sys::signal::Signal::SIGSTOP)?;
    let second = another(&scene)?.start()?;
    let taken = |lease: &Lease| !instance(lease).is_empty() && instance(lease) != instance(&before);
    wait::until(&leases, &scene.node, "taken over", DEADLINE, taken)
        .await
        .with_context(|| second.log().unwrap_or_default())?;
    first.kill(nix::sys::signal::Signal::SIGCONT)?;
    let words = last_words(&first).await?;
    ensure!(words.iter().any(|line| line.contains("another agent")), "{words:#?}");
    second.process().ensure_running()
}

/// Keeps everybody from creating a Node, by a policy of the API server that is in force when this returns.
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
        scene.kubectl.apply(&object.to_string()).await?;
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
async fn an_agent_that_has_claimed_a_node_and_not_registered_it_gives_way_too() -> Result<()> {
    let scene = Scene::new("claimed").await?;
    forbid_creation(&scene).await?;
    let agent = scene.agent.start()?;
    let leases: Api<Lease> = Api::namespaced(scene.control_plane.client().await?, "kube-node-lease");
    wait::until(&leases, &scene.node, "claimed", DEADLINE, |lease| !instance(lease).is_empty())
        .await
        .with_context(|| agent.log().unwrap_or_default())?;
    // Another one takes it, which the first has no reason to expect.
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
    let words = last_words(&agent).await?;
    ensure!(words.iter().any(|line| line.contains("another agent (another)")), "{words:#?}");
    let lease = leases.get(&scene.node).await?;
    assert_eq!(instance(&lease), "another", "the Lease is still the other one's");
    Ok(())
}

#[tokio::test]
async fn one_home_of_tarts_serves_one_node() -> Result<()> {
    let (scene, first) = Scene::with_agent("home").await?;
    scene.create(&scene.pod("lives", &json!({}), &json!({}))).await?;
    let vm = Scene::vm_of(&scene.phase("lives", "Running").await?)?;

    // Another Node and another state directory, and all that is here looks like an orphan.
    let other = format!("{}-other", scene.node);
    let kubeconfig = scene.control_plane.node_kubeconfig(&other)?;
    let second = Agent::new(&scene.mac, &other, &kubeconfig)?
        .flag("--node-ip", "127.0.0.1")
        .flag("--vm-gc-interval", "300ms")
        .flag("--vm-gc-min-age", "0s");
    let refused = async |words: &[&str]| -> Result<()> {
        let running = second.start()?;
        let said = last_words(&running).await?;
        let [line] = said.as_slice() else { anyhow::bail!("not one line: {said:#?}") };
        for words in words {
            ensure!(line.contains(words), "no {words} in {line}");
        }
        Ok(std::fs::remove_file(running.process().log_path())?)
    };
    refused(&["another tart-kubelet", &scene.node, "TART_HOME"]).await?;
    // The first one is away, and its VM runs on.
    first.kill9()?;
    refused(&[&scene.node, &vm, "tart stop"]).await?;
    assert_eq!(scene.running_vms().await?, [vm]);

    let first = scene.agent.start()?;
    scene.phase("lives", "Running").await?;
    scene.kubectl.run(["delete", "pod", "lives"]).await?;
    scene.nothing_left().await?;
    first.kill9()?;
    // Nothing of the first one's Pods is left: the host has another name now.
    let heir = second.start()?;
    wait::until(&scene.nodes, &other, "ready", DEADLINE, |node| {
        crate::scene::condition(node, "Ready") == "True"
    })
    .await
    .with_context(|| heir.log().unwrap_or_default())?;
    Ok(())
}

#[tokio::test]
async fn one_home_of_tarts_serves_one_cluster() -> Result<()> {
    let (scene, agent) = Scene::with_agent("clusters").await?;
    scene.create(&scene.pod("lives", &json!({}), &json!({}))).await?;
    let vm = Scene::vm_of(&scene.phase("lives", "Running").await?)?;
    agent.kill9()?;
    // The cluster is the same behind another address.
    let proxy = Proxy::start(scene.control_plane).await?;
    let kubeconfig = proxy.kubeconfig(&scene.control_plane.node_kubeconfig(&scene.node)?)?;
    let moved = scene.agent.clone().flag("--kubeconfig", &kubeconfig.display().to_string()).start()?;
    scene.looked_at("lives").await?;
    moved.kill9()?;
    // The Mac was a Node of the same name in another cluster, and no Pod of that one is in this.
    let path = scene.mac.tart_home().join("tart-kubelet.json");
    let ours = std::fs::read_to_string(&path)?;
    let mut owner: Value = serde_json::from_str(&ours)?;
    owner["cluster"] = json!({"server": "https://elsewhere.test:6443/", "authorities": ["0".repeat(64)]});
    std::fs::write(&path, owner.to_string())?;
    let stranger = scene.agent.clone().flag("--vm-gc-min-age", "0s").start()?;
    let words = last_words(&stranger).await?;
    let [line] = words.as_slice() else { anyhow::bail!("not one line: {words:#?}") };
    for words in ["another cluster (https://elsewhere.test:6443/)", &vm, "tart stop", "TART_HOME"] {
        ensure!(line.contains(words), "no {words} in {line}");
    }
    assert_eq!(scene.running_vms().await?, [vm]);
    std::fs::write(&path, ours)?;
    let _agent = scene.agent.start()?;
    let lives = scene.looked_at("lives").await?;
    assert_eq!(crate::scene::phase_of(&lives), "Running");
    Ok(())
}
