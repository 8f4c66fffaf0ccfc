//! Pulls: one for all who want the same image at the same time, and no more at once than may be.

use std::future::pending;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use super::{ImageError, ImageStore, lock};
use crate::crash_point;
use crate::names::{ImageDigest, full_name};
use crate::tart::Credential;
use crate::tart::Fault;

/// Pods with the same credentials share a pull.
pub(super) type PullKey = (String, Vec<Credential>);
/// A pull that is under way; whoever waits for it has a receiver.
pub(super) type SharedPull = Arc<watch::Sender<Pulling>>;

/// How far a pull has come.
#[derive(Debug, Clone)]
pub(super) enum Pulling {
    /// None of it, as far as anybody has heard.
    Awaited,
    /// So many percent of it have arrived.
    Arrived(u8),
    /// It is over.
    Over(Result<Pulled, ImageError>),
}

/// An image that was pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pulled {
    /// Which one it is.
    pub(crate) digest: ImageDigest,
    /// Which of the credentials its registry has taken; none of them when there were none.
    pub(crate) by: Option<usize>,
}

impl ImageStore {
    /// Fetches an image, once for all who want it at the same time. It goes on for as long as one of them waits.
    ///
    /// `arrived` is told how much of it is here, in percent.
    pub(crate) async fn pull(
        self: &Arc<Self>,
        image: &str,
        credentials: Vec<Credential>,
        mut arrived: impl FnMut(u8),
    ) -> Result<Pulled, ImageError> {
        let mut flight = self.board((image.to_owned(), credentials));
        loop {
            let seen = flight.borrow_and_update().clone();
            match seen {
                Pulling::Over(result) => return result,
                Pulling::Arrived(percent) => arrived(percent),
                Pulling::Awaited => {}
            }
            if flight.changed().await.is_err() {
                if *self.grounded.borrow() {
                    // The agent ends, and nothing is wrong with the image.
                    pending::<()>().await;
                }
                return Err(ImageError::Interrupted(image.to_owned()));
            }
        }
    }

    /// Joins the pull that is under way, or starts one.
    fn board(self: &Arc<Self>, key: PullKey) -> watch::Receiver<Pulling> {
        let mut flights = lock(&self.flights);
        if let Some(flight) = flights.get(&key) {
            return flight.subscribe();
        }
        let (sender, receiver) = watch::channel(Pulling::Awaited);
        let flight = Arc::new(sender);
        flights.insert(key.clone(), flight.clone());
        tokio::spawn(self.clone().fly(key, flight));
        receiver
    }

    async fn fly(self: Arc<Self>, key: PullKey, flight: SharedPull) {
        let _pin = self.pin(&key.0).await;
        let mut grounded = self.grounded.subscribe();
        let pulled = tokio::select! {
            pulled = self.fetch_while_wanted(&key, &flight) => Some(pulled),
            _ = grounded.wait_for(|grounded| *grounded) => None,
        };
        if pulled.is_none() {
            // Before anybody takes it for landed: the agent ends then.
            self.abandon(&key.0);
        }
        if matches!(pulled, Some(None | Some(Err(_)))) {
            self.falls_silent(&key.0, &flight);
        }
        lock(&self.flights).retain(|_, other| !Arc::ptr_eq(other, &flight));
        // To look for the image would have tart take what has arrived for garbage.
        let Some(pulled) = pulled else { return };
        // Given up or not, something may be there now.
        let settled = self.settle(&key.0).await;
        let Some(pulled) = pulled else { return };
        let result = pulled.and_then(|by| {
            let digest = settled?.ok_or_else(|| ImageError::Vanished(key.0.clone()))?;
            if by.is_none() {
                self.grant(&digest, None);
            }
            Ok(Pulled { digest, by })
        });
        flight.send_replace(Pulling::Over(result));
    }

    /// A pull has failed, or nobody wants it any more. Unless another one of ours fetches the image, whoever brings it is somebody else.
    fn falls_silent(&self, image: &str, flight: &SharedPull) {
        let Ok(present) = self.tart.cached_siblings(image) else { return };
        let name = full_name(image);
        let mut record = lock(&self.record);
        let is_heard = |(key, other): (&PullKey, &SharedPull)| {
            let fetches = matches!(*other.borrow(), Pulling::Arrived(_));
            fetches && !Arc::ptr_eq(other, flight) && full_name(&key.0) == name
        };
        if !lock(&self.flights).iter().any(is_heard) && record.fall_silent(image, present) {
            self.write(&record);
        }
    }

    /// Fetches an image when it is its turn, unless nobody waits for it any more.
    async fn fetch_while_wanted(
        &self,
        key: &PullKey,
        flight: &SharedPull,
    ) -> Option<Result<Option<usize>, ImageError>> {
        let arrived = |percent| {
            // In this order: whoever sees that it is silent writes that down first.
            flight.send_replace(Pulling::Arrived(percent));
            self.fetches(&key.0);
        };
        let fetch = async {
            let _turn = self.turns.acquire().await;
            let begun = Instant::now();
            let result = match self.begin(&key.0) {
                Ok(()) => self.fetch(&key.0, &key.1, arrived).await,
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
                () = flight.closed() => {
                    let mut flights = lock(&self.flights);
                    // Somebody may have joined at the last moment, under this lock.
                    if flight.is_closed() {
                        flights.remove(key);
                        // Dropping the call kills the tart that is at work.
                        return None;
                    }
                }
            }
        }
    }

    /// Fetches an image whose pull is noted down: tries each credential in turn; without any, tart asks with what
    /// the host has, or as nobody. Says which one the registry has taken.
    ///
    /// `arrived` is told how much of it is here, in percent, from the moment on that our own tart fetches it.
    pub(crate) async fn fetch(
        &self,
        image: &str,
        credentials: &[Credential],
        mut arrived: impl FnMut(u8),
    ) -> Result<Option<usize>, ImageError> {
        crash_point::point("agent.pull.begun");
        let mut tries: Vec<Option<usize>> = (0..credentials.len()).map(Some).collect();
        if tries.is_empty() {
            tries.push(None);
        }
        let mut failure = None;
        for by in tries {
            let credential = by.and_then(|by| credentials.get(by));
            match self.tart.pull(image, credential, &mut arrived).await {
                Ok(()) => {
                    crash_point::point("agent.pull.ended");
                    return Ok(by);
                }
                Err(error) => {
                    // Some registries deny that there is an image at all.
                    let is_refused = matches!(
                        error.fault(),
                        Some(Fault::AccessDenied | Fault::ImageNotFound | Fault::Other)
                    );
                    if error.fault() != Some(Fault::NoSpace) {
                        self.partials.keep(image);
                    }
                    failure = Some(ImageError::Pull { image: image.to_owned(), source: Arc::new(error) });
                    if !is_refused {
                        break;
                    }
                }
            }
        }
        Err(failure.unwrap_or_else(|| ImageError::Interrupted(image.to_owned())))
    }
}
