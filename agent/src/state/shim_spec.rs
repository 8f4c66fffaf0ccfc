//! What the agent plans, and a shim runs.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::container_spec::{ContainerSpec, GuestBoot, GuestCommand, GuestIdentity};
use super::records::InitState;
use crate::names::{BaseName, VmName};
use crate::tart::{Serial, Share};

/// What a shim runs. A newer agent reads the specs of older ones: a new field needs a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShimSpec {
    pub(crate) vm: VmName,
    /// The image: `host/namespace/repository@sha256:…`.
    pub(crate) image: String,
    /// The image as the Pod names it; absent in the spec of an older agent.
    #[serde(default)]
    pub(crate) image_name: Option<String>,
    /// The base VM to clone; the shim clones the image when it is absent or deleted.
    #[serde(default)]
    pub(crate) base: Option<BaseName>,
    pub(crate) tart: PathBuf,
    /// The image's own number of cores when absent.
    #[serde(default)]
    pub(crate) cpu: Option<u32>,
    /// The image's own size when absent.
    #[serde(default)]
    pub(crate) memory_mib: Option<u64>,
    /// The VM's serial number.
    #[serde(default)]
    pub(crate) serial: Serial,
    /// Directories of the host for the guest.
    #[serde(default)]
    pub(crate) shares: Vec<Share>,
    #[serde(default)]
    pub(crate) identity: GuestIdentity,
    /// The init containers, in order.
    #[serde(default)]
    pub(crate) init: Vec<ContainerSpec>,
    /// The states of the Pod's init containers after the run before, also of those that have run in another VM.
    #[serde(default)]
    pub(crate) init_before: Vec<InitState>,
    /// Whether the shim restarts an init container that fails, in the same guest.
    #[serde(default)]
    pub(crate) restart_init: bool,
    /// The main container; absent where the VM is only for its init containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) main: Option<ContainerSpec>,
    /// How often the main container had restarted before this VM run; absent in the spec of an older agent, where it is the run's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) main_restarts: Option<u32>,
    /// For a guest without a command; absent in the spec of an older agent.
    #[serde(default)]
    pub(crate) boot: Option<GuestBoot>,
    /// Where a guest without a command can leave its exit code.
    #[serde(default)]
    pub(crate) status_dir: Option<PathBuf>,
    /// The grace period after a failed postStart hook.
    pub(crate) grace: Duration,
    /// How long the guest may take from power-on to an address, and then to an answer of the guest agent.
    pub(crate) boot_limit: Duration,
    #[serde(default)]
    pub(crate) host_ports: Vec<HostPort>,
    /// The file of macOS's DHCP server.
    #[serde(default)]
    pub(crate) dhcp_leases: Option<PathBuf>,
    /// Whether hooks may name this Mac itself as their `host`.
    #[serde(default)]
    pub(crate) local_probe_hosts: bool,
    /// How often in a row the container had failed before this run; sets the back-off after it.
    #[serde(default)]
    pub(crate) crashes: u32,
}

/// A port of the host that leads into the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostPort {
    pub(crate) protocol: Protocol,
    /// The address to listen at; all of the host's when absent.
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) guest_port: u16,
}

words! {
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "UPPERCASE")]
    pub(crate) enum Protocol {
        Tcp = "TCP",
        Udp = "UDP",
    }
}

impl ShimSpec {
    /// Whether the main container has no command, so that the VM only boots.
    pub(crate) fn only_boots(&self) -> bool {
        self.main.as_ref().is_some_and(|main| main.command.is_none())
    }

    /// Whether this is the main container's name.
    pub(crate) fn is_main(&self, container: &str) -> bool {
        self.main.as_ref().is_some_and(|main| main.name == container)
    }

    /// The same without variables, arguments and what may contain them: they can be secret, and a run that is over needs none.
    pub(super) fn without_secrets(&self) -> Self {
        let mut spec = self.clone();
        if let Some(boot) = &mut spec.boot {
            boot.environment = GuestCommand::default();
        }
        for container in spec.init.iter_mut().chain(&mut spec.main) {
            if let Some(command) = &mut container.command {
                command.env.clear();
                command.argv.truncate(1);
            }
            // `subPathExpr` has variables in it.
            container.mounts.clear();
            container.post_start = None;
            container.pre_stop = None;
        }
        spec
    }
}

#[cfg(test)]
impl ShimSpec {
    pub(crate) fn example(vm: VmName) -> Self {
        let least = serde_json::json!({
            "vm": "tk-0b1c-0",
            "image": "registry.test/macos@sha256:0",
            "tart": "/tart",
            "main": {"name": "main", "termination": {"path": "/dev/termination-log"}, "log": "/log"},
            "grace": Duration::from_secs(30),
            "boot_limit": Duration::from_mins(15),
        });
        Self { vm, ..serde_json::from_value(least).unwrap() }
    }

    /// The spec of a VM that runs only these init containers.
    pub(crate) fn example_of_init(vm: VmName, names: &[&str]) -> Self {
        let init = |name: &&str| ContainerSpec { name: (*name).to_owned(), ..ContainerSpec::default() };
        Self { init: names.iter().map(init).collect(), main: None, ..Self::example(vm) }
    }

    pub(crate) fn main_mut(&mut self) -> &mut ContainerSpec {
        self.main.as_mut().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::container_spec::{Hook, Mount};
    use serde_json::json;

    #[test]
    fn without_secrets_removes_every_place_of_a_secret() {
        let secret = || "hunter2".to_owned();
        let mut spec = ShimSpec::example(serde_json::from_str("\"tk-0b1c-2\"").unwrap());
        let mut command = GuestCommand::example(&["tool", "hunter2"]);
        command.env = vec![("A".to_owned(), secret())];
        spec.boot = Some(GuestBoot { environment: command.clone(), ..GuestBoot::default() });
        let main = spec.main_mut();
        main.command = Some(command);
        main.mounts = vec![Mount { sub_path: secret(), ..Mount::default() }];
        main.pre_stop = Some(Hook::Exec(vec![secret()]));
        main.post_start = Some(Hook::Exec(vec![secret()]));
        spec.init = spec.main.iter().cloned().collect();
        let left = serde_json::to_string(&spec.without_secrets()).unwrap();
        assert!(!left.contains("hunter2") && left.contains("tool"), "{left}");
    }

    #[test]
    fn the_spec_of_an_older_or_a_newer_agent_is_read() {
        let spec = json!({
            "vm": "tk-0b1c-2",
            "image": "registry.test/macos@sha256:0",
            "tart": "/tart",
            "main": {"name": "main", "command": {"argv": ["true"]}, "log": "/log", "later": true},
            "shares": [{"name": "a", "path": "/a", "read_only": true}],
            "grace": {"secs": 30, "nanos": 0},
            "boot_limit": {"secs": 900, "nanos": 0},
            "crashes": 3,
            "later": {"what": "an agent of next year has added"},
        });
        let read: ShimSpec = serde_json::from_value(spec).unwrap();
        assert_eq!((read.vm.restart().0, read.crashes, read.shares[0].read_only), (2, 3, true));
        assert_eq!((read.image_name, read.shares[0].identity), (None, None));
        assert_eq!(
            read.main.and_then(|main| main.command).map(|command| command.argv),
            Some(vec!["true".to_owned()])
        );
    }
}
