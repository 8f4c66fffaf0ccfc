//! SIGTERM for a container's command.

use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use crate::crash_point;
use crate::error_chain::chain;
use crate::guest::script::ContainerScripts;
use crate::guest::{Exec, Guest};
use crate::shim::container::set_up::MAX_OUTPUT;

/// How long the guest may take to send the signal, and how soon it is asked again.
const LIMIT: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_secs(1);

/// Has the guest send SIGTERM to the command, and tries until it works: a guest may hang for a while. The command never gets a second
/// SIGTERM.
pub(in crate::shim) async fn terminate(guest: &mut Guest, scripts: &ContainerScripts) {
    let exec = Exec { argv: scripts.terminate(LIMIT), ..Exec::default() };
    let mut warned = false;
    loop {
        let done = guest.run(exec.clone(), LIMIT, MAX_OUTPUT).await;
        if matches!(done.end, Ok(0)) {
            return crash_point::point("shim.terminated");
        }
        if !std::mem::replace(&mut warned, true) {
            match &done.end {
                Ok(_) => {
                    let output = String::from_utf8_lossy(&done.output);
                    warn!(%output, "the command took no SIGTERM; trying until it does");
                }
                Err(error) => {
                    warn!(error = chain(error), "cannot send SIGTERM to the command; trying until it works");
                }
            }
        }
        sleep(INTERVAL).await;
    }
}
