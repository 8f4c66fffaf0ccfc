//! Stops a VM: the guest's own shutdown within the grace period, then force.

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
use crate::guest::{CONTROL_SOCKET, Exec, ExecEvent, Guest, GuestError};
use crate::names::VmName;
use crate::tart::Tart;

/// How long `tart run` may take to stop the VM before it is killed.
const FORCE_LIMIT: Duration = Duration::from_secs(5);
/// How soon a guest that did not accept the shutdown is asked again.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the guest agent may take to accept the shutdown.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Shuts the guest down within its grace period; true when it had to be killed.
pub(in crate::shim) async fn shut_down(
    tart: &Tart,
    vm: &VmName,
    child: &mut Child,
    mut grace: GracePeriod,
) -> bool {
    crash_point::point("shim.shut-down");
    tokio::select! {
        biased;
        () = grace.over() => {
            force(vm, child).await;
            true
        }
        _ = child.wait() => false,
        never = ask_guest(tart, vm) => match never {},
    }
}

/// Stops the VM now. At SIGINT `tart run` powers the VM off and cleans up. SIGKILL is for a tart that hangs.
pub(in crate::shim) async fn force(vm: &VmName, child: &mut Child) {
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        // The child leads its own process group, and has no ID after its end.
        let Some(group) = child.id().and_then(|id| i32::try_from(id).ok()) else { return };
        let _ = killpg(Pid::from_raw(group), signal);
        if timeout(FORCE_LIMIT, child.wait()).await.is_ok() {
            info!(%vm, %signal, "the VM has ended");
            return;
        }
        warn!(%vm, %signal, "the VM does not end");
    }
}

/// Asks the guest agent for a shutdown until it accepts: the guest may still boot. The power button (SIGUSR2) would only open a dialog
/// in a macOS guest.
async fn ask_guest(tart: &Tart, vm: &VmName) -> Infallible {
    let argv = ["sudo", "-n", "/sbin/shutdown", "-h", "now"].map(str::to_owned).to_vec();
    let exec = Exec { argv, ..Exec::default() };
    let mut warned = false;
    loop {
        let ask = async {
            let mut guest = Guest::connect(&tart.vm_dir(vm).join(CONTROL_SOCKET)).await?;
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
        if !std::mem::replace(&mut warned, true) {
            info!(%vm, problem, "the guest does not accept the shutdown; asking again");
        }
        sleep(ASK_INTERVAL).await;
    }
}
