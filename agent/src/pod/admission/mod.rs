//! Admission: which Pods the agent can run. It refuses every other Pod at once and names the field.

pub(crate) mod affinity;
pub(crate) mod fields;
pub(crate) mod fit;
pub(crate) mod mounts;
mod refusal;

pub(crate) use refusal::{Refusal, RefusalReason};

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodDNSConfig, PodSpec, VolumeMount};

use crate::image::PullPolicy;
use crate::names::image::{BadImageName, check_name};
use crate::quantity;
use crate::state::container_spec::{all_containers, has_command};
use crate::state::{HostPort, Protocol, Segment};
use crate::tart::{Serial, Size};

/// The Pod's annotation that chooses its VM's serial number: `random` or `image`.
const SERIAL: &str = "tart-kubelet.tuist.dev/serial";

/// An admitted Pod, read as one of its VMs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VmPlan {
    /// The main container's name, whether or not it is in this VM.
    pub(crate) container: String,
    /// The VM's image as the Pod names it.
    pub(crate) image: String,
    /// The Secrets that may hold credentials for the image's registry.
    pub(crate) pull_secrets: Vec<String>,
    /// When to look for a newer image.
    pub(crate) pull: PullPolicy,
    /// The size that the resources of the VM's containers ask for.
    pub(crate) size: Size,
    pub(crate) cpu_is_limit: bool,
    pub(crate) memory_is_limit: bool,
    /// The serial number that the Pod's annotation asks for.
    pub(crate) serial: Option<Serial>,
    /// The Pod's init containers, in whatever VM.
    pub(crate) init: Vec<String>,
    /// Host ports. One without an address is at the Node's address.
    pub(crate) host_ports: Vec<HostPort>,
}

impl VmPlan {
    /// What the status shows of a Pod that cannot be read as a VM.
    pub(crate) fn unreadable(pod: &Pod) -> Self {
        let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
        Self {
            container: container.map(|container| container.name.clone()).unwrap_or_default(),
            image: container.and_then(|container| container.image.clone()).unwrap_or_default(),
            ..Self::default()
        }
    }
}

/// Reads a Pod as the VM of its main container, or says why it cannot be one.
pub(crate) fn admit(pod: &Pod) -> Result<VmPlan, Refusal> {
    let spec = pod.spec.as_ref().ok_or_else(|| unsupported("spec", "is missing"))?;
    let container = only_container(spec)?;
    if let Some((field, why)) = fields::first_refused(&serde_json::json!(spec)) {
        // The kubelet's reason.
        let is_os = field.starts_with("spec.os");
        let reason = if is_os { RefusalReason::PodOsNotSupported } else { RefusalReason::UnsupportedPod };
        return Err(Refusal { reason, message: format!("{field}: {why}") });
    }
    if let Some(Err(why)) = serial(pod) {
        return Err(unsupported(&format!("metadata.annotations[{SERIAL}]"), &why));
    }
    image_names(spec)?;
    mounts::check(spec)?;
    groups(spec)?;
    initial(spec, container)?;
    for segment in Segment::all(spec) {
        read_segment(pod, &segment)?;
    }
    read(pod)
}

/// Reads an admitted Pod as the VM of its main container. Unlike [`admit`], it checks no field: a Pod that an agent of another version
/// admitted stays admitted.
pub(crate) fn read(pod: &Pod) -> Result<VmPlan, Refusal> {
    let segments = pod.spec.as_ref().map(Segment::all).unwrap_or_default();
    read_segment(pod, &segments.last().cloned().unwrap_or_default())
}

/// Reads an admitted Pod as the VM of one of its segments.
pub(crate) fn read_segment(pod: &Pod, segment: &Segment) -> Result<VmPlan, Refusal> {
    let spec = pod.spec.as_ref().ok_or_else(|| unsupported("spec", "is missing"))?;
    let container = only_container(spec)?;
    if segment.image.is_empty() {
        let first = segment.containers(spec).next().unwrap_or(container);
        return Err(unsupported(&format!("{}.image", field(spec, first)), "is missing"));
    }
    let last = segment.containers(spec).last().unwrap_or(container);
    Ok(VmPlan {
        container: container.name.clone(),
        image: segment.image.clone(),
        pull_secrets: spec.image_pull_secrets.iter().flatten().map(|secret| secret.name.clone()).collect(),
        pull: strictest(spec, segment),
        size: largest(spec, segment)?,
        cpu_is_limit: has_limit(last, "cpu"),
        memory_is_limit: has_limit(last, "memory"),
        serial: serial(pod).and_then(Result::ok),
        init: spec.init_containers.iter().flatten().map(|container| container.name.clone()).collect(),
        // Ports of the host lead to the main container.
        host_ports: if segment.main.is_some() { host_ports(container)? } else { Vec::new() },
    })
}

/// A container's path in the Pod, for refusals.
fn field(spec: &PodSpec, container: &Container) -> String {
    let index = |all: &[Container]| all.iter().position(|one| one.name == container.name);
    match index(spec.init_containers.as_deref().unwrap_or_default()) {
        Some(index) => format!("spec.initContainers[{index}]"),
        None => format!("spec.containers[{}]", index(&spec.containers).unwrap_or_default()),
    }
}

/// Refuses images whose name is no name. Without any image, or with one of no registry, the Pod fails later, as with a kubelet.
fn image_names(spec: &PodSpec) -> Result<(), Refusal> {
    for container in all_containers(spec) {
        if let Some(Err(why @ (BadImageName::Spelling(_) | BadImageName::Digest(_)))) =
            container.image.as_deref().map(check_name)
        {
            return Err(unsupported(&format!("{}.image", field(spec, container)), &why.to_string()));
        }
    }
    Ok(())
}

/// The serial number that the Pod's annotation asks for.
fn serial(pod: &Pod) -> Option<Result<Serial, String>> {
    pod.metadata.annotations.as_ref()?.get(SERIAL).map(|text| text.parse())
}

/// The strictest policy of all containers of a VM: they share its image.
fn strictest(spec: &PodSpec, segment: &Segment) -> PullPolicy {
    let one_says =
        |policy: &str| segment.containers(spec).any(|one| one.image_pull_policy.as_deref() == Some(policy));
    if one_says("Always") {
        PullPolicy::Always
    } else if one_says("Never") {
        PullPolicy::Never
    } else {
        PullPolicy::IfNotPresent
    }
}

fn only_container(spec: &PodSpec) -> Result<&Container, Refusal> {
    match spec.containers.as_slice() {
        [container] => Ok(container),
        _ => Err(unsupported(
            "spec.containers",
            "a VM is one container; put the others into Pods of their own",
        )),
    }
}

/// macOS allows 16 groups to a process, and one of them is the user's own.
fn groups(spec: &PodSpec) -> Result<(), Refusal> {
    const MOST: usize = 15;
    let groups = spec.security_context.as_ref().and_then(|security| security.supplemental_groups.as_ref());
    if groups.is_some_and(|groups| groups.len() > MOST) {
        let why = format!("are more than {MOST}, and a process of macOS can be in no more");
        return Err(unsupported("spec.securityContext.supplementalGroups", &why));
    }
    Ok(())
}

/// Init containers need a command: a VM that only boots has no end of its own.
fn initial(spec: &PodSpec, main: &Container) -> Result<(), Refusal> {
    for (index, init) in spec.init_containers.iter().flatten().enumerate() {
        let field = format!("spec.initContainers[{index}]");
        if !has_command(init) {
            let why = "is missing: a VM image has no entry point, so an init container needs one";
            return Err(unsupported(&format!("{field}.command"), why));
        }
    }
    if has_command(main) {
        return Ok(());
    }
    match needs_command(spec, main) {
        Some(field) => {
            let why = "needs a container with a command: a VM that only boots is as its image has it";
            Err(unsupported(&format!("spec.{field}"), why))
        }
        None => Ok(()),
    }
}

/// The first field that has no effect on a VM that only boots, because only the guest agent can apply it to a command.
fn needs_command(spec: &PodSpec, main: &Container) -> Option<&'static str> {
    let pods = spec.security_context.as_ref();
    // Groups still apply to hooks and probes that are commands.
    let runs = runs_commands(main);
    let mounts = |has: fn(&VolumeMount) -> bool| main.volume_mounts.iter().flatten().any(has);
    let fields = [
        // Those with an image of their own run in other VMs.
        ("initContainers", Segment::all(spec).last().is_some_and(|last| !last.init.is_empty())),
        ("hostAliases", spec.host_aliases.as_ref().is_some_and(|all| !all.is_empty())),
        ("setHostnameAsFQDN", spec.set_hostname_as_fqdn == Some(true)),
        ("hostnameOverride", is_set(spec.hostname_override.as_ref(), "")),
        ("dnsConfig", spec.dns_config.as_ref().is_some_and(|it| *it != PodDNSConfig::default())),
        (
            "securityContext.supplementalGroups",
            !runs
                && pods.is_some_and(|it| it.supplemental_groups.as_ref().is_some_and(|all| !all.is_empty())),
        ),
        (
            "securityContext.supplementalGroupsPolicy",
            !runs && pods.is_some_and(|it| it.supplemental_groups_policy.as_deref() == Some("Strict")),
        ),
        ("containers[0].workingDir", is_set(main.working_dir.as_ref(), "")),
        ("containers[0].volumeMounts[].subPath", mounts(|it| is_set(it.sub_path.as_ref(), ""))),
        ("containers[0].volumeMounts[].subPathExpr", mounts(|it| is_set(it.sub_path_expr.as_ref(), ""))),
        ("containers[0].stdin", main.stdin == Some(true)),
        ("containers[0].tty", main.tty == Some(true)),
        // The API server fills these in.
        (
            "containers[0].terminationMessagePath",
            is_set(main.termination_message_path.as_ref(), "/dev/termination-log"),
        ),
        ("containers[0].terminationMessagePolicy", is_set(main.termination_message_policy.as_ref(), "File")),
    ];
    fields.into_iter().find(|(_, is_set)| *is_set).map(|(field, _)| field)
}

/// Whether a container has a hook or a probe that is a command.
pub(super) fn runs_commands(container: &Container) -> bool {
    let hooks = container.lifecycle.as_ref();
    let hooks = [hooks.and_then(|it| it.post_start.as_ref()), hooks.and_then(|it| it.pre_stop.as_ref())];
    let probes = [&container.startup_probe, &container.liveness_probe, &container.readiness_probe];
    hooks.into_iter().flatten().any(|hook| hook.exec.is_some())
        || probes.into_iter().flatten().any(|probe| probe.exec.is_some())
}

/// Whether a field is set to something else than its default.
fn is_set(field: Option<&String>, default: &str) -> bool {
    field.is_some_and(|it| !it.is_empty() && it != default)
}

fn unsupported(field: &str, why: &str) -> Refusal {
    Refusal { reason: RefusalReason::UnsupportedPod, message: format!("{field}: {why}") }
}

fn has_limit(container: &Container, name: &str) -> bool {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    limits.is_some_and(|limits| limits.contains_key(name))
}

/// Limits, else requests, size the VM. `field` is the container's path, for the refusal.
fn size(field: &str, container: &Container) -> Result<Size, Refusal> {
    let resources = container.resources.as_ref();
    let asked = |name: &str| {
        let of = |map: Option<&BTreeMap<_, _>>| map.and_then(|map| map.get(name)).cloned();
        let limit = of(resources.and_then(|r| r.limits.as_ref()));
        limit.or_else(|| of(resources.and_then(|r| r.requests.as_ref())))
    };
    let too_large = |name: &str| unsupported(&format!("{field}.resources.{name}"), "is larger than any VM");
    let cpu = asked("cpu").map(|q| {
        quantity::whole(&q).and_then(|cores| u32::try_from(cores).ok()).ok_or_else(|| too_large("cpu"))
    });
    let memory = asked("memory")
        .map(|q| quantity::whole(&q).map(|bytes| bytes.div_ceil(1 << 20)).ok_or_else(|| too_large("memory")));
    Ok(Size { cpu: cpu.transpose()?.filter(|&n| n > 0), memory_mib: memory.transpose()?.filter(|&n| n > 0) })
}

/// The size that fits every container of a VM.
fn largest(spec: &PodSpec, segment: &Segment) -> Result<Size, Refusal> {
    segment.containers(spec).try_fold(Size::default(), |all, one| {
        let one = size(&field(spec, one), one)?;
        Ok(Size { cpu: all.cpu.max(one.cpu), memory_mib: all.memory_mib.max(one.memory_mib) })
    })
}

fn host_ports(container: &Container) -> Result<Vec<HostPort>, Refusal> {
    let mut found = Vec::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let field = |name: &str| format!("spec.containers[0].ports[{index}].{name}");
        let number = |name: &str, number: i32| {
            u16::try_from(number).map_err(|_| unsupported(&field(name), "is not a port"))
        };
        let Some(host_port) = port.host_port.filter(|number| *number != 0) else { continue };
        let address = port.host_ip.as_deref().filter(|address| !address.is_empty()).map(str::parse);
        found.push(HostPort {
            protocol: match port.protocol.as_deref() {
                None | Some("TCP") => Protocol::Tcp,
                Some("UDP") => Protocol::Udp,
                Some(_) => {
                    let why = "only TCP and UDP ports of the host can lead into a VM";
                    return Err(unsupported(&field("protocol"), why));
                }
            },
            address: address.transpose().map_err(|_| unsupported(&field("hostIP"), "is not an address"))?,
            port: number("hostPort", host_port)?,
            guest_port: number("containerPort", port.container_port)?,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
