//! Every field of a Pod, and what becomes of it. Nothing is ignored without being listed here.

use std::fmt::Write as _;

use serde_json::Value;

use Handling::{Elsewhere, Honoured, Like, Moot, Only, Parts, Refused};

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handling {
    /// It means what it means in Kubernetes; the text says how.
    Honoured(&'static str),
    /// The scheduler, a controller or the API server acts on it, not the node.
    Elsewhere(&'static str),
    /// It says nothing about a VM, and a Pod is none the worse for it.
    Moot(&'static str),
    /// Its parts are listed on their own.
    Parts,
    /// Its parts are those of another field, and mean the same.
    Like(&'static str),
    /// Only these values can be had; the text says why.
    Only(&'static [&'static str], &'static str),
    /// A Pod that sets it is refused; the text says why.
    Refused(&'static str),
}

/// A field, by its path below the Pod; `[]` stands for every item of a list.
type Field = (&'static str, Handling);

const NO_STORAGE: &str = "the cluster's storage cannot be attached to a Mac";

const FIELDS: &[Field] = &[
    ("spec", Parts),
    ("spec.activeDeadlineSeconds", Honoured("the VM is stopped and the Pod fails with `DeadlineExceeded`")),
    (
        "spec.affinity",
        Honoured(
            "a Pod whose required node affinity this Node does not meet fails with `NodeAffinity`; the rest is the scheduler's",
        ),
    ),
    ("spec.automountServiceAccountToken", Elsewhere("API server, by a volume with the token,")),
    ("spec.containers", Parts),
    (
        "spec.containers[].args",
        Honoured("follow `command`; without one they are the command line: a VM image has no entry point"),
    ),
    (
        "spec.containers[].command",
        Honoured("runs in the guest through its guest agent, `$(NAME)` expanded; its end is the container's"),
    ),
    ("spec.containers[].env", Parts),
    (
        "spec.containers[].env[].name",
        Honoured(
            "set for the command; a VM that only boots finds it in `/Volumes/My Shared Files/pod_environment/environment`",
        ),
    ),
    (
        "spec.containers[].env[].value",
        Honoured("set for the command; `$(NAME)` stands for a variable before it"),
    ),
    ("spec.containers[].env[].valueFrom", Parts),
    (
        "spec.containers[].env[].valueFrom.configMapKeyRef",
        Honoured("without it, unless `optional`, the container waits with `CreateContainerConfigError`"),
    ),
    (
        "spec.containers[].env[].valueFrom.fieldRef",
        Honoured(
            "metadata.name, .namespace, .uid, .labels['x'] and .annotations['x'], spec.nodeName and .serviceAccountName, status.hostIP(s) and .podIP(s)",
        ),
    ),
    ("spec.containers[].env[].valueFrom.fileKeyRef", Refused("a value cannot come from a file in a volume")),
    (
        "spec.containers[].env[].valueFrom.resourceFieldRef",
        Honoured("with its divisor; a limit that is absent is what the Node has for Pods"),
    ),
    (
        "spec.containers[].env[].valueFrom.secretKeyRef",
        Honoured("as configMapKeyRef; never in a list of arguments, a log or an Event"),
    ),
    (
        "spec.containers[].envFrom",
        Honoured(
            "ConfigMaps and Secrets, with prefix and optional; keys that are no names are told in an Event",
        ),
    ),
    (
        "spec.containers[].image",
        Honoured(
            "a Tart image in an OCI registry, cloned for each VM; one that changes counts from the container's next start, a VM that runs is left alone",
        ),
    ),
    ("spec.containers[].imagePullPolicy", Honoured("`Always` asks the registry before each start")),
    ("spec.containers[].lifecycle", Parts),
    ("spec.containers[].lifecycle.postStart", Parts),
    (
        "spec.containers[].lifecycle.postStart.exec",
        Honoured("runs in the guest, in the container's environment; its failure ends the container"),
    ),
    (
        "spec.containers[].lifecycle.postStart.httpGet",
        Honoured("asked by the host; its failure ends the container"),
    ),
    ("spec.containers[].lifecycle.postStart.sleep", Honoured("the container counts as started after it")),
    (
        "spec.containers[].lifecycle.postStart.tcpSocket",
        Refused("Kubernetes has given it up; use `httpGet` or `exec`"),
    ),
    ("spec.containers[].lifecycle.preStop", Parts),
    (
        "spec.containers[].lifecycle.preStop.exec",
        Honoured("runs in the guest within the grace period, before the command gets its SIGTERM"),
    ),
    ("spec.containers[].lifecycle.preStop.httpGet", Honoured("asked by the host within the grace period")),
    ("spec.containers[].lifecycle.preStop.sleep", Honoured("within the grace period")),
    (
        "spec.containers[].lifecycle.preStop.tcpSocket",
        Refused("Kubernetes has given it up; use `httpGet` or `exec`"),
    ),
    ("spec.containers[].lifecycle.stopSignal", Refused("a command in a guest is told to end by SIGTERM")),
    ("spec.containers[].livenessProbe", Parts),
    ("spec.containers[].livenessProbe.exec", Parts),
    (
        "spec.containers[].livenessProbe.exec.command",
        Honoured("runs in the guest through its guest agent; passes when it exits with 0 in time"),
    ),
    (
        "spec.containers[].livenessProbe.failureThreshold",
        Honoured("the VM is stopped and the container restarts in a new one, as `restartPolicy` has it"),
    ),
    ("spec.containers[].livenessProbe.grpc", Parts),
    (
        "spec.containers[].livenessProbe.grpc.port",
        Honoured("the agent asks `grpc.health.v1.Health` at the Pod's address"),
    ),
    ("spec.containers[].livenessProbe.grpc.service", Honoured("the service that is asked for")),
    ("spec.containers[].livenessProbe.httpGet", Parts),
    ("spec.containers[].livenessProbe.httpGet.host", Honoured("in place of the Pod's address")),
    ("spec.containers[].livenessProbe.httpGet.httpHeaders", Honoured("sent; `Host` too")),
    (
        "spec.containers[].livenessProbe.httpGet.path",
        Honoured("200 to 399 passes; redirects are followed on the same host only"),
    ),
    ("spec.containers[].livenessProbe.httpGet.port", Honoured("a number or the name of a container port")),
    (
        "spec.containers[].livenessProbe.httpGet.scheme",
        Honoured("`HTTPS` takes any certificate, as the kubelet does"),
    ),
    ("spec.containers[].livenessProbe.initialDelaySeconds", Honoured("counts from the container's start")),
    ("spec.containers[].livenessProbe.periodSeconds", Honoured("from one probe to the next")),
    ("spec.containers[].livenessProbe.successThreshold", Honoured("so many in a row")),
    ("spec.containers[].livenessProbe.tcpSocket", Parts),
    ("spec.containers[].livenessProbe.tcpSocket.host", Honoured("in place of the Pod's address")),
    (
        "spec.containers[].livenessProbe.tcpSocket.port",
        Honoured("passes when it accepts; a number or the name of a container port"),
    ),
    (
        "spec.containers[].livenessProbe.terminationGracePeriodSeconds",
        Honoured("the guest shuts down in that time when the probe has failed"),
    ),
    ("spec.containers[].livenessProbe.timeoutSeconds", Honoured("what takes longer has failed")),
    ("spec.containers[].name", Honoured("one container is one VM")),
    ("spec.containers[].ports", Parts),
    (
        "spec.containers[].ports[].containerPort",
        Moot("every port of the guest can be reached at the Pod's address"),
    ),
    ("spec.containers[].ports[].hostIP", Honoured("the address for `hostPort`; the Node's when absent")),
    (
        "spec.containers[].ports[].hostPort",
        Honoured(
            "leads into the guest, which sees the host as the other side; a port that is taken fails the start",
        ),
    ),
    ("spec.containers[].ports[].name", Elsewhere("Services")),
    ("spec.containers[].ports[].protocol", Honoured("TCP and UDP can have a `hostPort`, SCTP cannot")),
    ("spec.containers[].readinessProbe", Like("spec.containers[].livenessProbe")),
    ("spec.containers[].resizePolicy", Moot("a running VM is not resized")),
    ("spec.containers[].resources", Parts),
    ("spec.containers[].resources.claims", Refused("a VM cannot be given devices")),
    (
        "spec.containers[].resources.limits",
        Honoured(
            "`cpu` and `memory` size the VM, rounded up to cores and MiB; `ephemeral-storage` is not enforced",
        ),
    ),
    (
        "spec.containers[].resources.requests",
        Honoured(
            "size the VM where there is no limit; a Pod that does not fit beside the others fails with `OutOfcpu`, `OutOfmemory` or \
             `OutOfephemeral-storage`",
        ),
    ),
    ("spec.containers[].restartPolicy", Refused("a VM is restarted as a whole; set the Pod's restartPolicy")),
    (
        "spec.containers[].restartPolicyRules",
        Refused("a VM is restarted as a whole; set the Pod's restartPolicy"),
    ),
    ("spec.containers[].securityContext", Parts),
    (
        "spec.containers[].securityContext.allowPrivilegeEscalation",
        Moot("whoever becomes root in the guest is root of that VM only"),
    ),
    ("spec.containers[].securityContext.appArmorProfile", Refused("macOS has no AppArmor")),
    ("spec.containers[].securityContext.capabilities", Parts),
    (
        "spec.containers[].securityContext.capabilities.add",
        Refused("macOS has no capabilities; use `sudo` in the guest"),
    ),
    ("spec.containers[].securityContext.capabilities.drop", Moot("macOS has no capabilities")),
    (
        "spec.containers[].securityContext.privileged",
        Refused("a VM has nothing of the host's to be privileged about"),
    ),
    ("spec.containers[].securityContext.procMount", Refused("macOS has no /proc")),
    (
        "spec.containers[].securityContext.readOnlyRootFilesystem",
        Refused("a guest cannot run without writing to its disk"),
    ),
    (
        "spec.containers[].securityContext.runAsGroup",
        Honoured(
            "a group of the guest, by number; the guest's user must be able to use `sudo` without a password; a container without a command cannot have it",
        ),
    ),
    (
        "spec.containers[].securityContext.runAsNonRoot",
        Honoured(
            "the container does not start when its user in the guest is root; a container without a command cannot have it",
        ),
    ),
    (
        "spec.containers[].securityContext.runAsUser",
        Honoured(
            "a user of the guest, by number; the guest's user must be able to use `sudo` without a password; a container without a command cannot have it",
        ),
    ),
    ("spec.containers[].securityContext.seccompProfile", Parts),
    ("spec.containers[].securityContext.seccompProfile.localhostProfile", Refused("macOS has no seccomp")),
    (
        "spec.containers[].securityContext.seccompProfile.type",
        Only(&["RuntimeDefault", "Unconfined"], "macOS has no seccomp; the VM itself is the boundary"),
    ),
    ("spec.containers[].securityContext.seLinuxOptions", Refused("macOS has no SELinux")),
    ("spec.containers[].securityContext.windowsOptions", Refused("this Node runs macOS")),
    ("spec.containers[].startupProbe", Like("spec.containers[].livenessProbe")),
    (
        "spec.containers[].stdin",
        Honoured(
            "the command's standard input stays open; without it there is none; a container without a command cannot have it",
        ),
    ),
    ("spec.containers[].stdinOnce", Moot("nothing is attached to a container yet")),
    (
        "spec.containers[].terminationMessagePath",
        Honoured(
            "a file in the guest, read when the command has ended; macOS has no file at the default `/dev/termination-log`, \
             so name another one; a container without a command cannot have another one",
        ),
    ),
    (
        "spec.containers[].terminationMessagePolicy",
        Honoured(
            "`FallbackToLogsOnError` takes the end of the log of a command that failed without a message; a container without a command cannot have it",
        ),
    ),
    (
        "spec.containers[].tty",
        Honoured(
            "the command gets a terminal in the guest; all its output is standard output then; a container without a command cannot have it",
        ),
    ),
    ("spec.containers[].volumeDevices", Refused("a VM cannot be given block devices")),
    ("spec.containers[].volumeMounts", Parts),
    (
        "spec.containers[].volumeMounts[].mountPath",
        Honoured(
            "a link in the guest to the volume's share; one inside another, or the guest's root, is refused",
        ),
    ),
    (
        "spec.containers[].volumeMounts[].mountPropagation",
        Only(&["None"], "what is mounted later, in the guest or on the host, is not seen on the other side"),
    ),
    ("spec.containers[].volumeMounts[].name", Honoured("the volume")),
    ("spec.containers[].volumeMounts[].readOnly", Honoured("a share that cannot be written to")),
    (
        "spec.containers[].volumeMounts[].recursiveReadOnly",
        Only(
            &["Disabled", "IfPossible"],
            "a share is read-only, but what the host has mounted in it may not be",
        ),
    ),
    (
        "spec.containers[].volumeMounts[].subPath",
        Honoured("made when missing; of a volume with files, it follows changes"),
    ),
    (
        "spec.containers[].volumeMounts[].subPathExpr",
        Honoured("as `subPath`, `$(NAME)` expanded from the container's environment"),
    ),
    (
        "spec.containers[].workingDir",
        Honoured("the command's directory in the guest; a container without a command cannot have it"),
    ),
    ("spec.dnsConfig", Refused("the guest asks the host's DNS servers")),
    (
        "spec.dnsPolicy",
        Only(&["ClusterFirst", "Default"], "the guest asks the host's DNS servers, whatever the policy"),
    ),
    ("spec.enableServiceLinks", Honoured("the Services of the Pod's namespace are in the environment")),
    ("spec.ephemeralContainers", Refused("a VM cannot be joined by a container")),
    (
        "spec.hostAliases",
        Honoured(
            "added to the guest's /etc/hosts before the command starts; a container without a command cannot have it",
        ),
    ),
    ("spec.hostIPC", Refused("a VM cannot share the host's memory")),
    (
        "spec.hostname",
        Honoured("the guest's name, the Pod's name when absent; a VM that only boots keeps its own"),
    ),
    ("spec.hostnameOverride", Refused("use `hostname`")),
    ("spec.hostNetwork", Refused("a VM cannot share the host's network")),
    ("spec.hostPID", Refused("a VM cannot share the host's processes")),
    ("spec.hostUsers", Moot("a VM has users of its own")),
    ("spec.imagePullSecrets", Honoured("tried in order, for the image's own registry only")),
    ("spec.initContainers", Parts),
    (
        "spec.initContainers[].image",
        Honoured("only the image of the Pod's container: init containers run in its VM, one after the other"),
    ),
    (
        "spec.initContainers[].restartPolicy",
        Refused(
            "a VM runs one container at a time; have the main container's command start what runs beside it",
        ),
    ),
    ("spec.nodeName", Elsewhere("binds the Pod")),
    ("spec.nodeSelector", Honoured("a Pod that another Node was meant for fails with `NodeAffinity`")),
    ("spec.os", Refused("Kubernetes knows only linux and windows, and this Node runs macOS")),
    ("spec.overhead", Honoured("counts as a request")),
    ("spec.preemptionPolicy", Elsewhere("scheduler")),
    ("spec.priority", Elsewhere("scheduler")),
    ("spec.priorityClassName", Elsewhere("scheduler")),
    (
        "spec.readinessGates",
        Honoured("the Pod is ready when its container is, and every condition named here is True"),
    ),
    ("spec.resourceClaims", Refused("a VM cannot be given devices")),
    ("spec.resources", Refused("set the container's resources instead: they are the VM's")),
    (
        "spec.restartPolicy",
        Honoured("a restart is a new VM, at once the first time, then with a back-off from 10 s to 5 min"),
    ),
    ("spec.runtimeClassName", Refused("this Node has one runtime, tart")),
    ("spec.schedulerName", Elsewhere("scheduler")),
    ("spec.schedulingGates", Elsewhere("scheduler")),
    ("spec.schedulingGroup", Elsewhere("scheduler")),
    ("spec.securityContext", Parts),
    ("spec.securityContext.appArmorProfile", Refused("macOS has no AppArmor")),
    ("spec.securityContext.fsGroup", Refused("shares have no groups of the guest's")),
    ("spec.securityContext.fsGroupChangePolicy", Refused("shares have no groups of the guest's")),
    ("spec.securityContext.runAsGroup", Honoured("as in the container's securityContext, which comes first")),
    (
        "spec.securityContext.runAsNonRoot",
        Honoured("as in the container's securityContext, which comes first"),
    ),
    ("spec.securityContext.runAsUser", Honoured("as in the container's securityContext, which comes first")),
    ("spec.securityContext.seccompProfile", Parts),
    ("spec.securityContext.seccompProfile.localhostProfile", Refused("macOS has no seccomp")),
    (
        "spec.securityContext.seccompProfile.type",
        Only(&["RuntimeDefault", "Unconfined"], "macOS has no seccomp; the VM itself is the boundary"),
    ),
    ("spec.securityContext.seLinuxChangePolicy", Refused("macOS has no SELinux")),
    ("spec.securityContext.seLinuxOptions", Refused("macOS has no SELinux")),
    (
        "spec.securityContext.supplementalGroups",
        Refused("a user of the guest is in the groups that the guest says"),
    ),
    (
        "spec.securityContext.supplementalGroupsPolicy",
        Refused("a user of the guest is in the groups that the guest says"),
    ),
    ("spec.securityContext.sysctls", Refused("set them with `sudo sysctl` in the command")),
    ("spec.securityContext.windowsOptions", Refused("this Node runs macOS")),
    ("spec.serviceAccount", Elsewhere("old name of serviceAccountName")),
    ("spec.serviceAccountName", Honoured("whose tokens a `serviceAccountToken` volume holds")),
    (
        "spec.setHostnameAsFQDN",
        Honoured("the guest's name is the full one then; a container without a command cannot have it"),
    ),
    ("spec.shareProcessNamespace", Moot("a VM has processes of its own")),
    ("spec.subdomain", Honoured("the full name is in the guest's /etc/hosts; --cluster-domain ends it")),
    ("spec.terminationGracePeriodSeconds", Honoured("the guest shuts down in that time, or is killed")),
    (
        "spec.tolerations",
        Honoured(
            "a Pod that does not tolerate a `NoExecute` taint fails with `TaintToleration`; the rest is the scheduler's",
        ),
    ),
    ("spec.topologySpreadConstraints", Elsewhere("scheduler")),
    ("spec.volumes", Parts),
    ("spec.volumes[].awsElasticBlockStore", Refused(NO_STORAGE)),
    ("spec.volumes[].azureDisk", Refused(NO_STORAGE)),
    ("spec.volumes[].azureFile", Refused(NO_STORAGE)),
    ("spec.volumes[].cephfs", Refused(NO_STORAGE)),
    ("spec.volumes[].cinder", Refused(NO_STORAGE)),
    ("spec.volumes[].configMap", Parts),
    (
        "spec.volumes[].configMap.defaultMode",
        Honoured("the files' permissions, on the host and in the guest"),
    ),
    ("spec.volumes[].configMap.items", Honoured("with `mode` for each")),
    (
        "spec.volumes[].configMap.name",
        Honoured("files for its keys, which follow changes all at once; the guest can only read them"),
    ),
    ("spec.volumes[].configMap.optional", Honoured("without it, the Pod waits until the ConfigMap is there")),
    ("spec.volumes[].csi", Refused(NO_STORAGE)),
    ("spec.volumes[].downwardAPI", Parts),
    ("spec.volumes[].downwardAPI.defaultMode", Honoured("as for configMap")),
    ("spec.volumes[].downwardAPI.items", Honoured("follow changes, as for configMap")),
    ("spec.volumes[].emptyDir", Parts),
    (
        "spec.volumes[].emptyDir.medium",
        Refused("a share is on the host's disk: neither memory nor huge pages can be had"),
    ),
    ("spec.volumes[].emptyDir.sizeLimit", Honoured("measured every 10 s; a Pod that exceeds it is evicted")),
    ("spec.volumes[].ephemeral", Refused(NO_STORAGE)),
    ("spec.volumes[].fc", Refused(NO_STORAGE)),
    ("spec.volumes[].flexVolume", Refused(NO_STORAGE)),
    ("spec.volumes[].flocker", Refused(NO_STORAGE)),
    ("spec.volumes[].gcePersistentDisk", Refused(NO_STORAGE)),
    ("spec.volumes[].gitRepo", Refused("Kubernetes no longer has it; clone in the command")),
    ("spec.volumes[].glusterfs", Refused(NO_STORAGE)),
    ("spec.volumes[].hostPath", Parts),
    ("spec.volumes[].hostPath.path", Honoured("a directory that `--allowed-host-path` allows")),
    (
        "spec.volumes[].hostPath.type",
        Only(&["Directory", "DirectoryOrCreate"], "a VM can only be given directories"),
    ),
    (
        "spec.volumes[].image",
        Refused("a Mac has no container images to mount; put the files into the VM image"),
    ),
    ("spec.volumes[].iscsi", Refused(NO_STORAGE)),
    (
        "spec.volumes[].name",
        Honoured("the name of the share: `/Volumes/My Shared Files/<name>` in the guest"),
    ),
    ("spec.volumes[].nfs", Refused(NO_STORAGE)),
    ("spec.volumes[].persistentVolumeClaim", Refused(NO_STORAGE)),
    ("spec.volumes[].photonPersistentDisk", Refused(NO_STORAGE)),
    ("spec.volumes[].portworxVolume", Refused(NO_STORAGE)),
    ("spec.volumes[].projected", Parts),
    ("spec.volumes[].projected.defaultMode", Honoured("as for configMap")),
    ("spec.volumes[].projected.sources", Parts),
    (
        "spec.volumes[].projected.sources[].clusterTrustBundle",
        Refused("use a configMap with the certificates"),
    ),
    ("spec.volumes[].projected.sources[].configMap", Honoured("as configMap")),
    ("spec.volumes[].projected.sources[].downwardAPI", Honoured("as downwardAPI")),
    ("spec.volumes[].projected.sources[].podCertificate", Refused("use a secret with the certificate")),
    ("spec.volumes[].projected.sources[].secret", Honoured("as secret")),
    (
        "spec.volumes[].projected.sources[].serviceAccountToken",
        Honoured("with its audience and expiry; renewed in time"),
    ),
    ("spec.volumes[].quobyte", Refused(NO_STORAGE)),
    ("spec.volumes[].rbd", Refused(NO_STORAGE)),
    ("spec.volumes[].scaleIO", Refused(NO_STORAGE)),
    ("spec.volumes[].secret", Parts),
    ("spec.volumes[].secret.defaultMode", Honoured("as for configMap")),
    ("spec.volumes[].secret.items", Honoured("as for configMap")),
    ("spec.volumes[].secret.optional", Honoured("as for configMap")),
    (
        "spec.volumes[].secret.secretName",
        Honoured("as a configMap; removed from the disk as soon as the Pod is over"),
    ),
    ("spec.volumes[].storageos", Refused(NO_STORAGE)),
    ("spec.volumes[].vsphereVolume", Refused(NO_STORAGE)),
];

/// The first field that is in the way, with the reason.
pub(super) fn first_refused(spec: &Value) -> Option<(String, String)> {
    examine("spec", "spec", spec)
}

/// Looks at one value; `pattern` is its path in the table, `path` the one to show.
fn examine(pattern: &str, path: &str, value: &Value) -> Option<(String, String)> {
    if is_unset(value) {
        return None;
    }
    let refused = |why: &str| Some((path.to_owned(), why.to_owned()));
    match handling(pattern) {
        Some(Honoured(_) | Elsewhere(_) | Moot(_)) => None,
        Some(Refused(why)) => refused(why),
        Some(Only(values, why)) => {
            let fits = value.as_str().is_some_and(|value| values.contains(&value));
            if fits { None } else { refused(&format!("can only be {}: {why}", values.join(" or "))) }
        }
        Some(Parts) => parts(pattern, path, value),
        Some(Like(other)) => examine(other, path, value),
        None => refused("this agent does not know the field"),
    }
}

/// What becomes of a field. An init container is a container like any other, but for what its own rows say.
fn handling(pattern: &str) -> Option<Handling> {
    let find = |path: &str| FIELDS.iter().find(|(field, _)| *field == path).map(|(_, handling)| *handling);
    let as_any_other = || {
        let inside = pattern.strip_prefix("spec.initContainers[]")?;
        find(&format!("spec.containers[]{inside}"))
    };
    find(pattern).or_else(as_any_other)
}

fn parts(pattern: &str, path: &str, value: &Value) -> Option<(String, String)> {
    let inside = |pattern: &str, path: &str, value: &Value| match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            examine(&format!("{pattern}.{name}"), &format!("{path}.{name}"), value)
        }),
        _ => None,
    };
    match value {
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| inside(&format!("{pattern}[]"), &format!("{path}[{index}]"), item))
        }
        value => inside(pattern, path, value),
    }
}

/// Whether a value asks for nothing.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_unset),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// The table for people: what `docs/pods.md` holds.
pub fn document() -> String {
    let mut text = String::from(
        "# Pods, field by field\n\n\
         A Pod is a VM. This is what becomes of each field of its spec; the table is made from the one that the agent \
         decides by\n(`make docs`). A Pod that sets a refused field gets phase Failed at once, with reason `UnsupportedPod`, \
         and an Event that names the\nfield.\n\n| field | | |\n|---|---|---|\n",
    );
    for (path, handling) in FIELDS {
        let (verdict, why) = match handling {
            Parts => continue,
            Honoured(how) => ("honoured", (*how).to_owned()),
            Elsewhere(who) => ("not the node's", format!("{who} acts on it")),
            Moot(why) => ("no effect", (*why).to_owned()),
            Like(other) => ("honoured", format!("as `{other}`, field by field")),
            Only(values, why) => ("limited", format!("`{}`: {why}", values.join("` or `"))),
            Refused(why) => ("**refused**", (*why).to_owned()),
        };
        // Writing to a String does not fail.
        let _ = writeln!(text, "| `{path}` | {verdict} | {why} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_field_of_the_api_is_in_the_table() {
        // A Pod with every field set, in as far as the table goes inside.
        let names = |text: &'static str| text.split_whitespace();
        let spec = names(
            "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks \
             ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets \
             initContainers nodeName nodeSelector os overhead preemptionPolicy priority priorityClassName readinessGates \
             resourceClaims resources restartPolicy runtimeClassName schedulerName schedulingGates schedulingGroup \
             securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain \
             terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes",
        );
        let container = names(
            "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy \
             resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath \
             terminationMessagePolicy tty volumeDevices volumeMounts workingDir",
        );
        let volume = names(
            "awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir ephemeral fc flexVolume \
             flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi name nfs persistentVolumeClaim \
             photonPersistentDisk portworxVolume projected quobyte rbd scaleIO secret storageos vsphereVolume",
        );
        let parts = [
            (
                "containers[].volumeMounts[]",
                "mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr",
            ),
            ("volumes[].configMap", "defaultMode items name optional"),
            ("volumes[].downwardAPI", "defaultMode items"),
            ("volumes[].emptyDir", "medium sizeLimit"),
            ("volumes[].hostPath", "path type"),
            ("volumes[].projected", "defaultMode sources"),
            (
                "volumes[].projected.sources[]",
                "clusterTrustBundle configMap downwardAPI podCertificate secret serviceAccountToken",
            ),
            ("volumes[].secret", "defaultMode items optional secretName"),
        ];
        let listed = |path: &str| FIELDS.iter().any(|(field, _)| *field == path);
        for name in spec {
            assert!(listed(&format!("spec.{name}")), "spec.{name}");
        }
        for name in container {
            assert!(listed(&format!("spec.containers[].{name}")), "{name}");
        }
        for name in volume {
            assert!(listed(&format!("spec.volumes[].{name}")), "{name}");
        }
        for (path, fields) in parts {
            for name in names(fields) {
                assert!(listed(&format!("spec.{path}.{name}")), "{path} {name}");
            }
        }
    }

    #[test]
    fn the_table_is_sorted_and_says_each_field_once() {
        let paths: Vec<String> = FIELDS.iter().map(|(path, _)| path.to_ascii_lowercase()).collect();
        for pair in paths.windows(2) {
            assert!(pair[0] < pair[1], "{} comes before {}", pair[1], pair[0]);
        }
    }

    #[test]
    fn the_first_field_in_the_way_is_named() {
        let refused = |spec: Value| first_refused(&spec).map(|(path, _)| path);
        assert_eq!(
            refused(json!({"restartPolicy": "Never", "containers": [{"name": "a", "stdin": false}]})),
            None
        );
        assert_eq!(refused(json!({"securityContext": {}, "hostNetwork": false, "volumes": []})), None);
        assert_eq!(refused(json!({"dnsPolicy": "ClusterFirst"})), None);
        assert_eq!(refused(json!({"dnsPolicy": "None"})).as_deref(), Some("spec.dnsPolicy"));
        let probe = |field: &str| json!({"containers": [{"startupProbe": {field: {"port": 1, "new": 1}}}]});
        assert_eq!(
            refused(probe("httpGet")).as_deref(),
            Some("spec.containers[0].startupProbe.httpGet.new"),
            "a field that is like another is looked into, and named by its own name"
        );
        assert_eq!(refused(json!({"fromTheFuture": 1})).as_deref(), Some("spec.fromTheFuture"));
        let volume = |source: Value| refused(json!({"volumes": [source]}));
        assert_eq!(volume(json!({"name": "v", "emptyDir": {}})), None);
        assert_eq!(volume(json!({"name": "v", "hostPath": {"path": "/x", "type": ""}})), None);
        for (source, field) in [
            (json!({"emptyDir": {"medium": "Memory"}}), "emptyDir.medium"),
            (json!({"emptyDir": {"medium": "HugePages-2Mi"}}), "emptyDir.medium"),
            (json!({"hostPath": {"path": "/x", "type": "Socket"}}), "hostPath.type"),
            (json!({"hostPath": {"path": "/x", "type": "File"}}), "hostPath.type"),
            (json!({"persistentVolumeClaim": {"claimName": "x"}}), "persistentVolumeClaim"),
            (
                json!({"projected": {"sources": [{"clusterTrustBundle": {"path": "x"}}]}}),
                "projected.sources[0].clusterTrustBundle",
            ),
            (json!({"fromTheFuture": {"x": 1}}), "fromTheFuture"),
        ] {
            assert_eq!(volume(source), Some(format!("spec.volumes[0].{field}")));
        }
        let env = json!({"containers": [{"env": [{"name": "A"}, {"name": "B", "valueFrom": {"fileKeyRef": {"key": "x"}}}]}]});
        assert_eq!(refused(env).as_deref(), Some("spec.containers[0].env[1].valueFrom.fileKeyRef"));
    }

    #[test]
    fn the_documentation_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pods.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert!(written == document(), "docs/pods.md is not what the table says; run `make docs`");
    }
}
