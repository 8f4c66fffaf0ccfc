//! Pods end in their own time before a host is given back, and no Node is touched that is not a machine's.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tart_kubelet_tests::wait::{eventually, until, until_gone};

use super::machine::{KIND, machine};
use super::scene::{DEADLINE, IMAGE, Scene, name, reason};

/// The Pod has a finalizer of the test: how it ended can be read after it was evicted.
#[tokio::test]
async fn a_job_ends_in_its_own_time_before_its_mac_is_given_back() -> Result<()> {
    let Some(mut scene) = Scene::new("drain", 1).await? else { return Ok(()) };
    scene.start_provider(&[]).await?;
    scene.deploy("runners", 1, &json!({})).await?;
    let node = name(&scene.ready(1).await?[0]);
    let job = "trap 'echo it is told to end; sleep 2; exit 7' TERM; echo it runs; while :; do sleep 1; done";
    let pod: Pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "job", "finalizers": ["tuist.dev/test"] },
        "spec": {
            "restartPolicy": "Never", "nodeSelector": { "kubernetes.io/hostname": node }, "terminationGracePeriodSeconds": 120,
            "tolerations": [{ "key": "tuist.dev/macos", "operator": "Exists" }],
            "containers": [{ "name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", job] }],
        },
    }))?;
    scene.pods().create(&PostParams::default(), &pod).await?;
    eventually("the job to run", DEADLINE, async || {
        let log = scene.kubectl().run(["logs", "job"]).await?;
        ensure!(log.contains("it runs"), "{log}");
        Ok(())
    })
    .await?;

    scene.kubectl().run(["scale", "machinedeployment", "runners", "--replicas=0"]).await?;
    let id = scene.reinstalled().await?;
    let read = scene.pods().get("job").await?;
    let ended = read.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let ended = ended.and_then(|all| all.first()?.state.as_ref()?.terminated.as_ref());
    assert_eq!(ended.map(|ended| ended.exit_code), Some(7), "{:?}", read.status);
    ensure!(scene.events("Draining").await?.contains("1 Pods are left"), "no event tells of it");
    ensure!(scene.events("Drained").await?.contains("no Pods any more"), "no event tells of its end");
    let free = Patch::Merge(json!({ "metadata": { "finalizers": [] } }));
    scene.pods().patch("job", &PatchParams::default(), &free).await?;
    scene.install_anew(&id).await?;
    until_gone(&scene.api(KIND), &node, DEADLINE).await?;
    scene.nothing_is_left_of(&node).await
}

/// A Node of the cluster has the machine's name by chance, and is no Mac.
#[tokio::test]
async fn a_node_with_a_machines_name_that_is_not_its_own_is_left_alone() -> Result<()> {
    let Some(mut scene) = Scene::new("taken", 1).await? else { return Ok(()) };
    let (id, mine) = (scene.macs[0].0.clone(), format!("{}-1", scene.namespace));
    let nodes = Api::<Node>::all(scene.client.clone());
    let linux: Node = serde_json::from_value(json!({
        "metadata": { "name": mine, "labels": { "kubernetes.io/os": "linux" } }, "spec": { "providerID": "hcloud://1" },
    }))?;
    nodes.create(&PostParams::default(), &linux).await?;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "elsewhere" },
        "spec": { "nodeName": mine, "containers": [{ "name": "main", "image": "registry.test/linux:1" }],
                  "tolerations": [{ "operator": "Exists" }] },
    }))?;
    scene.pods().create(&PostParams::default(), &pod).await?;
    let spec = json!({ "adoptPoolPrefix": "tuist-pool-", "fleetName": "fleet" });
    scene.api(KIND).create(&PostParams::default(), &machine(&mine, &json!({}), &spec)?).await?;
    scene.start_provider(&[]).await?;
    scene
        .machines_until("a machine whose name is taken", |machines| {
            reason(&machines[0], "Bootstrapped").is_some_and(|(_, reason)| reason == "NodeNameTaken")
        })
        .await?;
    scene.api(KIND).delete(&mine, &DeleteParams::default()).await?;
    assert_eq!(scene.reinstalled().await?, id);
    scene.install_anew(&id).await?;
    until_gone(&scene.api(KIND), &mine, DEADLINE).await?;
    let uid = nodes.get(&mine).await?.metadata.deletion_timestamp;
    assert_eq!(uid, None);
    let left = scene.pods().get("elsewhere").await?;
    assert_eq!(left.metadata.deletion_timestamp, None);
    nodes.delete(&mine, &DeleteParams::default()).await?;
    Ok(())
}

/// An operator detaches a host that is in use: it runs on, and nothing is done to it.
#[tokio::test]
async fn a_machine_that_is_paused_and_detached_leaves_its_host_and_its_node_alone() -> Result<()> {
    let Some(mut scene) = Scene::new("detached", 1).await? else { return Ok(()) };
    let mine = format!("{}-1", scene.namespace);
    let spec = json!({ "adoptPoolPrefix": "tuist-pool-", "fleetName": "fleet" });
    scene.api(KIND).create(&PostParams::default(), &machine(&mine, &json!({}), &spec)?).await?;
    scene.start_provider(&[]).await?;
    scene.ready(1).await?;
    let pod = scene.run_pod(&mine).await?;
    let runs = |pod: &Pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
            && pod.metadata.deletion_timestamp.is_none()
    };
    until(&scene.pods(), &pod, "Running", DEADLINE, runs).await?;
    // The Secret with its credentials was deleted by mistake: the provider writes it anew from what the pool knows.
    let secret = format!("{mine}-bootstrap");
    scene.kubectl().run(["delete", "secret", &secret]).await?;
    scene.start_provider(&[]).await?;
    eventually("the credentials to be there again", DEADLINE, async || {
        let user =
            scene.kubectl().run(["get", "secret", &secret, "-o", "jsonpath={.data.ssh-username}"]).await?;
        ensure!(!user.is_empty(), "no user");
        Ok(())
    })
    .await?;
    let elsewhere = json!({ "spec": { "zone": "fr-par-2" } }).to_string();
    let refused = scene.kubectl().run(["patch", "samm", &mine, "--type=merge", "-p", &elsewhere]).await;
    ensure!(format!("{refused:?}").contains("zone cannot be changed"), "{refused:?}");
    let writes = scene.scaleway.world().writes().len();
    let (api, params) = (scene.api(KIND), PatchParams::default());
    let pause = json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": "true" } } });
    api.patch(&mine, &params, &Patch::Merge(pause)).await?;
    api.patch_status(&mine, &params, &Patch::Merge(json!({ "status": { "serverID": null } }))).await?;
    api.patch(&mine, &params, &Patch::Merge(json!({ "spec": { "providerID": null } }))).await?;
    api.delete(&mine, &DeleteParams::default()).await?;
    until_gone(&api, &mine, DEADLINE).await?;
    let now = scene.scaleway.world().writes().len();
    assert_eq!(now, writes, "{:?}", scene.scaleway.world().writes());
    ensure!(runs(&scene.pods().get(&pod).await?), "the Pod does not run any more");
    let node = Api::<Node>::all(scene.client.clone()).get(&mine).await?;
    assert_eq!(node.metadata.deletion_timestamp, None);
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_is_paused_has_its_machines_wait() -> Result<()> {
    let Some(mut scene) = Scene::new("halts", 1).await? else { return Ok(()) };
    let pause = async |is: bool| {
        let patch = json!({ "spec": { "paused": is } }).to_string();
        scene.kubectl().run(["patch", "cluster", &scene.namespace, "--type=merge", "-p", &patch]).await
    };
    pause(true).await?;
    let mine = format!("{}-1", scene.namespace);
    let labels = json!({ "labels": { "cluster.x-k8s.io/cluster-name": scene.namespace } });
    let spec = json!({ "adoptPoolPrefix": "tuist-pool-", "fleetName": "fleet" });
    scene.api(KIND).create(&PostParams::default(), &machine(&mine, &labels, &spec)?).await?;
    scene.start_provider(&[]).await?;
    scene.machines_until("a finalizer", |machines| machines[0]["metadata"]["finalizers"].is_array()).await?;
    // Another machine, of no Cluster, is attended to after it: this one was looked at and left alone.
    let other = format!("{}-2", scene.namespace);
    scene.api(KIND).create(&PostParams::default(), &machine(&other, &json!({}), &spec)?).await?;
    let of =
        |machines: &[Value], name: &str| machines.iter().find(|one| one["metadata"]["name"] == name).cloned();
    let machines = scene
        .machines_until("the other machine's host", |machines| {
            of(machines, &other).is_some_and(|machine| machine["status"]["serverID"].is_string())
        })
        .await?;
    assert_eq!(of(&machines, &mine).context("a machine")?["status"]["serverID"], Value::Null);
    ensure!(scene.add_mac().await?, "no further Mac");
    scene
        .kubectl()
        .run(["patch", "cluster", &scene.namespace, "--type=merge", "-p", r#"{"spec":{"paused":false}}"#])
        .await?;
    scene
        .machines_until("a host for the machine that waited", |machines| {
            of(machines, &mine).is_some_and(|machine| machine["status"]["serverID"].is_string())
        })
        .await
        .map(drop)
}

/// The provider died after the host had got the machine's name, and the machine was deleted before the next one came. And a machine of no
/// fleet leaves no key.
#[tokio::test]
async fn a_machine_that_is_deleted_between_claim_and_write_gives_its_host_back_and_leaves_no_key()
-> Result<()> {
    let Some(mut scene) = Scene::new("between", 2).await? else { return Ok(()) };
    let (claimed, finalizers) = (
        format!("{}-1", scene.namespace),
        json!({ "finalizers": ["scalewayapplesilicon.cluster.x-k8s.io/finalizer"] }),
    );
    let spec = json!({ "adoptPoolPrefix": "tuist-pool-" });
    let id = scene.macs[1].0.clone();
    scene.scaleway.world().server(&id).context("a server")?.name.clone_from(&claimed);
    scene.api(KIND).create(&PostParams::default(), &machine(&claimed, &finalizers, &spec)?).await?;
    scene.api(KIND).delete(&claimed, &DeleteParams::default()).await?;
    scene.start_provider(&[]).await?;
    assert_eq!(scene.reinstalled().await?, id);
    scene.install_anew(&id).await?;
    until_gone(&scene.api(KIND), &claimed, DEADLINE).await?;

    let alone = format!("{}-2", scene.namespace);
    scene.api(KIND).create(&PostParams::default(), &machine(&alone, &json!({}), &spec)?).await?;
    let machines =
        scene.machines_until("a host", |machines| machines[0]["status"]["serverID"].is_string()).await?;
    let held = machines[0]["status"]["serverID"].as_str().context("a host")?.to_owned();
    let key = format!("{}-{alone}", scene.namespace);
    ensure!(scene.scaleway.world().ssh_keys().iter().any(|known| known.name == key), "no key");
    scene.api(KIND).delete(&alone, &DeleteParams::default()).await?;
    eventually("the host to be wiped", DEADLINE, async || {
        let world = scene.scaleway.world();
        let wiped =
            world.writes().iter().any(|write| write.call == "reinstall-server" && write.server == held);
        ensure!(wiped, "it is not");
        Ok(())
    })
    .await?;
    scene.install_anew(&held).await?;
    until_gone(&scene.api(KIND), &alone, DEADLINE).await?;
    ensure!(!scene.scaleway.world().ssh_keys().iter().any(|known| known.name == key), "the key is left");
    let secrets = scene.kubectl().run(["get", "secrets", "-o", "name"]).await?;
    ensure!(!secrets.contains(&key), "{secrets}");
    Ok(())
}
