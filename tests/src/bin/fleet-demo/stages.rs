//! What the demo does, stage by stage. Each fails if it does not see what it is about.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::Value;
use tart_kubelet_tests::cluster_api::ClusterApi;
use tart_kubelet_tests::mac_host::MacHost;
use tart_kubelet_tests::wait::{eventually, until, until_gone};

use super::board::{is_ready, running_vms};
use super::kinds::{self, MACHINE, PROVIDER_MACHINE};
use super::print::{print, say};
use super::surprise::{Expected, leader_metrics, shown};
use super::workload::{self, builds, counting, ends_with, lines_of, phase, pod};
use super::world::{BUILDERS, DEADLINE, FLEET, FULL_NAME, IMAGE, RELEASE, STRANDED, TAGS, World};

const TART: &str = "/opt/homebrew/bin/tart";
/// What the image that is baked is called.
const BAKED: &str = "registry.test/macos/baked:1";
/// What distinguishes it from the image that it is made of.
const RECIPE: &str = "echo 'Xcode of the demo' >/Users/admin/xcode.txt";

/// The chart, with one Mac in the fleet and one builder.
pub(crate) async fn install(world: &World) -> Result<String> {
    let fleets = [
        "macosFleet.enabled=true",
        "macosFleet.replicas=1",
        "buildersFleet.enabled=true",
        "buildersFleet.replicas=1",
    ];
    world.deploy("install", &fleets).await?;
    say("making the kubeconfig with which Cluster API looks at the Nodes, as docs/run-a-fleet.md has it");
    let token = format!("{FULL_NAME}-capi-remote-token");
    ClusterApi::connect(&world.control_plane, RELEASE, &format!("{FULL_NAME}-capi"), &token).await?;
    nodes(world, 1).await?;
    Ok("helm installed the chart; a Mac and a builder became Nodes".to_owned())
}

/// Three Macs in the fleet.
pub(crate) async fn scale_up(world: &World) -> Result<String> {
    // Not by `kubectl scale`: helm would find the field taken at its next upgrade.
    world.deploy("upgrade", &["macosFleet.replicas=3"]).await?;
    nodes(world, 3).await?;
    let what = ["-n", RELEASE, "get", "machinedeployments,machines"];
    world.show(&world.kubectl(), &what).await?;
    Ok("the fleet grew to three Macs, and Cluster API found their Nodes".to_owned())
}

/// Waits until the fleet has so many machines, the builders one, and Cluster API has found the Nodes of all.
async fn nodes(world: &World, fleet: usize) -> Result<()> {
    eventually("Nodes", DEADLINE, async || {
        world.ready(FLEET, fleet).await?;
        world.ready(BUILDERS, 1).await?;
        let machines = world.all(MACHINE).await?;
        let without = machines.iter().find(|machine| !machine["status"]["nodeRef"]["name"].is_string());
        ensure!(
            without.is_none(),
            "Cluster API has not found the Node of {}",
            without.map(shown).unwrap_or_default()
        );
        let ready = world.nodes().await?.iter().filter(|node| is_ready(node)).count();
        ensure!(
            ready == fleet + 1 && machines.len() == fleet + 1,
            "{ready} Nodes of {} machines",
            machines.len()
        );
        Ok(())
    })
    .await
}

/// Pods that run on, one that succeeds and one that fails; logs and exec.
pub(crate) async fn pods(world: &World, expected: &mut Expected) -> Result<String> {
    let kubectl = world.pods_kubectl();
    say("$ kubectl apply -f builds.yaml -f hello.yaml -f tests.yaml");
    let hello = "echo \"hello from $(hostname)\"; sw_vers; sleep 2; echo done";
    for manifest in [
        builds(),
        pod("hello", FLEET, IMAGE, hello),
        pod("tests", FLEET, IMAGE, "echo 'one of the tests fails'; exit 7"),
    ] {
        print(&kubectl.apply(&manifest.to_string()).await?);
    }
    expected.failure("tests", 7);
    let counters = counting(world).await?;
    let name = counters.first().map(kube::ResourceExt::name_any).context("no Pod")?;
    eventually("a certificate for logs and exec", DEADLINE, async || {
        kubectl.run(["logs", &name]).await.map(drop)
    })
    .await?;
    let version = world.show(&kubectl, &["exec", &name, "--", "sw_vers"]).await?;
    ensure!(version.contains("macOS"), "the guest is no macOS: {version}");
    ends_with(world, "hello", 0).await?;
    let log = world.show(&kubectl, &["logs", "hello"]).await?;
    ensure!(log.contains("hello from") && log.trim_end().ends_with("done"), "the log is not complete: {log}");
    ends_with(world, "tests", 7).await?;
    for counter in &counters {
        lines_of(world, counter).await?;
    }
    world.show(&kubectl, &["delete", "pod", "hello", "tests"]).await?;
    Ok("six Pods ran, with logs and exec; one failed with the exit code that it should".to_owned())
}

/// An image is made and pushed on the builder by other hands than the agent's, beside a Pod.
pub(crate) async fn bake(world: &World) -> Result<String> {
    let builder = world.ready(BUILDERS, 1).await?.remove(0);
    let mac = mac_of(world, &builder)?;
    let kubectl = world.pods_kubectl();
    say("a Pod runs on the builder, too");
    kubectl.apply(&pod("beside", BUILDERS, IMAGE, "echo beside; exec sleep 3600").to_string()).await?;
    until(&world.pods(), "beside", "Running", DEADLINE, |pod| phase(pod) == "Running").await?;
    // The registry takes images of the builder's user.
    mac.ssh("true").await?.ok()?;
    let registry = mac.tart_host().join("registry/registry.test/macos");
    std::fs::set_permissions(&registry, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    for script in [
        format!("{TART} clone {IMAGE} bake"),
        format!("nohup {TART} run bake --no-graphics >/dev/null 2>&1 </dev/null & {TART} ip --wait 60 bake"),
        format!("{TART} exec bake /bin/sh -c \"{RECIPE}\""),
        format!("{TART} stop bake"),
        format!("{TART} push bake {BAKED}"),
    ] {
        say(&format!("$ ssh builder '{}'", script.replace("/opt/homebrew/bin/", "")));
        print(&mac.ssh(&script).await?.ok()?);
    }
    let vms: Vec<_> = running_vms(&mac).into_iter().map(|(name, _)| name).collect();
    ensure!(vms.iter().any(|name| name == "bake"), "the agent has deleted the VM of another: {vms:?}");
    let is_running = world.pods().get("beside").await?;
    ensure!(phase(&is_running) == "Running", "the Pod beside the bake is {}", phase(&is_running));

    say("the simulated registry shows the image to all Macs");
    for (_, other) in world.pool.all() {
        copy(&registry.join("baked"), &other.tart_host().join("registry/registry.test/macos/baked"))?;
    }
    kubectl.apply(&pod("baked", FLEET, BAKED, "cat /Users/admin/xcode.txt").to_string()).await?;
    ends_with(world, "baked", 0).await?;
    let log = world.show(&kubectl, &["logs", "baked"]).await?;
    ensure!(log.contains("Xcode of the demo"), "the Pod does not run what was baked: {log}");
    world.show(&kubectl, &["delete", "pod", "beside", "baked"]).await?;
    Ok("an image was baked on the builder beside a Pod, and a Pod of the fleet ran it".to_owned())
}

/// Another agent goes to every Mac; VMs, Pods and their logs go on.
pub(crate) async fn roll(world: &World) -> Result<String> {
    let counters = counting(world).await?;
    let before = digests(world).await?;
    let vms_before = vms(world);
    let mut said = Vec::new();
    for counter in &counters {
        said.push(lines_of(world, counter).await?);
    }
    world.deploy("upgrade", &[&format!("provider.image.tag={}", TAGS[1])]).await?;
    let after = eventually("the new agent on all Macs", DEADLINE, async || {
        nodes_are(world).await?;
        let now = digests(world).await?;
        let old = now.iter().filter(|(machine, digest)| before.get(*machine) == Some(*digest)).count();
        ensure!(old == 0 && now.len() == before.len(), "{old} of {} have the old agent", now.len());
        Ok(now)
    })
    .await?;
    ensure!(after.keys().eq(before.keys()), "the roll has changed the machines: {after:?}");
    let vms_after = vms(world);
    ensure!(vms_after == vms_before, "VMs were {vms_before:?} and are {vms_after:?}");
    let ids =
        |pods: &[Pod]| pods.iter().map(kube::ResourceExt::uid).collect::<std::collections::BTreeSet<_>>();
    ensure!(ids(&counting(world).await?) == ids(&counters), "the roll has changed the Pods");
    eventually("logs that go on without a gap", DEADLINE, async || {
        for (counter, said) in counters.iter().zip(&said) {
            let now = lines_of(world, counter).await?;
            ensure!(now > *said, "{} has said nothing since", counter.name_any());
        }
        Ok(())
    })
    .await?;
    let count = vms_after.values().map(Vec::len).sum::<usize>();
    let rolled = [
        "-n",
        RELEASE,
        "get",
        "events",
        "--field-selector=reason=AgentRolled",
        "-o",
        "custom-columns=MACHINE:.involvedObject.name,WORDS:.message",
    ];
    world.show(&world.kubectl(), &rolled).await?;
    Ok(format!(
        "a new agent rolled through {} Macs; {count} VMs ran on, and no line of their logs is missing",
        after.len()
    ))
}

/// A Mac burns down: its Pods go elsewhere, and its machine is replaced by one that waits, as no Mac is free.
pub(crate) async fn lose(world: &World, expected: &mut Expected) -> Result<String> {
    let lost = busiest(world, &world.ready(FLEET, 3).await?).await?;
    let (name, owner) = (kinds::name(&lost), owner(&lost)?);
    let id = lost["status"]["serverID"].as_str().context("a machine without a host")?;
    for (kind, reason) in [
        ("Pod", "NodeNotReady"),
        ("Pod", "FailedScheduling"),
        (PROVIDER_MACHINE.kind(), "HostGone"),
        (PROVIDER_MACHINE.kind(), "NoAvailableHost"),
    ] {
        expected.warning(kind, reason);
    }
    say(&format!("the Mac of {name} burns down"));
    world.pool.lose(id);
    eventually("a Node that is not ready", DEADLINE, async || {
        let nodes = world.nodes().await?;
        let node = nodes.iter().find(|node| node.name_any() == name).context("no Node")?;
        ensure!(!is_ready(node), "the Node is ready");
        Ok(())
    })
    .await?;
    let machine = format!("machine/{owner}");
    world.show(&world.kubectl(), &["-n", RELEASE, "delete", &machine]).await?;
    until_gone(&PROVIDER_MACHINE.api(&world.client, RELEASE), &name, DEADLINE).await?;
    eventually("a machine that waits for a Mac", DEADLINE, async || {
        let machines = world.machines(FLEET).await?;
        let waits = |machine: &Value| {
            kinds::condition(machine, "Provisioned").is_some_and(|(_, reason)| reason == "NoAvailableHost")
        };
        ensure!(machines.len() == 3 && machines.iter().filter(|one| waits(one)).count() == 1, "{machines:?}");
        let nodes = world.nodes().await?;
        ensure!(nodes.iter().all(|node| node.name_any() != name), "the Node of the lost Mac is there");
        let pods = world.pods().list(&ListParams::default()).await?.items;
        let is_left = pods.iter().any(|pod| workload::node(pod) == Some(name.as_str()));
        ensure!(!is_left, "a Pod of the lost Mac is there");
        Ok(())
    })
    .await?;
    counting(world).await?;
    Ok("a Mac burned down; its Pods run elsewhere, and nothing is left of its machine and its Node"
        .to_owned())
}

/// The stranded Mac is counted until it is asked for, then wiped and given back, and the machine that waits gets it.
pub(crate) async fn reclaim(world: &World) -> Result<String> {
    let counted = "scaleway_orphan_servers{zone=\"fr-par-1\",reason=\"no_machine\"} 1";
    eventually("a count of the stranded Mac", DEADLINE, async || {
        let page = leader_metrics(world).await?;
        let orphans = page
            .lines()
            .find(|line| line.starts_with("scaleway_orphan_servers{") && line.contains("no_machine"));
        ensure!(orphans == Some(counted), "the provider counts {orphans:?}");
        Ok(())
    })
    .await?;
    say(&format!("the provider counts the stranded Mac and leaves it alone: {counted}"));
    let id = {
        let mut scaleway = world.pool.scaleway().world();
        let servers = scaleway.servers();
        servers.iter().find(|server| server.name == STRANDED).map(|server| server.id.clone())
    };
    let id = id.context("the stranded Mac was touched before it was asked for")?;
    let writes = world.pool.scaleway().world().writes().iter().filter(|write| write.server == id).count();
    ensure!(writes == 0, "the stranded Mac was touched before it was asked for");
    world.deploy("upgrade", &["macosFleet.orphanReclaim.activeReclaim=true"]).await?;
    eventually("the stranded Mac to be wiped", DEADLINE, async || {
        let scaleway = world.pool.scaleway().world();
        let mut writes = scaleway.writes().iter().filter(|write| write.call == "reinstall-server");
        ensure!(writes.next().is_some_and(|write| write.server == id), "it is not");
        ensure!(writes.next().is_none(), "another Mac was wiped, too");
        Ok(())
    })
    .await?;
    say("Scaleway installs it anew");
    world.pool.install_anew(&id).await?;
    nodes(world, 3).await?;
    let machines = world.ready(FLEET, 3).await?;
    ensure!(machines.iter().any(|machine| machine["status"]["serverID"] == id.as_str()), "no machine has it");
    ensure!(
        leader_metrics(world).await?.contains("scaleway_orphan_servers_reclaimed_total 1"),
        "it is not counted as given back"
    );
    counting(world).await?;
    Ok("the stranded Mac was counted, then given back wiped, and replaced the one that burned down"
        .to_owned())
}

/// The machine on whose Node most Pods are.
async fn busiest(world: &World, machines: &[Value]) -> Result<Value> {
    let pods = counting(world).await?;
    let count = |machine: &&Value| {
        let name = kinds::name(machine);
        pods.iter().filter(|pod| workload::node(pod) == Some(name.as_str())).count()
    };
    machines.iter().max_by_key(count).cloned().context("no machine")
}

/// The end: what kubectl says.
pub(crate) async fn show_all(world: &World) -> Result<()> {
    world.show(&world.pods_kubectl(), &["get", "nodes"]).await?;
    let what = ["-n", RELEASE, "get", "machinedeployments,machines,scalewayapplesiliconmachines"];
    world.show(&world.kubectl(), &what).await?;
    world.show(&world.pods_kubectl(), &["get", "pods", "-o", "wide"]).await.map(drop)
}

async fn nodes_are(world: &World) -> Result<()> {
    world.ready(FLEET, 3).await?;
    world.ready(BUILDERS, 1).await.map(drop)
}

/// The digest of each machine's configuration.
async fn digests(world: &World) -> Result<BTreeMap<String, Value>> {
    let all = world.all(PROVIDER_MACHINE).await?;
    Ok(all
        .iter()
        .map(|machine| (kinds::name(machine), machine["status"]["hostConfigHash"].clone()))
        .collect())
}

/// The VMs of each Mac, and whether they run.
fn vms(world: &World) -> BTreeMap<String, Vec<(String, bool)>> {
    world.pool.all().into_iter().map(|(id, mac)| (id, running_vms(&mac))).collect()
}

fn mac_of(world: &World, machine: &Value) -> Result<Arc<MacHost>> {
    world.pool.mac(machine["status"]["serverID"].as_str().context("a machine without a host")?)
}

/// The Machine of Cluster API.
fn owner(machine: &Value) -> Result<String> {
    let owner = machine["metadata"]["ownerReferences"][0]["name"].as_str();
    owner.map(str::to_owned).context("a machine without an owner")
}

fn copy(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    if from == to || to.exists() {
        return Ok(());
    }
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status()?;
    ensure!(copied.success(), "cannot copy an image to {}", to.display());
    Ok(())
}
