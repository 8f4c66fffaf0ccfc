//! What a shim runs as one container.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// Stands for the Pod's address in variables, arguments and paths: the agent writes them before the guest has one.
pub(crate) const POD_IP: &str = "\0pod-ip\0";

/// The main container, or an init container in the same guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerSpec {
    pub(crate) name: String,
    /// Absent when the VM only boots.
    pub(crate) command: Option<GuestCommand>,
    /// Whether its variables may have changed when it starts. The shim then asks the agent for its command, except for the first start
    /// in a VM, which the spec is made for.
    pub(crate) asks_for_command: bool,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) termination: Termination,
    pub(crate) post_start: Option<Hook>,
    pub(crate) pre_stop: Option<Hook>,
    /// The file for its output.
    pub(crate) log: PathBuf,
}

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GuestCommand {
    pub(crate) argv: Vec<String>,
    /// In the Pod's order; the values may be secret.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) working_dir: Option<String>,
    pub(crate) user: GuestUser,
    /// Whether standard input stays open.
    pub(crate) stdin: bool,
    /// Whether it ends with the first client that was attached to it.
    pub(crate) stdin_once: bool,
    pub(crate) tty: bool,
}

/// What a guest without a command gets in place of a command's environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GuestBoot {
    /// The container's user and variables; without a program.
    pub(crate) environment: GuestCommand,
    /// The file in which the guest finds the variables.
    pub(crate) environment_file: PathBuf,
    /// Whether hooks or probes are commands, which need the variables.
    pub(crate) runs_commands: bool,
}

/// The user of a command; by default the user that is logged in to the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GuestUser {
    /// `runAsUser`.
    pub(crate) uid: Option<u32>,
    /// `runAsGroup`.
    pub(crate) gid: Option<u32>,
    /// `runAsNonRoot`.
    pub(crate) not_root: bool,
    /// `supplementalGroups`.
    pub(crate) groups: Vec<u32>,
    /// `supplementalGroupsPolicy: Strict`: the command is in no groups that only the guest knows of.
    pub(crate) only_groups: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Mount {
    /// The name of the share that holds the volume.
    pub(crate) share: String,
    /// Empty for the whole share.
    pub(crate) sub_path: String,
    /// `mountPath`.
    pub(crate) path: String,
    /// The size in bytes of a volume in the guest's memory, which takes the place of the share; 0 for no limit.
    pub(crate) in_memory: Option<u64>,
    /// Whether a volume in the guest's memory has no other mount, so that it is at `path` itself. Else it is elsewhere, with links to it.
    pub(crate) is_alone: bool,
    pub(crate) missing: Missing,
}

/// What the guest does when the `subPath` does not exist as the container starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Missing {
    /// It waits: the agent has seen the `subPath`, and no guest that could remove it has run since.
    #[default]
    Awaited,
    /// It makes a directory. A container before this one may have made one, or a file.
    Made {
        /// The writable share of the same volume.
        share: String,
        /// The mode of new directories.
        mode: u32,
    },
    /// It mounts an empty directory.
    Empty,
    /// A word of a newer agent: as if it were awaited.
    #[serde(untagged)]
    Newer(Value),
}

/// `terminationMessagePath` and `terminationMessagePolicy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Termination {
    /// A file in the guest.
    pub(crate) path: String,
    /// `FallbackToLogsOnError`.
    pub(crate) or_log: bool,
}

/// An `httpGet` of a hook or a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HttpGet {
    pub(crate) https: bool,
    /// The Pod's address when absent.
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
    /// With the query, if there is one.
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Hook {
    /// A command in the guest.
    Exec(Vec<String>),
    HttpGet(HttpGet),
    Sleep(Duration),
    /// A hook that cannot run, with the reason.
    Impossible(String),
    /// A hook of a newer agent.
    #[serde(untagged)]
    Newer(Value),
}

/// The guest's names and DNS, set before the first container starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GuestIdentity {
    pub(crate) hostname: String,
    /// Names of the Pod's own address in /etc/hosts.
    pub(crate) own_names: Vec<String>,
    /// `hostAliases`: addresses and their names.
    pub(crate) aliases: Vec<(String, Vec<String>)>,
    pub(crate) dns: GuestDns,
}

/// `dnsPolicy` and `dnsConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GuestDns {
    pub(crate) servers: Vec<String>,
    pub(crate) searches: Vec<String>,
    /// Whether these replace the guest's own, or come after them.
    pub(crate) replaces: bool,
}

impl GuestDns {
    pub(crate) fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.searches.is_empty()
    }
}

impl std::fmt::Debug for GuestCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Variables and arguments may be secret.
        let program = self.argv.first().map_or("", String::as_str);
        let arguments = self.argv.len().saturating_sub(1);
        write!(f, "`{program}` with {arguments} arguments, {} variables", self.env.len())
    }
}

impl Mount {
    /// The same with the guest's address in place of [`POD_IP`].
    #[must_use]
    pub(crate) fn at(&self, address: &str) -> Self {
        Self { sub_path: self.sub_path.replace(POD_IP, address), ..self.clone() }
    }
}

impl GuestCommand {
    /// The same with the guest's address in place of [`POD_IP`].
    #[must_use]
    pub(crate) fn at(&self, address: &str) -> Self {
        let fill = |text: &String| text.replace(POD_IP, address);
        Self {
            argv: self.argv.iter().map(fill).collect(),
            env: self.env.iter().map(|(name, value)| (name.clone(), fill(value))).collect(),
            ..self.clone()
        }
    }
}

/// The containers of a Pod in the order in which they start.
pub(crate) fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// Whether a container has a command; without one its VM only boots.
pub(crate) fn has_command(container: &Container) -> bool {
    container.command.iter().chain(&container.args).flatten().next().is_some()
}

#[cfg(test)]
impl GuestCommand {
    pub(crate) fn example(argv: &[&str]) -> Self {
        Self { argv: argv.iter().map(|&word| word.to_owned()).collect(), ..Self::default() }
    }
}
