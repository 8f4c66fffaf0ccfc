//! How many watches a connection carries. The API server allows some 100 requests at once on one connection, and a watch is a request
//! that does not end: beyond the limit every other request would wait for ever.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;
use kube::api::Api;
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep;
use tracing::debug;

use super::{View, apply, fail};
use crate::apiserver::call::{DEADLINE, call};
use crate::apiserver::watched_objects::ObjectError;
use crate::backoff::WATCH;

/// Well below the API server's limit, since lists and polls need room, too.
const WATCHES: usize = 64;
/// Polls at once, so that they leave room for the lists of new watches.
const POLLS: usize = 8;
/// How often an object is read that cannot be watched; the kubelet's interval for objects that it does not watch.
const POLL_INTERVAL: Duration = Duration::from_mins(1);

/// The places for watches on one connection. An object without a place is polled until there is one.
#[derive(Debug, Clone)]
pub(crate) struct WatchSlots {
    watches: Arc<Semaphore>,
    polls: Arc<Semaphore>,
}

impl WatchSlots {
    pub(crate) fn new() -> Self {
        Self::of(WATCHES)
    }

    fn of(watches: usize) -> Self {
        Self { watches: Arc::new(Semaphore::new(watches)), polls: Arc::new(Semaphore::new(POLLS)) }
    }

    /// Polls the object with this name into the view until a place for a watch is free, and returns the place.
    pub(super) async fn poll_until_free<T, V>(
        &self,
        api: &Api<T>,
        name: &str,
        keep: fn(T) -> V,
        words: &str,
        view: &watch::Sender<View<V>>,
    ) -> Option<OwnedSemaphorePermit>
    where
        T: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
        V: PartialEq,
    {
        if let Ok(slot) = self.watches.clone().try_acquire_owned() {
            return Some(slot);
        }
        debug!("no place to watch {words}; polling it");
        let polls = async {
            let mut delays = WATCH.delays();
            loop {
                let answer = {
                    let _place = self.polls.acquire().await;
                    call(DEADLINE, api.get_opt(name)).await
                };
                match answer {
                    Ok(object) => {
                        let mut listing = BTreeMap::new();
                        for event in object.into_iter().map(Event::InitApply).chain([Event::InitDone]) {
                            apply(event, keep, &mut listing, view);
                        }
                        delays.reset();
                        sleep(POLL_INTERVAL).await;
                    }
                    Err(error) => {
                        fail(ObjectError::of_call(words, &error), view);
                        sleep(delays.next()).await;
                    }
                }
            }
        };
        tokio::select! {
            slot = self.watches.clone().acquire_owned() => slot.ok(),
            () = polls => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;

    #[tokio::test]
    async fn an_object_without_a_place_waits_for_one() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let nowhere = kube::Config::new(http::Uri::from_static("https://127.0.0.1:1"));
        let api: Api<ConfigMap> = Api::namespaced(Client::try_from(nowhere).unwrap(), "ns");
        let slots = WatchSlots::of(1);
        let (view, mut seen) = watch::channel(View::Empty);
        let keep: fn(ConfigMap) -> ConfigMap = |object| object;
        let place = || slots.poll_until_free(&api, "a", keep, "configmap \"a\"", &view);
        let first = place().await.expect("there is a place");
        assert_eq!(*seen.borrow_and_update(), View::Empty, "what is watched is not polled");
        let second = async {
            let polled = seen.wait_for(|view| matches!(view, View::Failed(_))).await.map(drop);
            polled.expect("what is not watched is polled");
            drop(first);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            place = place() => assert!(place.is_some()),
            () = second => {}
        }
    }
}
