//! `tart stop`.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli;
use crate::error::{Error, Result};
use crate::home::Home;
use crate::home::vm_dir::State;

/// How often `stop` looks at the VM's lock.
const POLL: Duration = Duration::from_millis(100);

/// Stops a VM with SIGINT, and with SIGKILL when the time is over.
pub(crate) fn stop(args: &cli::Stop) -> Result<ExitCode> {
    let vm = Home::open()?.open_local(&args.name)?;
    match vm.state() {
        State::Suspended => std::fs::remove_file(vm.state_path()).map_err(Error::other)?,
        State::Stopped => return Err(Error::vm_not_running(&args.name)),
        State::Running => {
            if let Some(pid) = vm.running_pid() {
                // `run` may have ended already.
                let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
            }
            let deadline = Instant::now() + Duration::from_secs(args.timeout);
            while Instant::now() < deadline {
                if !vm.is_running() {
                    return Ok(ExitCode::SUCCESS);
                }
                thread::sleep(POLL);
            }
            if let Some(pid) = vm.running_pid() {
                kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(|error| {
                    Error::runtime(format!(
                        "failed to forcefully terminate the VM \"{}\": {}",
                        args.name,
                        error.desc()
                    ))
                })?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
