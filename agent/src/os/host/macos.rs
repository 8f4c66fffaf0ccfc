//! The facts of a Mac. No other module is for macOS only.

use std::path::Path;
use std::time::Duration;

use nix::unistd::Pid;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};
use tracing::warn;

use super::SystemFacts;
use crate::error_chain::chain;

const DEADLINE: Duration = Duration::from_secs(5);

pub(super) async fn facts() -> SystemFacts {
    let names = ["kern.bootsessionuuid", "kern.maxproc"];
    // It prints `name: value` lines. With `-i` it leaves out names that this macOS does not know.
    let printed =
        match command::stdout(Path::new("/usr/sbin/sysctl"), &["-i", names[0], names[1]], DEADLINE).await {
            Ok(printed) => printed,
            Err(error) => {
                warn!(error = chain(&error), "cannot read the facts of this Mac");
                return SystemFacts::default();
            }
        };
    let value = |name: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    SystemFacts {
        boot_id: value(names[0]),
        machine_id: None,
        max_pids: value(names[1]).and_then(|max| max.parse().ok()),
    }
}

pub(crate) fn processes() -> Option<u64> {
    let mut system = System::new().ok()?;
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, ProcessRefreshKind::nothing());
    u64::try_from(system.processes().len()).ok()
}

/// The processes that have a VM's disk open: `tart run`, and the helper of the Virtualization framework in which the guest runs. launchd
/// starts the helper, so that it is no child of tart.
pub(crate) async fn vm_helpers(disk: &Path) -> Vec<Pid> {
    let arguments = [std::ffi::OsStr::new("-t"), std::ffi::OsStr::new("--"), disk.as_os_str()];
    // It fails when no process has the file open.
    let printed =
        command::stdout(Path::new("/usr/sbin/lsof"), &arguments, DEADLINE).await.unwrap_or_default();
    printed.lines().filter_map(|line| line.trim().parse().ok()).map(Pid::from_raw).collect()
}
