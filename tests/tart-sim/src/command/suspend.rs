//! `tart suspend`.

use std::process::ExitCode;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli;
use crate::error::{Error, Result};
use crate::home::Home;

/// Tells the `run` process to suspend the VM, and does not wait for it.
pub(crate) fn suspend(args: cli::Suspend) -> Result<ExitCode> {
    let name = args.name;
    let vm = Home::open()?.open_local(&name)?;
    let Some(pid) = vm.running_pid() else {
        // The real tart puts the whole message where only the name belongs.
        let message = Error::vm_not_running(&name);
        return Err(Error::vm_not_running(message.description()));
    };
    kill(Pid::from_raw(pid), Signal::SIGUSR1).map_err(|_| {
        Error::runtime(format!(
            "Failed to suspend the VM: failed to send SIGUSR1 signal to the \"tart run\" process running VM \"{name}\""
        ))
    })?;
    Ok(ExitCode::SUCCESS)
}
