//! Which Pods the agent is busy with, for those who must not get in its way.

use std::collections::HashSet;

use tokio::sync::watch;

use crate::names::PodUid;

/// The Pods that have a worker; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ActiveWorkers {
    known: watch::Sender<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Whether every Pod that needs a worker has one: not before the agent has seen which Pods there are.
    complete: bool,
    uids: HashSet<PodUid>,
}

/// A Pod is worked on until this is dropped, whatever ends the work.
#[derive(Debug)]
pub(crate) struct WorkerTicket {
    uid: PodUid,
    at_work: ActiveWorkers,
}

impl Default for ActiveWorkers {
    fn default() -> Self {
        Self { known: watch::Sender::new(Known::default()) }
    }
}

impl ActiveWorkers {
    /// From now on, whoever has no worker needs none.
    pub(crate) fn complete(&self) {
        self.known.send_if_modified(|known| !std::mem::replace(&mut known.complete, true));
    }

    /// Work on a Pod begins.
    pub(crate) fn begin(&self, uid: PodUid) -> WorkerTicket {
        self.known.send_if_modified(|known| known.uids.insert(uid.clone()));
        WorkerTicket { uid, at_work: self.clone() }
    }

    /// The Pods that are worked on now, once that is known.
    pub(crate) async fn now(&self) -> HashSet<PodUid> {
        let mut seen = self.known.subscribe();
        // The sender is our own.
        seen.wait_for(|known| known.complete).await.map(|known| known.uids.clone()).unwrap_or_default()
    }
}

impl Drop for WorkerTicket {
    fn drop(&mut self) {
        self.at_work.known.send_if_modified(|known| known.uids.remove(&self.uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_said_before_it_is_known_and_a_ticket_ends_with_its_work() {
        let at_work = ActiveWorkers::default();
        let uid: PodUid = "0b1c".parse().unwrap();
        let ticket = at_work.begin(uid.clone());
        let asked = tokio::spawn({
            let at_work = at_work.clone();
            async move { at_work.now().await }
        });
        tokio::task::yield_now().await;
        assert!(!asked.is_finished());
        at_work.complete();
        assert_eq!(asked.await.unwrap(), HashSet::from([uid]));
        let work = tokio::spawn(async move {
            let _ticket = ticket;
            panic!("the worker dies");
        });
        assert!(work.await.is_err());
        assert_eq!(at_work.now().await, HashSet::new());
    }
}
