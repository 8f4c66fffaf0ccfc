//! Pulls: one for all requesters of an image, and no more in parallel than `--max-parallel-image-pulls`.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{ImageError, ImageStore, PullStarter};
use crate::crash_point;
use crate::mutex::lock;
use crate::names::{ImageDigest, full_name};
use crate::tart::{Credential, Fault};

/// How long pulls may take to end with the agent.
const STOP_LIMIT: Duration = Duration::from_secs(2);
const STOP_INTERVAL: Duration = Duration::from_millis(10);

/// Pods with the same credentials share a pull.
pub(super) type PullKey = (String, Vec<Credential>);
/// A pull that is under way. Each requester has a receiver.
pub(super) type SharedPull = Arc<watch::Sender<PullProgress>>;

#[derive(Debug, Clone)]
pub(super) enum PullProgress {
    /// tart has not begun to fetch the image.
    Waiting,
    /// So many percent have arrived.
    Arrived(u8),
    Ended(Result<Pulled, ImageError>),
}

/// An image that was pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pulled {
    pub(crate) digest: ImageDigest,
    /// The index of the credential that the registry has accepted; `None` when there were none.
    pub(crate) by: Option<usize>,
}

impl ImageStore {
    /// Pulls an image, once for all that want it at the same time. The pull goes on while one of them waits.
    ///
    /// `on_progress` gets the percentage that has arrived.
    pub(crate) async fn pull(
        self: &Arc<Self>,
        image: &str,
        credentials: Vec<Credential>,
        mut on_progress: impl FnMut(u8),
    ) -> Result<Pulled, ImageError> {
        let mut pull = self.join_or_start((image.to_owned(), credentials));
        loop {
            let seen = pull.borrow_and_update().clone();
            match seen {
                PullProgress::Ended(result) => return result,
                PullProgress::Arrived(percent) => on_progress(percent),
                PullProgress::Waiting => {}
            }
            if pull.changed().await.is_err() {
                if *self.is_stopping.borrow() {
                    // The agent is about to end, which is no failure of the pull.
                    pending::<()>().await;
                }
                return Err(ImageError::Interrupted(image.to_owned()));
            }
        }
    }

    /// Ends all pulls, so that the next agent can resume what has arrived. The record of the pulls stays as it is.
    pub(crate) async fn stop_pulls(&self) {
        // Other tart commands delete the partial download that a pull unlocks.
        let _ = timeout(STOP_LIMIT, self.tart.retire()).await;
        let images: Vec<String> = lock(&self.pulls).keys().map(|(image, _)| image.clone()).collect();
        self.is_stopping.send_replace(true);
        let stopped = async {
            while !lock(&self.pulls).is_empty() {
                sleep(STOP_INTERVAL).await;
            }
            // A tart that is killed unlocks its download only when it is dead.
            for image in images {
                while self.partials.keep(&image) && self.partials.is_under_way(&image) {
                    sleep(STOP_INTERVAL).await;
                }
            }
        };
        // The agent does not wait longer for a tart that does not die.
        let _ = timeout(STOP_LIMIT, stopped).await;
    }

    /// Joins the pull that is under way, or starts one.
    fn join_or_start(self: &Arc<Self>, key: PullKey) -> watch::Receiver<PullProgress> {
        let mut pulls = lock(&self.pulls);
        if let Some(pull) = pulls.get(&key) {
            return pull.subscribe();
        }
        let (sender, receiver) = watch::channel(PullProgress::Waiting);
        let pull = Arc::new(sender);
        pulls.insert(key.clone(), pull.clone());
        tokio::spawn(self.clone().run_pull(key, pull));
        receiver
    }

    async fn run_pull(self: Arc<Self>, key: PullKey, pull: SharedPull) {
        let _pin = self.pin(&key.0).await;
        let mut is_stopping = self.is_stopping.subscribe();
        let pulled = tokio::select! {
            pulled = self.fetch_while_wanted(&key, &pull) => Some(pulled),
            _ = is_stopping.wait_for(|is_stopping| *is_stopping) => None,
        };
        if pulled.is_none() {
            // Before `stop_pulls` sees that the pull has ended: the agent ends then.
            self.abandon_pull(&key.0);
        }
        if matches!(pulled, Some(None | Some(Err(_)))) {
            self.stop_fetching(&key.0, &pull);
        }
        lock(&self.pulls).retain(|_, other| !Arc::ptr_eq(other, &pull));
        // When the agent ends, a `tart` that looks for the image would delete its partial download.
        let Some(pulled) = pulled else { return };
        // Even a pull that was cancelled may have brought the image.
        let settled = self.settle_pull(&key.0, PullStarter::ThisProcess).await;
        let Some(pulled) = pulled else { return };
        let result = pulled.and_then(|by| {
            let digest = settled?.ok_or_else(|| ImageError::Vanished(key.0.clone()))?;
            if by.is_none() {
                self.grant(&digest, None);
            }
            Ok(Pulled { digest, by })
        });
        pull.send_replace(PullProgress::Ended(result));
    }

    /// Records that a pull has failed or was cancelled. Unless another pull of the agent fetches the image, it is another program that
    /// brings it from now on.
    fn stop_fetching(&self, image: &str, pull: &SharedPull) {
        let Ok(present) = self.tart.cached_siblings(image) else { return };
        let name = full_name(image);
        let is_fetching = |(key, other): (&PullKey, &SharedPull)| {
            let fetches = matches!(*other.borrow(), PullProgress::Arrived(_));
            fetches && !Arc::ptr_eq(other, pull) && full_name(&key.0) == name
        };
        self.update(|record| {
            !lock(&self.pulls).iter().any(is_fetching) && record.stop_fetching(image, present)
        });
    }

    /// Fetches an image when it is its turn; `None` when no requester waits any more.
    async fn fetch_while_wanted(
        &self,
        key: &PullKey,
        pull: &SharedPull,
    ) -> Option<Result<Option<usize>, ImageError>> {
        let on_progress = |percent| {
            // Send before recording: `stop_fetching` reads this channel to tell whether a pull still fetches.
            pull.send_replace(PullProgress::Arrived(percent));
            self.mark_fetching(&key.0);
        };
        let fetch = async {
            let _slot = self.pull_slots.acquire().await;
            let begun = Instant::now();
            let result = match self.begin_pull(&key.0) {
                Ok(()) => self.fetch(&key.0, &key.1, on_progress).await,
                Err(error) => Err(error),
            };
            let end = result.as_ref().map_or_else(ImageError::reason, |_| "success");
            self.metrics.pull_ended(end, begun.elapsed());
            result
        };
        tokio::pin!(fetch);
        loop {
            tokio::select! {
                result = &mut fetch => return Some(result),
                () = pull.closed() => {
                    let mut pulls = lock(&self.pulls);
                    // A requester may have joined meanwhile, under this lock.
                    if pull.is_closed() {
                        pulls.remove(key);
                        // Dropping the call kills tart.
                        return None;
                    }
                }
            }
        }
    }

    /// Fetches an image whose pull is recorded, with one credential after the other. Without any, tart uses those of the host, or none.
    /// Returns the index of the credential that the registry has accepted.
    ///
    /// `on_progress` gets the percentage that has arrived, once the agent's own tart fetches the image.
    pub(crate) async fn fetch(
        &self,
        image: &str,
        credentials: &[Credential],
        mut on_progress: impl FnMut(u8),
    ) -> Result<Option<usize>, ImageError> {
        crash_point::point("agent.pull.begun");
        let mut tries: Vec<Option<usize>> = (0..credentials.len()).map(Some).collect();
        if tries.is_empty() {
            tries.push(None);
        }
        let mut failure = None;
        for by in tries {
            let credential = by.and_then(|by| credentials.get(by));
            match self.tart.pull(image, credential, &mut on_progress).await {
                Ok(()) => {
                    crash_point::point("agent.pull.ended");
                    return Ok(by);
                }
                Err(error) => {
                    // Some registries answer an unauthorized client that there is no such image.
                    let is_refused = matches!(
                        error.fault(),
                        Some(Fault::AccessDenied | Fault::ImageNotFound | Fault::Other)
                    );
                    if error.fault() != Some(Fault::NoSpace) {
                        self.partials.keep(image);
                    }
                    failure = Some(ImageError::Pull(image.to_owned(), Arc::new(error)));
                    if !is_refused {
                        break;
                    }
                }
            }
        }
        Err(failure.unwrap_or_else(|| ImageError::Interrupted(image.to_owned())))
    }
}
