//! `MachineDeployment`s, from free Macs to Nodes and back.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tart_kubelet_tests::wait::{eventually, until};

use super::scene::{DEADLINE, IMAGE, Scene, is_true, name, reason};

#[tokio::test]
async fn a_machine_deployment_makes_nodes_of_free_macs_rolls_them_and_gives_them_back() -> Result<()> {
    let Some(mut scene) = Scene::new("fleet", 3).await? else { return Ok(()) };
    scene.start_provider(&[]).await?;
    scene.deploy("runners", 3, &json!({})).await?;
    scene.ready(3).await?;

    // Cluster API finds the Nodes by providerID, through the kubeconfig of the workload connection.
    eventually("an available MachineDeployment", DEADLINE, async || {
        let machines = scene.all("Machine").await?;
        ensure!(
            machines.iter().all(|machine| machine["status"]["nodeRef"]["name"].is_string()),
            "no nodeRef: {machines:?}"
        );
        let deployments = scene.all("MachineDeployment").await?;
        let deployment = deployments.first().context("no MachineDeployment")?;
        ensure!(
            deployment["status"]["availableReplicas"] == 3 && is_true(deployment, "Available"),
            "{}",
            deployment["status"]
        );
        Ok(())
    })
    .await?;

    // A Pod runs on each, and kubectl reads its log through a certificate that the provider has approved.
    let nodes = scene.nodes().await?;
    assert_eq!(nodes.len(), 3);
    let mut pods = Vec::new();
    for node in &nodes {
        pods.push(scene.run_pod(node.metadata.name.as_deref().context("a name")?).await?);
    }
    for pod in &pods {
        until(&scene.pods(), pod, "Running", DEADLINE, |pod| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        })
        .await?;
        eventually("the log of a Pod", DEADLINE, async || {
            let log = scene.kubectl().run(["logs", pod]).await?;
            ensure!(log.contains("it runs"), "{log}");
            Ok(())
        })
        .await?;
    }
    let tokens = scene
        .control_plane
        .kubectl()
        .run([
            "get",
            "secrets",
            "-n",
            "kube-system",
            "-l",
            "tuist.dev/managed-by=tart-provider",
            "-o",
            "jsonpath={.items[*].metadata.annotations.tuist\\.dev/machine-namespace}",
        ])
        .await?;
    ensure!(!tokens.contains(&scene.namespace), "a bootstrap token is left: {tokens}");

    // A new agent rolls through the fleet, and no Pod notices.
    let before = scene.all("ScalewayAppleSiliconMachine").await?;
    let hash = |machine: &serde_json::Value| machine["status"]["hostConfigHash"].clone();
    scene.new_agent()?;
    scene.start_provider(&[]).await?;
    scene
        .machines_until("machines with the new agent", |machines| {
            machines.len() == 3
                && machines.iter().all(|machine| {
                    let old = before.iter().find(|old| name(old) == name(machine)).map(hash);
                    is_true(machine, "HostUpToDate") && Some(hash(machine)) != old
                })
        })
        .await?;
    for pod in &pods {
        let read = scene.pods().get(pod).await?;
        let status = read.status.context("a status")?;
        ensure!(status.phase.as_deref() == Some("Running"), "{status:?}");
        let restarts: i32 = status.container_statuses.iter().flatten().map(|one| one.restart_count).sum();
        assert_eq!(restarts, 0);
    }
    ensure!(
        scene.events("AgentRolled").await?.contains("went from configuration"),
        "no event tells of the roll"
    );

    // Scaled down, one Mac is drained and goes back to the pool, wiped.
    scene.kubectl().run(["scale", "machinedeployment", "runners", "--replicas=2"]).await?;
    let id = scene.reinstalled().await?;
    scene.install_anew(&id).await?;
    scene.machines_until("one machine less", |machines| machines.len() == 2).await?;
    ensure!(
        scene.scaleway.world().server(&id).context("a server")?.name.starts_with("tuist-pool-"),
        "it is not free"
    );
    let wiped =
        scene.scaleway.world().writes().iter().filter(|write| write.call == "reinstall-server").count();
    assert_eq!(wiped, 1, "{:?}", scene.scaleway.world().writes());
    eventually("the Node and its Pod to go", DEADLINE, async || {
        let nodes = scene.control_plane.kubectl().run(["get", "nodes", "-o", "name"]).await?;
        let left = pods.iter().filter(|pod| nodes.contains(pod.trim_start_matches("pod-"))).count();
        ensure!(left == 2, "{nodes}");
        let pods = scene.kubectl().run(["get", "pods", "-o", "name"]).await?;
        ensure!(pods.lines().count() == 2, "{pods}");
        Ok(())
    })
    .await?;
    let left = scene.all("ScalewayAppleSiliconMachine").await?;
    let gone = before.iter().map(name).find(|old| left.iter().all(|machine| name(machine) != *old));
    scene.nothing_is_left_of(&gone.context("a machine that is gone")?).await
}

#[tokio::test]
async fn a_mac_that_burns_down_is_replaced() -> Result<()> {
    let Some(mut scene) = Scene::new("burns", 2).await? else { return Ok(()) };
    scene.start_provider(&[]).await?;
    scene.deploy("runners", 1, &json!({})).await?;
    let machines = scene.ready(1).await?;
    let (old, id) =
        (name(&machines[0]), machines[0]["status"]["serverID"].as_str().context("a host")?.to_owned());

    // A Pod runs there, and one has a finalizer that only the agent of the Go provider would remove.
    let pod = scene.run_pod(&old).await?;
    until(&scene.pods(), &pod, "Running", DEADLINE, |pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    })
    .await?;
    let legacy: Pod = serde_json::from_value(json!({
        "metadata": { "name": "legacy", "finalizers": ["tart-kubelet.tuist.dev/vm-cleanup"] },
        "spec": { "nodeName": old, "containers": [{ "name": "main", "image": IMAGE }], "tolerations": [{ "operator": "Exists" }] },
    }))?;
    scene.pods().create(&PostParams::default(), &legacy).await?;

    // The Mac is gone, and so is its server.
    let at = scene.macs.iter().position(|(known, _)| *known == id).context("an unknown host")?;
    drop(scene.macs.remove(at));
    scene.scaleway.world().remove(&id);
    let owner =
        machines[0]["metadata"]["ownerReferences"][0]["name"].as_str().context("an owner")?.to_owned();
    scene.api("Machine").delete(&owner, &DeleteParams::default()).await?;

    let replaced = scene
        .machines_until("another machine", |machines| {
            machines.len() == 1 && name(&machines[0]) != old && is_true(&machines[0], "Ready")
        })
        .await?;
    assert_ne!(replaced[0]["status"]["serverID"], json!(id));
    scene.nothing_is_left_of(&old).await
}

/// The agent of a new release ends as soon as it is started. One Mac finds out, and is put back to the old one.
#[tokio::test]
async fn an_agent_that_does_not_stay_halts_the_fleet_after_one_mac() -> Result<()> {
    let Some(mut scene) = Scene::new("halted", 2).await? else { return Ok(()) };
    scene.start_provider(&[]).await?;
    scene.deploy("runners", 2, &json!({})).await?;
    let before = scene.ready(2).await?;
    let hash = |machine: &serde_json::Value| machine["status"]["hostConfigHash"].clone();
    let old = hash(&before[0]);

    let good = scene.break_agent()?;
    scene.start_provider(&[]).await?;
    let is = |machine: &serde_json::Value, wanted: &str| {
        reason(machine, "HostUpToDate").is_some_and(|(_, reason)| reason == wanted)
    };
    let halted = scene
        .machines_until("one machine that failed, and one that waits", |machines| {
            machines.iter().any(|machine| is(machine, "RollFailed"))
                && machines.iter().any(|machine| is(machine, "RollHalted"))
        })
        .await?;
    let failed = halted.iter().find(|machine| is(machine, "RollFailed")).context("a machine")?;
    for machine in &halted {
        let known = before.iter().find(|one| name(one) == name(machine)).context("a machine")?;
        assert_eq!(hash(machine), hash(known), "{}", machine["status"]);
    }
    let waits = halted.iter().find(|machine| is(machine, "RollHalted")).context("a machine")?;
    ensure!(waits["status"]["tartKubeletUpdateAttempts"].is_null(), "{}", waits["status"]);

    // An operator asks for another try, which is told.
    scene.kubectl().run(["annotate", "samm", &name(failed), "tuist.dev/retry-roll=now"]).await?;
    eventually("another try", DEADLINE, async || {
        let events = scene.events("AgentRollRetried").await?;
        ensure!(events.contains(&name(failed)), "{events}");
        Ok(())
    })
    .await?;
    // The next release is in order, and goes to both.
    scene.mend_agent(good)?;
    scene.start_provider(&[]).await?;
    scene
        .machines_until("machines with the next agent", |machines| {
            machines.iter().all(|machine| is_true(machine, "HostUpToDate") && hash(machine) != old)
        })
        .await
        .map(drop)
}
