//! Until when a container may take to end.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::request::StopSignal;

/// The time that a container has left. The agent may shorten it at any moment.
#[derive(Debug, Clone)]
pub(crate) struct GracePeriod {
    /// What the agent asks for.
    pub(crate) stop: StopSignal,
    /// When it is over whatever the agent says.
    pub(crate) own: Option<Instant>,
    /// What is granted even when it is over.
    pub(crate) granted: Option<Instant>,
}

impl GracePeriod {
    /// What the agent asks for, and nothing else.
    pub(crate) fn asked(stop: StopSignal) -> Self {
        Self { stop, own: None, granted: None }
    }

    /// Whether the agent has given any time: what finds it over has missed it.
    pub(crate) fn is_graceful(&self) -> bool {
        self.stop.latest().is_some_and(|request| request.graceful)
    }

    /// Whether there is no time left.
    pub(crate) fn is_over(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// Grants this much from now on, whatever is left.
    pub(crate) fn grant(&mut self, least: Duration) {
        self.granted = Some(Instant::now() + least);
    }

    /// Waits until there is no time left.
    pub(crate) async fn over(&mut self) {
        loop {
            match self.left() {
                Some(Duration::ZERO) => return,
                // A shorter grace period counts from the moment that it is asked for.
                Some(left) => tokio::select! { () = sleep(left) => {}, () = self.stop.changed() => {} },
                None => self.stop.changed().await,
            }
        }
    }

    /// The time that is left; without an end when nobody has asked for one.
    fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        let asked = self.stop.latest().map(|request| request.time_left(Timestamp::now()));
        let own = self.own.map(|deadline| deadline.saturating_duration_since(now));
        let left = asked.into_iter().chain(own).min()?;
        let granted = self.granted.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        Some(left.max(granted))
    }
}
