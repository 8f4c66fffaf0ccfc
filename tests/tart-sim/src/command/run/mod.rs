//! `tart run`: starts a VM and ends with it.

mod control_socket;
mod disks;
mod lifecycle;
mod network;
mod shares;
mod validation;
mod vnc;
mod vz_error;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use nix::pty::PtyMaster;

use crate::command::clone::read_config;
use crate::error::{Error, Result};
use crate::guest::Boot;
use crate::home::config::{Config, Os};
use crate::home::file_lock::FileLock;
use crate::home::image::Image;
use crate::home::vm_dir::{RunLock, State, VmDir};
use crate::home::{Home, identity};
use crate::host::faults::VmFaults;
use crate::host::running_vms::{NoSlot, Slot};
use crate::host::{self, faults};
use crate::output::stdout;
use crate::{cli, version};
use lifecycle::Signals;
use network::Attachment;
use shares::Shares;
use tart_sim::Fault;
use vnc::Screen;

/// The most that the simulated Mac gives to a VM, unless the knobs `host-cpus` and `host-memory-mib` say otherwise.
const HOST_CPUS: u64 = 14;
const HOST_MEMORY_MIB: u64 = 64 << 10;

/// A VM that is locked, configured and about to start.
struct Vm {
    name: String,
    dir: VmDir,
    os: Os,
    mac_address: String,
    image: Image,
    faults: VmFaults,
    suspendable: bool,
    /// Whether the guest has the clipboard of the Mac's user.
    clipboard: bool,
    network: Attachment,
    shares: Shares,
    screen: Option<Screen>,
    /// Held, never used: the VM's lock, the locks of its disks, its serial port.
    _held: (RunLock, Vec<FileLock>, Option<PtyMaster>),
}

/// Runs a VM until it stops.
pub(crate) fn run(mut args: cli::Run) -> Result<ExitCode> {
    let home = Home::open()?;
    let dir = validation::validate(&mut args, &home)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::other)?;
    runtime.block_on(async {
        // Before the lock: `stop` sends a signal as soon as it sees the lock.
        let signals = Signals::listen().map_err(Error::other)?;
        let vm = configure(&args, &home, dir)?;
        let started = start(&vm, &home);
        match started {
            Ok(slot) => {
                if faults::is_on(Fault::Runs) {
                    host::record("runs", &vm.name);
                }
                Ok(lifecycle::run_until_end(vm, slot, signals).await)
            }
            Err(message) => {
                print_error(&message);
                Ok(ExitCode::FAILURE)
            }
        }
    })
}

/// Prints a line on stderr, which may be closed.
fn print_error(message: &str) {
    let _ = writeln!(io::stderr(), "{message}");
}

/// Puts the VM's configuration together and takes its lock, in the order of the real tart.
fn configure(args: &cli::Run, home: &Home, dir: VmDir) -> Result<Vm> {
    let home_lock = home.lock()?;
    let config = resolve_mac_collision(home, &args.name, &dir)?;
    let serial = open_serial_port(args)?;
    disks::check_root_options(args.root_disk_opts.as_deref().unwrap_or_default())?;
    let network = network::attach(args)?;
    let disks = disks::attach(&args.disk, home)?;
    let shares = shares::collect(&args.dir, home)?;
    check_resources(args, &config)?;
    // Take the lock after the last read of the configuration: closing that file would release it.
    let Some(lock) = dir.lock_for_running().map_err(Error::other)? else {
        return Err(Error::vm_already_running(&args.name));
    };
    drop(home_lock);
    Ok(Vm {
        name: args.name.clone(),
        image: dir.image(),
        dir,
        os: config.os,
        mac_address: config.mac_address,
        faults: VmFaults::of(&args.name),
        suspendable: args.suspendable,
        clipboard: !args.no_clipboard,
        network,
        shares,
        screen: Screen::of(args),
        _held: (lock, disks, serial),
    })
}

/// Gives the VM another MAC address if a running VM has the same.
fn resolve_mac_collision(home: &Home, name: &str, dir: &VmDir) -> Result<Config> {
    let mut config = read_config(dir)?;
    let collides = home.local_vms()?.into_iter().any(|(other, vm)| {
        other != name
            && vm.is_running()
            && vm.config().is_ok_and(|theirs| theirs.mac_address == config.mac_address)
    });
    if collides {
        stdout::line("There is already a running VM with the same MAC address!");
        stdout::line("Resetting VM to assign a new MAC address...");
        config.mac_address = identity::random_mac_address();
        config.write(&dir.config_path())?;
        // The snapshot, if there is one, has the old address in it.
        let _ = std::fs::remove_file(dir.state_path());
    }
    Ok(config)
}

fn open_serial_port(args: &cli::Run) -> Result<Option<PtyMaster>> {
    use nix::fcntl::OFlag;
    use nix::pty::{grantpt, posix_openpt, unlockpt};

    if args.serial {
        let failed = |_| Error::runtime("Failed to create PTY");
        let port = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY).map_err(failed)?;
        grantpt(&port).and_then(|()| unlockpt(&port)).map_err(failed)?;
        stdout::line(format!("Successfully open pty {}", pty_name(&port).map_err(failed)?));
        return Ok(Some(port));
    }
    if let Some(path) = &args.serial_path {
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(path);
        opened.map_err(|_| Error::runtime("Failed to open PTY"))?;
    }
    Ok(None)
}

#[cfg(target_os = "linux")]
fn pty_name(port: &PtyMaster) -> nix::Result<String> {
    nix::pty::ptsname_r(port)
}

#[cfg(not(target_os = "linux"))]
fn pty_name(port: &PtyMaster) -> nix::Result<String> {
    use std::os::fd::AsFd as _;

    let device = rustix::pty::ptsname(port.as_fd(), Vec::new())
        .map_err(|error| nix::Error::from_raw(error.raw_os_error()))?;
    Ok(device.to_string_lossy().into_owned())
}

/// What the framework refuses in a configuration before it makes the VM.
fn check_resources(args: &cli::Run, config: &Config) -> Result<()> {
    if args.nested && config.os == Os::Darwin {
        return Err(Error::runtime("macOS virtual machines do not support nested virtualization"));
    }
    let host = |knob: Fault, default| {
        faults::parameter(knob).and_then(|number| number.parse().ok()).unwrap_or(default)
    };
    let invalid = |what: &str| Error::other(format!("Invalid virtual machine configuration. {what}"));
    if u64::from(config.cpu_count) > host(Fault::HostCpus, HOST_CPUS) {
        return Err(invalid("The number of virtual CPUs is greater than the maximum allowed."));
    }
    if config.memory_size >> 20 > host(Fault::HostMemoryMib, HOST_MEMORY_MIB) {
        return Err(invalid("The memory size is greater than the maximum allowed."));
    }
    Ok(())
}

/// Asks the framework to start the VM. The error is what `run` prints.
fn start(vm: &Vm, home: &Home) -> Result<Slot, String> {
    let restore = vm.dir.state_path();
    if restore.exists() {
        stdout::line("restoring VM state from a snapshot...");
        if vm.faults.is_on(Fault::RestoreFails) {
            return Err(vz_error::failed_to_restore());
        }
        std::fs::remove_file(&restore).map_err(|error| error.to_string())?;
        stdout::line("resuming VM...");
    }
    if let Some(problem) = vm.shares.shares.iter().find_map(shares::problem) {
        return Err(vz_error::invalid_share(problem));
    }
    if vm.faults.is_on(Fault::VzAuxiliaryStorage) {
        return Err(vz_error::auxiliary_storage_locked());
    }
    let slot = Slot::take(vm.os, &vm.mac_address, vm.network.network).map_err(|error| match error {
        NoSlot::LimitExceeded => limit_exceeded(vm, home),
        NoSlot::Io(error) => error.to_string(),
    })?;
    if faults::is_on_for(Fault::NoSpace, "run") {
        return Err(vz_error::out_of_disk_space());
    }
    if vm.faults.is_on(Fault::VzInternal) {
        return Err(vz_error::failed_to_start());
    }
    if let Some(reason) = vm.faults.parameter(Fault::VzHostKey) {
        let reason = if reason.is_empty() { "Failed to create new HostKey" } else { &reason };
        return Err(vz_error::host_key(reason));
    }
    Ok(slot)
}

fn limit_exceeded(vm: &Vm, home: &Home) -> String {
    if !version::at_least((2, 18, 1)) {
        return vz_error::limit_exceeded();
    }
    // Skip this VM: closing its `config.json` would release its lock, and a process does not see its own lock.
    let others: Vec<_> = home
        .local_vms()
        .unwrap_or_default()
        .into_iter()
        .filter(|(name, other)| *name != vm.name && other.state() == State::Running)
        .map(|(name, _)| name)
        .collect();
    match others.as_slice() {
        [] => "The number of VMs exceeds the system limit".into(),
        others => {
            format!("The number of VMs exceeds the system limit (other running VMs: {})", others.join(", "))
        }
    }
}

impl Vm {
    /// How long the guest takes to boot.
    fn boot_delay(&self) -> Duration {
        self.faults.duration(Fault::BootDelay).unwrap_or_else(|| seconds(self.image.boot_delay))
    }

    /// What the guest is told when it boots, but for its network.
    fn boot(&self) -> Boot {
        let image = &self.image;
        Boot {
            os: self.os,
            user: image.user.clone(),
            uid: image.user_number(),
            sudo: image.sudo,
            shell: image.shell.clone(),
            sealed: image.sealed && self.os == Os::Darwin,
            address: None,
            own_network: false,
            shares: self.shares.shares.clone(),
            command: image.boot.clone(),
            agent: image.agent,
            agent_delay: self
                .faults
                .duration(Fault::AgentDelay)
                .unwrap_or_else(|| seconds(image.agent_delay)),
            old_agent: image.has_old_agent(),
            resolves_ip: image.agent_resolves_ip(),
            clipboard: self.clipboard.then(host::clipboard),
            says_started: image.agent_says_started,
            forgets_exit: image.agent_forgets_exit,
            shutdown_delay: seconds(image.shutdown_delay),
        }
    }
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or_default()
}
