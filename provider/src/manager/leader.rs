//! What the leader does from the beginning of its Lease to its end.

use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

/// How long a pass that has begun may take to end when the manager is told to end. A claim takes seconds; work on a host is safe to break off.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(20);

/// Acts until the manager is told to end, and lets what has begun end then. The Lease is kept all the while: `kept` ends when it is lost. No pass
/// goes on after the return: the Lease may be given up.
pub(super) async fn act(
    acting: impl Future<Output = ()>,
    kept: impl Future<Output = String>,
    end: impl Future<Output = ()>,
    stop: &watch::Sender<bool>,
) -> Result<(), String> {
    tokio::pin!(acting, kept);
    // Another provider may act from now on: this one ends at once, whatever it is doing.
    let is_lost = |reason: String| -> Result<(), String> {
        Err(format!("this provider is not the leader any more: {reason}"))
    };
    tokio::select! {
        () = &mut acting => return Err("the watches have ended".to_owned()),
        reason = &mut kept => return is_lost(reason),
        () = end => {}
    }
    info!("told to end: no new pass begins");
    // An error: nothing listens, as nothing acts any more.
    let _ = stop.send(true);
    tokio::select! {
        ended = tokio::time::timeout(SHUTDOWN_DEADLINE, acting) => {
            if ended.is_err() {
                warn!("a pass was broken off; the next provider takes it up again");
            }
            Ok(())
        }
        reason = kept => is_lost(reason),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;

    /// A pass that needs as long as it may: longer than a Lease lasts that is not renewed.
    async fn pass() {
        sleep(SHUTDOWN_DEADLINE.saturating_sub(Duration::from_secs(1))).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_is_renewed_until_the_last_pass_has_ended() {
        let (stop, _stopped) = watch::channel(false);
        let renewals = Cell::new(0);
        let kept = async {
            loop {
                sleep(Duration::from_secs(2)).await;
                renewals.set(renewals.get() + 1);
            }
        };
        act(pass(), kept, ready(()), &stop).await.unwrap();
        assert_eq!(renewals.get(), 9);
        assert!(*stop.borrow());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_lost_breaks_the_last_pass_off() {
        let (stop, _stopped) = watch::channel(false);
        let has_ended = Cell::new(false);
        let acting = async {
            pass().await;
            has_ended.set(true);
        };
        let kept = async {
            sleep(Duration::from_secs(10)).await;
            "another has it".to_owned()
        };
        let lost = act(acting, kept, ready(()), &stop).await.unwrap_err();
        assert!(lost.contains("another has it") && !has_ended.get(), "{lost}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_that_does_not_end_is_broken_off() {
        let (stop, _stopped) = watch::channel(false);
        act(pending(), pending(), ready(()), &stop).await.unwrap();
    }
}
