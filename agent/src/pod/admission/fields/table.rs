//! The table of a Pod's fields: one row each, in the order of their paths. `docs/pods.md` is made from it.

use Handling::{Elsewhere, Honoured, Like, Moot, Only, Parts, Refused};

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handling {
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
pub(super) type Field = (&'static str, Handling);

const NO_STORAGE: &str = "the cluster's storage cannot be attached to a Mac";

/// All fields, by path.
pub(super) const FIELDS: &[Field] = &[
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
            "set for the command and its hooks and probes; a name that no shell can set (`my.key`), or that the guest's keeps for itself (such as `UID`, \
             `GROUPS` or `RANDOM`), is set with the guest's perl; a VM that only boots finds what a shell can \
             set in `/Volumes/My Shared Files/pod_environment/environment`",
        ),
    ),
    (
        "spec.containers[].env[].value",
        Honoured("set for the command; `$(NAME)` stands for a variable before it"),
    ),
    ("spec.containers[].env[].valueFrom", Parts),
    (
        "spec.containers[].env[].valueFrom.configMapKeyRef",
        Honoured(
            "without it, unless `optional`, the container waits with `CreateContainerConfigError`; it is looked up when the container's turn comes, so that an init \
             container may make it, but before the VM starts where a `subPathExpr` of the container needs it",
        ),
    ),
    (
        "spec.containers[].env[].valueFrom.fieldRef",
        Honoured(
            "metadata.name, .namespace, .uid, .labels['x'] and .annotations['x'], spec.nodeName and .serviceAccountName, status.hostIP(s) and \
             .podIP(s); a VM that only boots finds its own address in its file a moment after it has one",
        ),
    ),
    ("spec.containers[].env[].valueFrom.fileKeyRef", Refused("a value cannot come from a file in a volume")),
    (
        "spec.containers[].env[].valueFrom.resourceFieldRef",
        Honoured("with its divisor; a limit that is absent is what the Node has for Pods"),
    ),
    (
        "spec.containers[].env[].valueFrom.secretKeyRef",
        Honoured(
            "as configMapKeyRef; never in a list of arguments, a log or an Event; what is not UTF-8 is `CreateContainerConfigError`, too: mount the \
             Secret instead",
        ),
    ),
    (
        "spec.containers[].envFrom",
        Honoured(
            "ConfigMaps and Secrets, with prefix and optional; what a VM that only boots does not find in its file is told in an Event",
        ),
    ),
    (
        "spec.containers[].image",
        Honoured(
            "a Tart image in an OCI registry, cloned for each VM; when it changes, the VM is stopped within its grace period and the container restarts with the new one, whatever `restartPolicy` says",
        ),
    ),
    (
        "spec.containers[].imagePullPolicy",
        Honoured(
            "`Always` asks the registry before each start; a private image that is here thanks to another Pod's pull secret counts as absent \
             until this Pod's own is good for it",
        ),
    ),
    ("spec.containers[].lifecycle", Parts),
    ("spec.containers[].lifecycle.postStart", Parts),
    (
        "spec.containers[].lifecycle.postStart.exec",
        Honoured(
            "runs in the guest, in the container's environment; its failure ends the container, whose status alone says what it has written; \
             it may write 64 MiB",
        ),
    ),
    (
        "spec.containers[].lifecycle.postStart.httpGet",
        Honoured(
            "asked by the host; any answer will do, also one without TLS where `scheme` is `HTTPS`, which is told in an Event; none ends the container; \
             `host` as for a probe",
        ),
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
    (
        "spec.containers[].lifecycle.preStop.httpGet",
        Honoured("asked by the host within the grace period; any answer will do; `host` as for a probe"),
    ),
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
        Honoured(
            "runs in the guest through its guest agent, in the container's environment; passes when it exits with 0 in time and writes less than 1 MiB. A guest agent that cannot be reached \
             is a failure, where a kubelet forgets what its runtime cannot tell: a guest that hangs could not be found otherwise",
        ),
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
    (
        "spec.containers[].livenessProbe.httpGet.host",
        Honoured(
            "in place of the Pod's address. The agent asks from the Mac: an address of the Mac itself, of its loopback or a link-local one fails the probe, \
             unless `--allow-local-probe-hosts` is set",
        ),
    ),
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
    ("spec.containers[].livenessProbe.tcpSocket.host", Honoured("as `httpGet.host`")),
    (
        "spec.containers[].livenessProbe.tcpSocket.port",
        Honoured("passes when it accepts; a number or the name of a container port"),
    ),
    (
        "spec.containers[].livenessProbe.terminationGracePeriodSeconds",
        Honoured("the guest shuts down in that time when the probe has failed"),
    ),
    ("spec.containers[].livenessProbe.timeoutSeconds", Honoured("what takes longer has failed")),
    ("spec.containers[].name", Honoured("one container is one VM; a second one is refused")),
    ("spec.containers[].ports", Parts),
    (
        "spec.containers[].ports[].containerPort",
        Moot("every port of the guest can be reached at the Pod's address"),
    ),
    ("spec.containers[].ports[].hostIP", Honoured("the address for `hostPort`; the Node's when absent")),
    (
        "spec.containers[].ports[].hostPort",
        Honoured(
            "leads into the guest, which sees the host as the other side; a port that is taken fails the start, and one of the agent itself is refused",
        ),
    ),
    ("spec.containers[].ports[].name", Elsewhere("Services")),
    ("spec.containers[].ports[].protocol", Honoured("TCP and UDP can have a `hostPort`, SCTP cannot")),
    ("spec.containers[].readinessProbe", Like("spec.containers[].livenessProbe")),
    ("spec.containers[].resizePolicy", Moot("the API server resizes Pods on Linux nodes only")),
    ("spec.containers[].resources", Parts),
    ("spec.containers[].resources.claims", Refused("a VM cannot be given devices")),
    (
        "spec.containers[].resources.limits",
        Honoured(
            "`cpu` and `memory` size the VM, rounded up to cores and MiB; a container whose limit is less than its image needs waits with \
             `CreateContainerConfigError`, and says how much that is; \
             a Pod that takes more of the host's disk than `ephemeral-storage` is evicted: what its VM has grown beyond its image, by any program in the guest, its volumes and its logs \
             are measured every 10 s, and a volume that cannot be measured counts as for `sizeLimit`; what a guest writes over what was in its image is seen on APFS alone; \
             of containers that run one after the other in the VM, the largest limit counts",
        ),
    ),
    (
        "spec.containers[].resources.requests",
        Honoured(
            "size the VM where there is no limit. A VM without either, or with a request that is less than its image needs, is as large as its image has it, with \
             no more memory than other Pods leave of the Node; where that is less than the image needs, it waits with `CreateContainerConfigError`. A Pod that does not fit beside the others fails with `OutOfcpu`, `OutOfmemory` or \
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
        Moot("root in the guest is root of that VM only"),
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
            "any number; the guest's user must be able to use `sudo` without a password; without a command as `runAsUser`",
        ),
    ),
    (
        "spec.containers[].securityContext.runAsNonRoot",
        Honoured(
            "the container does not start when its user in the guest is root; without a command as `runAsUser`",
        ),
    ),
    (
        "spec.containers[].securityContext.runAsUser",
        Honoured(
            "any number; the guest's user must be able to use `sudo` without a password; one that the guest does not know has `/` for its \
             home; in a VM that only boots it counts for hooks and probes by `exec`, while the image says who runs what it boots, which is told in an Event; one with another number than the agent's user on the Mac may not be able to write to shares, which is told in an Event",
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
            "the command's standard input stays open, for `kubectl attach`; without it there is none; a container without a command cannot have it",
        ),
    ),
    (
        "spec.containers[].stdinOnce",
        Honoured("standard input ends with the first client that was attached to it by `kubectl attach`"),
    ),
    (
        "spec.containers[].terminationMessagePath",
        Honoured(
            "a file in the guest, read when the command has ended; in `/dev`, as the default `/dev/termination-log`, it is a link to a file elsewhere, which takes \
             `sudo` without a password; a container without a command cannot have another one",
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
            "a link in the guest to the volume's share, which stays for the containers after; one inside another, also of another container, the \
             guest's root and /var/tmp are refused, and upper and lower case are the same, as to macOS; a VM that only boots has no links: it finds the share under its own name",
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
        Honoured(
            "a directory is made when it is missing as the container starts, so that an init container may have made a file of it; what a volume with \
             files lacks is an empty directory, and what it has follows changes; a container without a command cannot have it",
        ),
    ),
    (
        "spec.containers[].volumeMounts[].subPathExpr",
        Honoured(
            "as `subPath`, `$(NAME)` expanded from the container's environment; not with the Pod's address in a volume that it can only read",
        ),
    ),
    (
        "spec.containers[].workingDir",
        Honoured("the command's directory in the guest; a container without a command cannot have it"),
    ),
    ("spec.dnsConfig", Parts),
    (
        "spec.dnsConfig.nameservers",
        Honoured(
            "set in the guest with `networksetup` before the command starts, after those that the guest has unless `dnsPolicy` is `None`; \
             a container without a command cannot have it",
        ),
    ),
    ("spec.dnsConfig.options", Refused("macOS looks names up by rules of its own")),
    ("spec.dnsConfig.searches", Honoured("as `nameservers`")),
    (
        "spec.dnsPolicy",
        Only(
            &["ClusterFirst", "Default", "None"],
            "a VM cannot share the host's network. `None` leaves the guest only the servers that `dnsConfig` names, and its own search domains only when `dnsConfig` names none; with any other policy it asks the host's DNS servers: a guest cannot \
             reach the cluster's",
        ),
    ),
    ("spec.enableServiceLinks", Honoured("the Services of the Pod's namespace are in the environment")),
    (
        "spec.ephemeralContainers",
        Refused(
            "a VM cannot be joined by a container; one that is added to a running Pod is shown as failed",
        ),
    ),
    (
        "spec.hostAliases",
        Honoured(
            "added to the guest's /etc/hosts before the command starts; a container without a command cannot have it",
        ),
    ),
    ("spec.hostIPC", Refused("a VM cannot share the host's memory")),
    (
        "spec.hostname",
        Honoured(
            "the guest's name, the Pod's name when absent; a VM that only boots keeps its own, which is told in an Event",
        ),
    ),
    (
        "spec.hostnameOverride",
        Honoured(
            "the guest's name, before `hostname` and without `subdomain`; a container without a command cannot have it",
        ),
    ),
    ("spec.hostNetwork", Refused("a VM cannot share the host's network")),
    ("spec.hostPID", Refused("a VM cannot share the host's processes")),
    ("spec.hostUsers", Moot("a VM has users of its own")),
    (
        "spec.imagePullSecrets",
        Honoured(
            "those that fit the image by host, wildcard and path, as the kubelet has it, the most exact first",
        ),
    ),
    ("spec.initContainers", Parts),
    ("spec.initContainers[]", Like("spec.containers[]")),
    (
        "spec.initContainers[].image",
        Honoured(
            "VMs run one after the other, each with the next init containers of one image; those just before the Pod's container that have its image run in its VM, and again in each new one; others that have succeeded do not run again; volumes carry over to the next VM, disk and address do not; a change does not affect an init container that runs or has succeeded",
        ),
    ),
    (
        "spec.initContainers[].imagePullPolicy",
        Honoured(
            "together with those of the same VM: one `Always` asks the registry, one `Never` without it does not",
        ),
    ),
    ("spec.initContainers[].ports", Moot("as elsewhere: ports of the host lead to the Pod's container")),
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
        Honoured(
            "a restart is a new VM, in which the init containers of the same VM run again; at once the first time, then with a back-off from 10 s to 5 min",
        ),
    ),
    ("spec.runtimeClassName", Refused("this Node has one runtime, tart")),
    ("spec.schedulerName", Elsewhere("scheduler")),
    ("spec.schedulingGates", Elsewhere("scheduler")),
    ("spec.schedulingGroup", Elsewhere("scheduler")),
    ("spec.securityContext", Parts),
    ("spec.securityContext.appArmorProfile", Refused("macOS has no AppArmor")),
    (
        "spec.securityContext.fsGroup",
        Refused("a share has the owners of the host's files, which this agent cannot change"),
    ),
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
        Honoured(
            "the command runs in these groups of the guest, through `chroot -G`, which takes `sudo` without a password; no more than 15; a \
             container without a command has them for hooks and probes by `exec`, and cannot have them without those. They count for the guest's own files: a share's files belong to a user and a group of the Mac",
        ),
    ),
    (
        "spec.securityContext.supplementalGroupsPolicy",
        Honoured("`Strict` keeps the command out of the groups that the guest has its user in"),
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
    (
        "spec.subdomain",
        Honoured(
            "the full name is in the guest's /etc/hosts, unless the container has no command, which is told in an Event; --cluster-domain ends it",
        ),
    ),
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
        Honoured(
            "the files' permissions, on the host and in the guest. The files belong to the Mac's user that runs the agent: a user of the guest with \
             another number can read them only if the mode lets all users do so, and an Event tells when it does not",
        ),
    ),
    ("spec.volumes[].configMap.items", Honoured("with `mode` for each")),
    (
        "spec.volumes[].configMap.name",
        Honoured(
            "files for its keys, which follow changes all at once; the guest can only read them; keys that differ in nothing but upper and lower case cannot \
             be in one volume on a host whose file system takes them for the same",
        ),
    ),
    ("spec.volumes[].configMap.optional", Honoured("without it, the Pod waits until the ConfigMap is there")),
    ("spec.volumes[].csi", Refused(NO_STORAGE)),
    ("spec.volumes[].downwardAPI", Parts),
    ("spec.volumes[].downwardAPI.defaultMode", Honoured("as for configMap")),
    ("spec.volumes[].downwardAPI.items", Honoured("follow changes, as for configMap")),
    ("spec.volumes[].emptyDir", Parts),
    (
        "spec.volumes[].emptyDir.medium",
        Only(
            &["Memory"],
            "a tmpfs in the guest, out of the VM's memory, where `restartPolicy` is `Never`, the container has a command, and no container mounts it \
             read-only. Elsewhere it is on the host's disk, as if it had no medium: a container that restarts has a new VM, and finds it again; \
             it is erased with the Pod",
        ),
    ),
    (
        "spec.volumes[].emptyDir.sizeLimit",
        Honoured(
            "measured every 10 s; a Pod that exceeds it is evicted, and so is one whose volume cannot be measured: more than 64 directories inside each \
             other, or one that the host cannot read for half a minute; of a volume in memory it is the size, and there is no space left beyond it",
        ),
    ),
    ("spec.volumes[].ephemeral", Refused(NO_STORAGE)),
    ("spec.volumes[].fc", Refused(NO_STORAGE)),
    ("spec.volumes[].flexVolume", Refused(NO_STORAGE)),
    ("spec.volumes[].flocker", Refused(NO_STORAGE)),
    ("spec.volumes[].gcePersistentDisk", Refused(NO_STORAGE)),
    ("spec.volumes[].gitRepo", Refused("Kubernetes no longer has it; clone in the command")),
    ("spec.volumes[].glusterfs", Refused(NO_STORAGE)),
    ("spec.volumes[].hostPath", Parts),
    (
        "spec.volumes[].hostPath.path",
        Honoured(
            "a directory that `--allowed-host-path` allows, and that has neither the agent's state nor tart's home in it. One inside of a directory that another Pod can write to has to wait until that Pod is \
             over, and a VM whose directory is replaced while it starts is stopped: either could be made to lead anywhere on the host",
        ),
    ),
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
        Honoured(
            "the name of the share: `/Volumes/My Shared Files/<name>` in the guest; `<name>.ro` for those who may only read a volume that others \
             write to, `<name>.volume` for `http` and `https`",
        ),
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
