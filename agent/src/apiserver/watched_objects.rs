//! The `ConfigMaps` and Secrets of this Node's Pods, watched one by one: the Node authorizer lets a Node see no others.

use std::fmt::Debug;
use std::sync::Arc;

use futures::future::{BoxFuture, select_all};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use kube::api::ObjectMeta;
use kube::runtime::watcher;

use super::call::CallError;
pub(crate) use super::shared_watch::{Scope, SharedWatch, SharedWatches, WatchSlots};

#[derive(Clone)]
pub(crate) struct WatchedObjects {
    config_maps: SharedWatches<ConfigMap>,
    secrets: SharedWatches<Secret>,
}

impl Debug for WatchedObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WatchedObjects")
    }
}

impl WatchedObjects {
    /// `client` is for nothing else: a Pod may name any number of objects.
    pub(crate) fn new(client: Client) -> Self {
        let slots = WatchSlots::new();
        let keep_config_map: fn(ConfigMap) -> ConfigMap = |mut object| {
            strip(&mut object.metadata);
            object
        };
        let keep_secret: fn(Secret) -> Secret = |mut object| {
            strip(&mut object.metadata);
            object
        };
        Self {
            config_maps: SharedWatches::new(client.clone(), "configmap", keep_config_map, slots.clone()),
            secrets: SharedWatches::new(client, "secret", keep_secret, slots),
        }
    }

    /// A `ConfigMap`, watched until the last handle of it is dropped. Must be called inside a runtime.
    pub(crate) fn config_map(&self, namespace: &str, name: &str) -> WatchedObject<ConfigMap> {
        WatchedObject(self.config_maps.watch(one(namespace, name)))
    }

    /// A Secret, watched until the last handle of it is dropped. Must be called inside a runtime.
    pub(crate) fn secret(&self, namespace: &str, name: &str) -> WatchedObject<Secret> {
        WatchedObject(self.secrets.watch(one(namespace, name)))
    }
}

fn one(namespace: &str, name: &str) -> Scope {
    Scope { namespace: namespace.to_owned(), name: Some(name.to_owned()) }
}

/// Keeps the name and namespace. The rest is of no use here, and some of it repeats the content: `kubectl apply` keeps a copy in an
/// annotation.
fn strip(metadata: &mut ObjectMeta) {
    *metadata = ObjectMeta {
        name: metadata.name.take(),
        namespace: metadata.namespace.take(),
        ..ObjectMeta::default()
    };
}

/// One object, which may or may not exist.
#[derive(Debug, Clone)]
pub(crate) struct WatchedObject<T>(SharedWatch<T>);

impl<T> WatchedObject<T> {
    /// The object as it is now; `None` if it does not exist.
    ///
    /// Waits some seconds at most while the watch is new. While the API server is away, the object is as it was last seen.
    pub(crate) async fn get(&mut self) -> Result<Option<Arc<T>>, ObjectError> {
        Ok(self.0.get().await?.into_values().next())
    }

    /// Waits until `get` would return something else than it last did. Safe to cancel.
    pub(crate) async fn changed(&mut self) {
        self.0.changed().await;
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ObjectError {
    #[error("this Node may not read {object}: {message}")]
    Forbidden { object: String, message: String },
    #[error("cannot read {object}: {problem}")]
    Unreadable { object: String, problem: String },
    #[error("cannot read {object}: the API server has not answered yet")]
    Unanswered { object: String },
}

impl ObjectError {
    pub(super) fn new(object: &str, error: watcher::Error) -> Self {
        let error = match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => CallError::from(error),
            watcher::Error::WatchError(status) => CallError::Refused(status),
            watcher::Error::NoResourceVersion => {
                return Self::Unreadable { object: object.to_owned(), problem: error.to_string() };
            }
        };
        Self::of_call(object, &error)
    }

    pub(super) fn of_call(object: &str, error: &CallError) -> Self {
        let object = object.to_owned();
        let problem = error.without_content();
        if error.is_forbidden() {
            Self::Forbidden { object, message: problem }
        } else {
            Self::Unreadable { object, problem }
        }
    }
}

/// Waits for the first of these futures; for ever if there are none.
pub(crate) async fn first_of(futures: Vec<BoxFuture<'_, ()>>) {
    if futures.is_empty() {
        std::future::pending::<()>().await;
    }
    select_all(futures).await;
}
