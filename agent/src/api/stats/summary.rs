//! `/stats/summary`: a sample in the kubelet's JSON.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::sample::{CpuSample, Sample, VmSample};
use crate::os::availability::Availability;

/// The summary of a Node.
pub(in crate::api) fn render(node: &str, sample: &Sample, max_processes: Option<u64>) -> Value {
    let at = sample.at;
    let mut shown = Map::from_iter([("nodeName".to_owned(), json!(node))]);
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            shown.insert(name.to_owned(), value);
        }
    };
    add("cpu", sample.node.cpu.map(|used| cpu(used, at)));
    add(
        "memory",
        sample.node.memory.map(|memory| {
            let used = memory.total.saturating_sub(memory.available);
            json!({
                "time": at, "availableBytes": memory.available, "usageBytes": used, "workingSetBytes": used,
            })
        }),
    );
    add("fs", sample.node.node_fs.map(|space| fs(space, at)));
    add("runtime", sample.node.image_fs.map(|space| json!({"imageFs": fs(space, at)})));
    add(
        "rlimit",
        sample
            .node
            .processes
            .map(|processes| json!({"time": at, "maxpid": max_processes, "curproc": processes})),
    );
    json!({"node": shown, "pods": sample.vms.iter().map(|vm| pod(vm, at)).collect::<Vec<_>>()})
}

fn pod(vm: &VmSample, at: Timestamp) -> Value {
    let memory = json!({
        "time": at, "usageBytes": vm.memory, "workingSetBytes": vm.memory, "rssBytes": vm.memory,
    });
    let used = |bytes: Option<u64>| json!({"time": at, "usedBytes": bytes});
    let container = json!({
        "name": vm.container,
        "startTime": vm.started_at,
        "cpu": cpu(vm.cpu, at),
        "memory": memory,
        "rootfs": used(vm.disk.zip(vm.logs).map(|(disk, logs)| disk.saturating_sub(logs))),
        "logs": used(vm.logs),
    });
    json!({
        "podRef": {"name": vm.pod.name, "namespace": vm.pod.namespace, "uid": vm.uid},
        "startTime": vm.started_at,
        "containers": [container],
        "cpu": cpu(vm.cpu, at),
        "memory": memory,
        "ephemeral-storage": used(vm.disk),
    })
}

fn cpu(used: CpuSample, at: Timestamp) -> Value {
    let total = u64::try_from(used.total.as_nanos()).unwrap_or(u64::MAX);
    let mut shown = json!({"time": at, "usageCoreNanoSeconds": total});
    if let Some(nano_cores) = used.nano_cores {
        shown["usageNanoCores"] = json!(nano_cores);
    }
    shown
}

fn fs(space: Availability, at: Timestamp) -> Value {
    let used = space.total.saturating_sub(space.available);
    json!({"time": at, "availableBytes": space.available, "capacityBytes": space.total, "usedBytes": used})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_node_and_its_pods() {
        let shown = render("mac-1", &Sample::example(), Some(4000));
        let node = &shown["node"];
        assert_eq!(
            (&node["nodeName"], &node["cpu"]["usageNanoCores"]),
            (&json!("mac-1"), &json!(2_000_000_000))
        );
        assert_eq!(node["memory"]["workingSetBytes"], json!(5u64 << 30));
        assert_eq!((&node["fs"]["usedBytes"], &node["rlimit"]["maxpid"]), (&json!(60), &json!(4000)));
        let pod = &shown["pods"][0];
        assert_eq!(pod["podRef"], json!({"name": "p", "namespace": "n", "uid": "0b1c"}));
        assert_eq!(pod["containers"][0]["cpu"]["usageCoreNanoSeconds"], json!(7_000_000_000u64));
        assert_eq!(pod["cpu"].get("usageNanoCores"), None, "there was no sample before");
        assert_eq!(pod["containers"][0]["rootfs"]["usedBytes"], json!(20));
        assert_eq!(pod["startTime"], json!("2026-11-16T08:00:00Z"));
    }
}
