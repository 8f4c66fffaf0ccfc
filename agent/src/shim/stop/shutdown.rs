//! Ending a VM: the guest's own shutdown while there is time, force when there is none.

use std::convert::Infallible;
use std::time::Duration;

use futures::StreamExt;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::grace_period::GracePeriod;
use crate::crash_point;
use crate::error_chain::chain;
use crate::guest::{Exec, ExecEvent, Guest, GuestError};
use crate::names::VmName;
use crate::tart::Tart;

/// How long `tart run` may take to stop the VM before it is killed.
const FORCE_PATIENCE: Duration = Duration::from_secs(5);
/// How often a guest that did not listen is asked again.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the guest agent may take to accept the shutdown.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Shuts the guest down within the time that is left; says whether it had to be forced.
pub(crate) async fn shut_down(tart: &Tart, vm: &VmName, child: &mut Child, mut limit: GracePeriod) -> bool {
    crash_point::point("shim.shut-down");
    tokio::select! {
        biased;
        () = limit.over() => {
            force(vm, child).await;
            true
        }
        _ = child.wait() => false,
        never = ask_guest(tart, vm) => match never {},
    }
}

/// Ends the VM now. `tart run` takes SIGINT for a power cut that it tidies up after; SIGKILL is for one that hangs.
pub(crate) async fn force(vm: &VmName, child: &mut Child) {
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

/// Has the guest shut itself down, as soon as it can be asked: it may still be booting. The power button (SIGUSR2) would only
/// open a dialog in a macOS guest.
async fn ask_guest(tart: &Tart, vm: &VmName) -> Infallible {
    let argv = ["sudo", "-n", "/sbin/shutdown", "-h", "now"].map(str::to_owned).to_vec();
    let exec = Exec { argv, ..Exec::default() };
    let mut complained = false;
    loop {
        let ask = async {
            let mut guest = Guest::connect(&tart.vm_dir(vm).join("control.sock")).await?;
            let mut events = guest.exec(exec.clone()).await?;
            while let Some(event) = events.next().await {
                if let ExecEvent::Exit(code) = event? {
                    return Ok(code);
                }
            }
            Ok::<i32, GuestError>(0)
        };
        let problem = match timeout(REQUEST_LIMIT, ask).await {
            Ok(Ok(0)) => std::future::pending().await,
            Ok(Ok(code)) => format!("shutdown exits with {code}"),
            Ok(Err(error)) => chain(&error),
            Err(_) => "no answer".to_owned(),
        };
        if !std::mem::replace(&mut complained, true) {
            info!(%vm, problem, "the guest does not shut down yet; asking again");
        }
        sleep(ASK_INTERVAL).await;
    }
}
