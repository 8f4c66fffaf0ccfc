//! Ending a VM: the guest's own shutdown while there is time, force when there is none.

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::stop::StopSignal;
use crate::guest::Guest;
use crate::report::chain;
use crate::state::GuestCommand;
use crate::tart::Tart;
use crate::vm::VmName;

/// How long `tart run` may take to stop the VM before it is killed.
const FORCE_PATIENCE: Duration = Duration::from_secs(5);
/// How long the guest agent may take to accept the shutdown.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Shuts the guest down within the time that the request leaves; says whether it had to be forced.
pub(super) async fn shut_down(tart: &Tart, vm: &VmName, child: &mut Child, stop: &mut StopSignal) -> bool {
    let mut asked = false;
    loop {
        let left = stop.requested().await.time_left(Timestamp::now());
        if left.is_zero() {
            force(vm, child).await;
            return true;
        }
        let ask = async {
            if !asked {
                ask_guest(tart, vm).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = child.wait() => return false,
            () = sleep(left) => {}
            // A shorter grace period counts from the moment that it is asked for.
            () = stop.changed() => {}
            () = ask => {}
        }
        asked = true;
    }
}

/// Ends the VM now. `tart run` takes SIGINT for a power cut that it tidies up after; SIGKILL is for one that hangs.
pub(super) async fn force(vm: &VmName, child: &mut Child) {
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        // It has a process group of its own, and no ID once it has been waited for.
        let Some(group) = child.id().and_then(|id| i32::try_from(id).ok()) else { return };
        let _ = killpg(Pid::from_raw(group), signal);
        if timeout(FORCE_PATIENCE, child.wait()).await.is_ok() {
            return;
        }
        warn!(%vm, %signal, "the VM does not end");
    }
}

/// Has the guest shut itself down. The power button (SIGUSR2) would only open a dialog in a macOS guest.
async fn ask_guest(tart: &Tart, vm: &VmName) {
    let command = GuestCommand {
        argv: ["sudo", "-n", "/sbin/shutdown", "-h", "now"].map(str::to_owned).to_vec(),
        env: Vec::new(),
        working_dir: None,
    };
    let ask = async {
        let mut guest = Guest::connect(&tart.vm_dir(vm).join("control.sock")).await?;
        let mut events = guest.exec(&command).await?;
        while events.next().await.is_some() {}
        Ok::<(), crate::guest::GuestError>(())
    };
    match timeout(REQUEST_LIMIT, ask).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => info!(%vm, error = chain(&error), "the guest cannot be asked to shut down"),
        Err(_) => info!(%vm, "the guest did not answer the request to shut down"),
    }
}
