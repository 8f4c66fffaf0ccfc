//! SIGTERM for a container's command.

use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use crate::crash_point;
use crate::error_chain::chain;
use crate::guest::script::Ready;
use crate::guest::{Completed, Exec, Guest};
use crate::shim::container::SET_UP_WORDS;

/// How long the guest may take to pass a signal on, and how soon it is asked again.
const LIMIT: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_secs(1);

/// Has the guest pass SIGTERM on to the command, for as long as it takes: one that stands still hears of it later. It never passes on
/// a second one.
pub(crate) async fn terminate(guest: &mut Guest, ready: &Ready) {
    let exec = Exec { argv: ready.terminate(LIMIT), ..Exec::default() };
    let mut complained = false;
    loop {
        let done = guest.run(exec.clone(), LIMIT, SET_UP_WORDS).await;
        if matches!(done.end, Ok(0)) {
            return crash_point::point("shim.terminated");
        }
        if !std::mem::replace(&mut complained, true) {
            complain(&done);
        }
        sleep(AGAIN).await;
    }
}

fn complain(done: &Completed) {
    match &done.end {
        Ok(_) => {
            let said = String::from_utf8_lossy(&done.output);
            warn!(%said, "the command took no SIGTERM; trying until it does");
        }
        Err(error) => {
            warn!(error = chain(error), "cannot send SIGTERM to the command; trying until it works");
        }
    }
}
