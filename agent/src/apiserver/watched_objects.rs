//! The `ConfigMaps` and Secrets of this Node's Pods, watched one by one: the API server lets a Node see no other ones.

use std::fmt::Debug;
use std::sync::Arc;

use futures::future::{BoxFuture, select_all};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use kube::api::ObjectMeta;
use kube::runtime::watcher;

pub(crate) use super::shared_watch::{Scope, SharedWatch, SharedWatches};
use crate::error_chain::chain;

/// Where `ConfigMaps` and Secrets come from.
#[derive(Clone)]
pub(crate) struct WatchedObjects(Arc<Shelves>);

struct Shelves {
    config_maps: SharedWatches<ConfigMap>,
    secrets: SharedWatches<Secret>,
}

impl Debug for WatchedObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Objects")
    }
}

impl WatchedObjects {
    /// Objects as this client sees them.
    pub(crate) fn new(client: Client) -> Self {
        let config_maps = SharedWatches::new(client.clone(), "configmap", |mut object: ConfigMap| {
            strip(&mut object.metadata);
            object
        });
        let secrets = SharedWatches::new(client, "secret", |mut object: Secret| {
            strip(&mut object.metadata);
            object
        });
        Self(Arc::new(Shelves { config_maps, secrets }))
    }

    /// A `ConfigMap`, watched until the last one who asked for it lets go. Must be called inside a runtime.
    pub(crate) fn config_map(&self, namespace: &str, name: &str) -> WatchedObject<ConfigMap> {
        WatchedObject(self.0.config_maps.watch(one(namespace, name)))
    }

    /// A Secret, watched until the last one who asked for it lets go. Must be called inside a runtime.
    pub(crate) fn secret(&self, namespace: &str, name: &str) -> WatchedObject<Secret> {
        WatchedObject(self.0.secrets.watch(one(namespace, name)))
    }
}

fn one(namespace: &str, name: &str) -> Scope {
    Scope { namespace: namespace.to_owned(), name: Some(name.to_owned()) }
}

/// Only the content counts. What the rest says is of no use here, and some of it repeats the content: `kubectl apply` keeps a
/// copy in an annotation.
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
    /// The object as it is now; nothing when it does not exist.
    ///
    /// Waits while the watch is new, which is some seconds at most. While the API server is away, the object is as it was
    /// last seen.
    pub(crate) async fn get(&mut self) -> Result<Option<Arc<T>>, ObjectError> {
        Ok(self.0.get().await?.into_values().next())
    }

    /// Waits until `get` would say something else than it last did. Safe to cancel.
    pub(crate) async fn changed(&mut self) {
        self.0.changed().await;
    }
}

/// An object of which nothing is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ObjectError {
    /// The API server does not let this Node see it.
    #[error("this Node may not read {object}: {message}")]
    Forbidden {
        /// The object.
        object: String,
        /// The API server's words.
        message: String,
    },
    /// It cannot be read now.
    #[error("cannot read {object}: {problem}")]
    Unreadable {
        /// The object.
        object: String,
        /// Why.
        problem: String,
    },
    /// The API server takes its time.
    #[error("cannot read {object}: the API server has not answered yet")]
    Unanswered {
        /// The object.
        object: String,
    },
}

impl ObjectError {
    pub(crate) fn of(object: &str, error: &watcher::Error) -> Self {
        let object = object.to_owned();
        let (forbids, problem) = match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => (is_forbidden(error), words(error)),
            watcher::Error::WatchError(status) => (status.code == 403, status.message.clone()),
            watcher::Error::NoResourceVersion => (false, error.to_string()),
        };
        if forbids {
            Self::Forbidden { object, message: problem }
        } else {
            Self::Unreadable { object, problem }
        }
    }
}

/// Whether the API server refuses.
pub(crate) fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// What went wrong, in words that show nothing of an object's content.
pub(crate) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        // A parser quotes what it cannot read.
        kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => {
            "the API server's answer makes no sense".to_owned()
        }
        error => chain(error),
    }
}

/// Waits for the first of several things; for ever when there are none.
pub(crate) async fn first_of(things: Vec<BoxFuture<'_, ()>>) {
    if things.is_empty() {
        std::future::pending::<()>().await;
    }
    select_all(things).await;
}
