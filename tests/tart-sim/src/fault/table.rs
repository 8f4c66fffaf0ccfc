//! The table of faults: one row each. The README's tables are made from it.

use std::fmt;

use super::parameter::Parameter;

/// What a fault happens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// Any command, before it does anything.
    Command,
    /// Images, registries, and VMs that do not run.
    Storage,
    /// The Mac: its hardware, its framework, its network.
    Mac,
    /// A running VM: all of them, or one.
    Vm,
}

macro_rules! faults {
    ($($subject:ident { $($variant:ident $file:literal ($parameter:expr) $effect:literal)+ })+) => {
        /// A fault or a knob of the simulator.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Fault {
            $($(#[doc = $effect] $variant,)+)+
        }

        impl Fault {
            /// All faults, in the order of the README.
            pub const ALL: &[Self] = &[$($(Self::$variant,)+)+];

            /// The name of the file that switches the fault on.
            pub(super) const fn file_name(self) -> &'static str {
                match self {
                    $($(Self::$variant => $file,)+)+
                }
            }

            /// What the fault happens to.
            pub(super) const fn subject(self) -> Subject {
                match self {
                    $($(Self::$variant)|+ => Subject::$subject,)+
                }
            }

            /// What the file holds.
            pub(super) const fn parameter(self) -> Parameter {
                match self {
                    $($(Self::$variant => $parameter,)+)+
                }
            }

            /// What the simulator does while the fault is on.
            #[cfg(test)]
            const fn effect(self) -> &'static str {
                match self {
                    $($(Self::$variant => $effect,)+)+
                }
            }
        }
    };
}

faults! {
    Command {
        Version "version" (Parameter::Release)
            "tart is this release: output, flags and messages follow it; default 2.35.0"
        Latency "latency" (Parameter::Latencies)
            "every command, or those named, take that much longer"
        Hang "hang" (Parameter::Commands)
            "these commands do nothing until the file is gone; SIGINT does not end them, SIGTERM does"
        HoldPipe "hold-pipe" (Parameter::Commands)
            "these commands leave a process behind that keeps their stdout and stderr open until the file is gone"
        Garbage "garbage" (Parameter::Commands)
            "these commands print something that is not JSON and succeed"
        Calls "calls" (Parameter::Nothing)
            "each command adds a line with its name to `TART_SIM_HOST/calls` before it does anything"
    }
    Storage {
        Pull "pull" (Parameter::Outages)
            "requests to registries fail or stall"
        InstantPull "instant-pull" (Parameter::Nothing)
            "pulls take no time from now on, whatever the image says"
        WrongManifest "wrong-manifest" (Parameter::Repositories)
            "a registry that is asked for a digest in one of these repositories answers with the manifest of another image there"
        AlteredDisk "altered-disk" (Parameter::Repositories)
            "registries serve other layers of a disk than the manifest names, for images of these repositories"
        NoSpace "no-space" (Parameter::SpaceCommands)
            "the copy, or the start, fails because the disk is full"
        StallCopy "stall-copy" (Parameter::Nothing)
            "the copy of a VM stops after its first files, its locks held, until the file is gone; SIGINT ends it"
        Capacity "capacity" (Parameter::Gigabytes)
            "the size of the volume: pulls and auto-pruning have what VMs and caches leave of it"
        ListRace "list-race" (Parameter::VmNames)
            "`list` and `clone` fail as if one of these VMs were being deleted at that moment"
        KeychainLocked "keychain-locked" (Parameter::Nothing)
            "tart can neither read nor write stored credentials"
    }
    Mac {
        Runs "runs" (Parameter::Nothing)
            "each VM that starts adds a line with its name to `TART_SIM_HOST/runs`"
        VmLimitStuck "vm-limit-stuck" (Parameter::Places)
            "the framework still counts that many macOS guests that are gone"
        VmLimit "vm-limit" (Parameter::Number)
            "the framework runs that many macOS guests at a time; default two"
        HostCpus "host-cpus" (Parameter::Number)
            "the Mac has that many CPUs: `run` refuses a VM with more"
        HostMemoryMib "host-memory-mib" (Parameter::Number)
            "the Mac has that much memory: `run` refuses a VM with more"
        NestedUnsupported "nested-unsupported" (Parameter::Nothing)
            "`run` refuses `--nested`: the Mac is too old"
        SoftnetMissing "softnet-missing" (Parameter::Nothing)
            "Softnet is not installed"
        Subnet "subnet" (Parameter::Subnet)
            "guests have addresses of this subnet, which the host cannot reach"
        OwnNetwork "own-network" (Parameter::Nothing)
            "guests have a network and an address of their own where the machine allows it, as on a Mac"
        DhcpLeaseTime "dhcp-lease-time" (Parameter::Duration)
            "the Mac lends an address for that long; default one day"
        ArpGarbage "arp-garbage" (Parameter::Line)
            "`ip --resolver arp` fails on this line"
    }
    Vm {
        SoftnetDies "softnet-dies" (Parameter::Nothing)
            "the Softnet process ends, and `run` with it"
        VzInternal "vz-internal" (Parameter::Nothing)
            "`run` fails with `VZErrorDomain Code=1`: no user is logged in at the Mac's screen"
        VzHostKey "vz-host-key" (Parameter::Reason)
            "`run` fails with `VZErrorDomain Code=-9`: the keychain is locked"
        VzAuxiliaryStorage "vz-auxiliary-storage" (Parameter::Nothing)
            "`run` fails with `VZErrorDomain Code=2`: another process has the VM's NVRAM"
        RestoreFails "restore-fails" (Parameter::Nothing)
            "a suspended VM cannot be resumed"
        SuspendFails "suspend-fails" (Parameter::Nothing)
            "a VM cannot be suspended"
        RunDies "run-dies" (Parameter::RunExit)
            "`run` ends that long after its start, with code 1 unless told otherwise, and with this message"
        GuestPanic "guest-panic" (Parameter::Nothing)
            "the guest stops with an error: a line on stdout, exit code 0"
        VzOutOfDiskSpace "vz-out-of-disk-space" (Parameter::Nothing)
            "the framework stops the guest because the host's disk is full: a line on stdout, exit code 0"
        NetworkLost "network-lost" (Parameter::Nothing)
            "the guest loses its network: a line on stdout, exit code 0"
        SigintHang "sigint-hang" (Parameter::Nothing)
            "`run` ignores SIGINT, so that `stop` has to kill it"
        SigintDelay "sigint-delay" (Parameter::Duration)
            "the VM takes that long to stop after SIGINT"
        BootDelay "boot-delay" (Parameter::Duration)
            "the guest takes that long to boot, instead of the image's `bootDelay`"
        AgentDelay "agent-delay" (Parameter::Duration)
            "the guest agent takes that long to answer, instead of the image's `agentDelay`"
        AgentDown "agent-down" (Parameter::Nothing)
            "the control socket accepts and closes: `exec` fails after about ten seconds"
        AgentStall "agent-stall" (Parameter::Nothing)
            "the control socket accepts and nothing more arrives, also for commands that run, until the file is gone"
        AgentGarbage "agent-garbage" (Parameter::Nothing)
            "the control socket answers something that is no HTTP/2"
        ControlSocketConnections "control-socket-connections" (Parameter::Number)
            "`run` can have that many connections to the guest agent, also those that clients have closed; then it closes the control socket for good; default 10,000"
        AgentConnectTimeout "agent-connect-timeout" (Parameter::Duration)
            "`exec` tries that long to reach the guest agent; default ten seconds"
        StaleLease "stale-lease" (Parameter::Nothing)
            "a guest whose hardware address has a lease gets another address than that one, which `ip` shows"
        GuestName "guest-name" (Parameter::Reason)
            "the name that the guest gives the DHCP server, and that its lease has; it may be empty"
        DhcpExhausted "dhcp-exhausted" (Parameter::Nothing)
            "the guest gets no address"
        NoNamespaces "no-namespaces" (Parameter::Nothing)
            "the guest runs without namespaces, as on a machine that does not allow them"
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The README with its tables of faults made anew; each follows a comment that names the subject.
    fn readme(text: &str) -> String {
        let mut made = String::new();
        let mut is_old_row = false;
        for line in text.lines() {
            is_old_row &= line.starts_with('|');
            if is_old_row {
                continue;
            }
            made.push_str(line);
            made.push('\n');
            if let Some(subject) = line.strip_prefix("<!-- Made by `make docs`: ") {
                made.push_str(&table(subject.trim_end_matches(" -->")));
                is_old_row = true;
            }
        }
        made
    }

    fn table(subject: &str) -> String {
        let faults = Fault::ALL.iter().filter(|fault| format!("{:?}", fault.subject()) == subject);
        let rows = faults.map(|fault| {
            let parameter = match fault.parameter() {
                Parameter::Nothing => "–".to_owned(),
                parameter => parameter.to_string().replace('|', "\\|"),
            };
            format!("| `{fault}` | {parameter} | {} |\n", fault.effect())
        });
        format!("| file | parameter | effect |\n|---|---|---|\n{}", rows.collect::<String>())
    }

    #[test]
    fn the_readme_lists_every_fault() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
        let written = std::fs::read_to_string(path).unwrap();
        let made = readme(&written);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &made).unwrap();
        } else {
            assert!(written == made, "README.md does not have the table's faults; run `make docs`");
        }
        for fault in Fault::ALL {
            assert!(made.contains(&format!("\n| `{fault}` |")), "README.md has no table with {fault}");
        }
    }
}
