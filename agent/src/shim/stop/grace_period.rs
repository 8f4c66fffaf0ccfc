//! The time that a container has to end.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::request::StopSignal;
use crate::clock;

/// The agent may shorten it at any moment.
#[derive(Debug, Clone)]
pub(in crate::shim) struct GracePeriod {
    stop: StopSignal,
    /// The shim's own deadline, whatever the agent asks for.
    own_deadline: Option<Instant>,
    /// It is not over before this.
    not_before: Option<Instant>,
}

impl GracePeriod {
    /// The grace period of the agent's stop request.
    pub(in crate::shim) fn of_stop(stop: StopSignal) -> Self {
        Self { stop, own_deadline: None, not_before: None }
    }

    /// The same with a deadline of the shim's own, `grace` from now.
    pub(in crate::shim) fn or_within(self, grace: Duration) -> Self {
        Self { own_deadline: Some(Instant::now() + grace), ..self }
    }

    /// Whether the agent's stop request has a grace period.
    pub(in crate::shim) fn is_graceful(&self) -> bool {
        self.stop.latest().is_some_and(|request| !request.grace.is_zero())
    }

    pub(in crate::shim) fn is_over(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// Leaves at least this much from now on.
    pub(in crate::shim) fn extend(&mut self, least: Duration) {
        self.not_before = Some(Instant::now() + least);
    }

    pub(in crate::shim) async fn over(&mut self) {
        loop {
            match self.left() {
                Some(Duration::ZERO) => return,
                // A shorter grace period counts from the agent's request.
                Some(left) => tokio::select! { () = sleep(left) => {}, () = self.stop.changed() => {} },
                None => self.stop.changed().await,
            }
        }
    }

    /// `None` without any deadline.
    fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        let asked = self.stop.latest().map(|request| request.time_left(clock::now()));
        let own = self.own_deadline.map(|deadline| deadline.saturating_duration_since(now));
        let left = asked.into_iter().chain(own).min()?;
        let least = self.not_before.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        Some(left.max(least))
    }
}
