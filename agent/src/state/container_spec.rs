//! What a shim is told of one container.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use k8s_openapi::api::core::v1::Container;

/// Stands for the Pod's address wherever it is not known before the guest has one: in variables, arguments and paths.
pub(crate) const POD_IP: &str = "\0pod-ip\0";

/// One container: the main one, or one that runs before it in the same guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerSpec {
    /// Its name in the Pod.
    pub(crate) name: String,
    /// The program to run in the guest with its arguments; the VM simply boots when absent.
    pub(crate) command: Option<GuestCommand>,
    /// Whether its variables may be others when its turn comes. Then the agent is asked for its command, except for the first start in
    /// a VM, which the plan is made for.
    pub(crate) late: bool,
    /// Where its volumes are to be found.
    pub(crate) mounts: Vec<Mount>,
    /// Where its last words are looked for.
    pub(crate) termination: Termination,
    /// What runs right after its start.
    pub(crate) post_start: Option<Hook>,
    /// What runs right before it is told to end.
    pub(crate) pre_stop: Option<Hook>,
    /// Where its output goes.
    pub(crate) log: PathBuf,
}

/// A command line for the guest.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GuestCommand {
    /// The program and its arguments.
    pub(crate) argv: Vec<String>,
    /// Variables for it, in the Pod's order; their values may be secret.
    pub(crate) env: Vec<(String, String)>,
    /// The directory to start it in.
    pub(crate) working_dir: Option<String>,
    /// Whom it runs as.
    pub(crate) user: GuestUser,
    /// Whether its standard input stays open.
    pub(crate) stdin: bool,
    /// Whether it gets a terminal.
    pub(crate) tty: bool,
}

/// What a guest without a command is given in place of a command's environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GuestBoot {
    /// The container's variables, for no command in particular.
    pub(crate) surroundings: GuestCommand,
    /// The file in which the guest finds them.
    pub(crate) environment_file: PathBuf,
    /// Whether hooks or probes are commands, which have the same variables.
    pub(crate) runs_commands: bool,
}

/// Whom a command runs as: the user that is logged in to the guest unless this says otherwise.
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
    /// Whether it is in no other groups, whatever the guest says: `supplementalGroupsPolicy: Strict`.
    pub(crate) only_groups: bool,
}

/// A place in the guest where a container expects a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Mount {
    /// The share that holds the volume.
    pub(crate) share: String,
    /// What of the share is meant; empty for all of it.
    pub(crate) sub_path: String,
    /// The container's `mountPath`.
    pub(crate) path: String,
    /// The size in bytes of a volume in the guest's memory, which stands for the share of that name; 0 for one without a limit.
    pub(crate) in_memory: Option<u64>,
    /// What is done when that part of the share is not there.
    pub(crate) missing: Missing,
}

/// What is done when a part of a share is not there as its container starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Missing {
    /// It is there: the host has looked, and nobody who could remove it has run since.
    #[default]
    Awaited,
    /// The guest makes it: containers before this one may have made it already, or something else.
    Made {
        /// The share of the same volume that the guest can write to.
        share: String,
        /// The mode of directories that are made.
        mode: u32,
    },
    /// An empty directory stands for it.
    Empty,
}

/// `terminationMessagePath` and `terminationMessagePolicy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Termination {
    /// The file in the guest.
    pub(crate) path: String,
    /// Whether the end of the log serves when a container fails without a message.
    pub(crate) or_log: bool,
}

/// An `httpGet`, with everything known but the Pod's address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HttpGet {
    /// Whether TLS is spoken.
    pub(crate) https: bool,
    /// Where; the Pod's address when absent.
    pub(crate) host: Option<String>,
    /// The port there.
    pub(crate) port: u16,
    /// The path, perhaps with a query.
    pub(crate) path: String,
    /// Headers to send.
    pub(crate) headers: Vec<(String, String)>,
}

/// Something to be done at a turn in a container's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Hook {
    /// A command in the guest.
    Exec(Vec<String>),
    /// A request to the guest.
    HttpGet(HttpGet),
    /// Nothing, for a while.
    Sleep(Duration),
    /// One that cannot be done, with the reason.
    Impossible(String),
}

/// What makes the guest the Pod's, before any container runs in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GuestIdentity {
    /// The name that the guest is to have.
    pub(crate) hostname: String,
    /// Names that stand for the Pod's own address.
    pub(crate) own_names: Vec<String>,
    /// Further lines for the guest's list of hosts: addresses and their names.
    pub(crate) aliases: Vec<(String, Vec<String>)>,
    /// How it looks up names.
    pub(crate) dns: GuestDns,
}

/// Whom a guest asks for names: `dnsPolicy` and `dnsConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GuestDns {
    /// The servers.
    pub(crate) servers: Vec<String>,
    /// The domains that a short name is looked for in.
    pub(crate) searches: Vec<String>,
    /// Whether these take the place of the guest's own, rather than to come after them.
    pub(crate) replaces: bool,
}

impl GuestDns {
    /// Whether the guest is to be changed at all.
    pub(crate) fn asks_for_anything(&self) -> bool {
        !self.servers.is_empty() || !self.searches.is_empty()
    }
}

impl std::fmt::Debug for GuestCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Variables and arguments may be secret.
        let program = self.argv.first().map_or("", String::as_str);
        write!(
            f,
            "`{program}` with {} arguments, {} variables",
            self.argv.len().saturating_sub(1),
            self.env.len()
        )
    }
}

impl Mount {
    /// The same with the guest's address where it is spoken of.
    #[must_use]
    pub(crate) fn at(&self, address: &str) -> Self {
        Self { sub_path: self.sub_path.replace(POD_IP, address), ..self.clone() }
    }
}

impl GuestCommand {
    /// The same with the guest's address where it is spoken of.
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

/// Whether a container has a command; without one its VM simply boots.
pub(crate) fn has_command(container: &Container) -> bool {
    container.command.iter().chain(&container.args).flatten().next().is_some()
}

#[cfg(test)]
impl GuestCommand {
    /// A command for tests.
    pub(crate) fn example(argv: &[&str]) -> Self {
        Self {
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
            env: Vec::new(),
            working_dir: None,
            user: GuestUser::default(),
            stdin: false,
            tty: false,
        }
    }
}
