//! The virtual machine as `tart run` holds it: the guest's processes, its power button and its power.

use std::env;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use super::{Boot, INIT, MACHINE, NETWORK_PROBE};

/// The launcher's or init's exit codes, by which `tart run` learns why a guest ended.
pub(super) mod exit {
    /// The guest shut itself down, or lost its power.
    pub(in crate::guest) const POWERED_OFF: u8 = 0;
    /// The guest reboots.
    pub(in crate::guest) const REBOOT: u8 = 70;
    /// This machine does not allow namespaces or mounts.
    pub(in crate::guest) const NOT_ISOLATED: u8 = 71;
}

/// The line on the power pipe that stands for a press of the power button.
pub(super) const POWER_BUTTON: &str = "power-button";

/// What the guest's first process prints.
const CONSOLE: &str = "console.log";

/// The kernel answers within milliseconds, unless many guests come and go.
const PROBE_DEADLINE: Duration = Duration::from_secs(20);

/// How a guest ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Halt {
    /// It shut itself down.
    PoweredOff,
    /// It restarts.
    Reboot,
    /// Its first process died.
    Crashed,
}

/// A virtual machine that is switched on.
#[derive(Debug)]
pub(crate) struct Machine {
    guest_dir: PathBuf,
    boot: Boot,
    init: Child,
    power: ChildStdin,
}

impl Machine {
    /// Switches the machine on. The directory has all that the guest keeps. The guest is isolated where that is possible.
    pub(crate) async fn start(guest_dir: &Path, boot: Boot, isolated: bool) -> io::Result<Self> {
        std::fs::create_dir_all(guest_dir)?;
        File::create(guest_dir.join(CONSOLE))?;
        let (init, power) = spawn(guest_dir, &boot, isolated && cfg!(target_os = "linux")).await?;
        Ok(Self { guest_dir: guest_dir.into(), boot, init, power })
    }

    /// Waits until the guest ends by itself. May be cancelled and called again.
    pub(crate) async fn halted(&mut self) -> io::Result<Halt> {
        loop {
            let status = self.init.wait().await?;
            if !is(status, exit::NOT_ISOLATED) {
                return Ok(halt(status));
            }
            (self.init, self.power) = spawn(&self.guest_dir, &self.boot, false).await?;
        }
    }

    /// Asks the guest to shut down, as the power button does.
    pub(crate) async fn press_power_button(&mut self) -> io::Result<()> {
        self.power.write_all(format!("{POWER_BUTTON}\n").as_bytes()).await
    }

    /// Switches the machine off: the guest is gone when this returns.
    pub(crate) async fn cut_power(self) -> io::Result<()> {
        let Self { mut init, power, .. } = self;
        drop(power);
        init.wait().await.map(|_| ())
    }
}

/// Whether this machine lets a guest have a network of its own: as root, unless a container forbids it.
pub(crate) async fn can_have_own_network() -> bool {
    let Ok(program) = own_program() else { return false };
    let mut probe = Command::new(program);
    probe.arg0(NETWORK_PROBE).env_clear().kill_on_drop(true);
    probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    cfg!(target_os = "linux")
        && timeout(PROBE_DEADLINE, probe.status())
            .await
            .is_ok_and(|ended| ended.is_ok_and(|status| status.success()))
}

/// Starts the guest's first process, in namespaces of its own if `isolated`.
async fn spawn(guest_dir: &Path, boot: &Boot, isolated: bool) -> io::Result<(Child, ChildStdin)> {
    let name = if isolated { super::LAUNCHER } else { INIT };
    let mut init = Command::new(own_program()?)
        .arg0(name)
        .current_dir(guest_dir)
        // A Ctrl-C in the terminal is for `tart run` alone: a real guest is no member of its process group.
        .process_group(0)
        .env_clear()
        .envs(env::var_os(MACHINE).map(|machine| (MACHINE, machine)))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // Append: an isolated guest that failed has written there why.
        .stderr(File::options().append(true).open(guest_dir.join(CONSOLE))?)
        .spawn()?;
    let mut power = init.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    power.write_all(&boot.to_line()?).await?;
    Ok((init, power))
}

/// This binary, also if the file was replaced since it was started.
fn own_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { env::current_exe() }
}

fn halt(status: ExitStatus) -> Halt {
    if is(status, exit::POWERED_OFF) {
        Halt::PoweredOff
    } else if is(status, exit::REBOOT) {
        Halt::Reboot
    } else {
        Halt::Crashed
    }
}

fn is(status: ExitStatus, code: u8) -> bool {
    status.code() == Some(i32::from(code))
}
