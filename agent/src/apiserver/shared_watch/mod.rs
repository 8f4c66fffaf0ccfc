//! One watch, shared by all who need what it shows: it ends when the last of them lets go.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::watched_objects::ObjectError;

/// How long a new watch may take to show something. The Node authorizer may know of a Pod a moment later than this Node, and
/// refuses until then.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which objects a watch shows: all of a namespace, or the one with a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    pub(crate) namespace: String,
    pub(crate) name: Option<String>,
}

impl Scope {
    /// The objects in words.
    fn words(&self, noun: &str) -> String {
        match &self.name {
            Some(name) => format!("{noun} \"{name}\""),
            None => format!("{noun}s of namespace \"{}\"", self.namespace),
        }
    }
}

/// The watches of one kind of object. Of each object only that is kept which `keep` returns.
pub(crate) struct SharedWatches<T, V = T> {
    client: Client,
    noun: &'static str,
    keep: fn(T) -> V,
    feeds: Feeds<V>,
}

type Feeds<V> = Arc<Mutex<HashMap<Scope, Weak<Feed<V>>>>>;

/// A watch that goes on for as long as somebody holds this.
struct Feed<V> {
    scope: Scope,
    words: String,
    view: watch::Receiver<View<V>>,
    patience_ends: Instant,
    task: AbortHandle,
    feeds: Feeds<V>,
}

/// What a watch has shown.
#[derive(Debug, PartialEq)]
enum View<V> {
    /// Nothing yet.
    Unknown,
    /// Nothing but errors.
    Trouble(ObjectError),
    /// The objects by name. It stays when the API server can no longer be reached.
    Known(BTreeMap<String, Arc<V>>),
}

impl<T, V> SharedWatches<T, V>
where
    T: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
    V: PartialEq + Send + Sync + 'static,
{
    pub(crate) fn new(client: Client, noun: &'static str, keep: fn(T) -> V) -> Self {
        Self { client, noun, keep, feeds: Feeds::default() }
    }

    /// Takes part in the watch of these objects, which is started if nobody has it. Must be called inside a runtime.
    pub(crate) fn watch(&self, scope: Scope) -> SharedWatch<V> {
        let mut feeds = lock(&self.feeds);
        let feed = feeds.get(&scope).and_then(Weak::upgrade).unwrap_or_else(|| {
            let feed = Arc::new(self.start(scope.clone()));
            feeds.insert(scope, Arc::downgrade(&feed));
            feed
        });
        SharedWatch { seen: feed.view.clone(), feed }
    }

    fn start(&self, scope: Scope) -> Feed<V> {
        let api = Api::namespaced(self.client.clone(), &scope.namespace);
        let words = scope.words(self.noun);
        let (sender, view) = watch::channel(View::Unknown);
        let following = follow(api, scope.name.clone(), self.keep, words.clone(), sender);
        Feed {
            scope,
            words,
            view,
            patience_ends: Instant::now() + PATIENCE,
            task: tokio::spawn(following).abort_handle(),
            feeds: self.feeds.clone(),
        }
    }
}

fn lock<V>(feeds: &Feeds<V>) -> MutexGuard<'_, HashMap<Scope, Weak<Feed<V>>>> {
    feeds.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<V> Drop for Feed<V> {
    fn drop(&mut self) {
        self.task.abort();
        let mut feeds = lock(&self.feeds);
        // Somebody may have started another one meanwhile.
        if feeds.get(&self.scope).is_some_and(|feed| feed.strong_count() == 0) {
            feeds.remove(&self.scope);
        }
    }
}

/// A part in a watch.
pub(crate) struct SharedWatch<V> {
    feed: Arc<Feed<V>>,
    seen: watch::Receiver<View<V>>,
}

impl<V> Clone for SharedWatch<V> {
    fn clone(&self) -> Self {
        Self { feed: self.feed.clone(), seen: self.seen.clone() }
    }
}

impl<V> Debug for SharedWatch<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // What it shows may be secret.
        write!(f, "Shared({})", self.feed.words)
    }
}

impl<V> SharedWatch<V> {
    /// The objects by name. Waits while the watch is new; afterwards, what there is: `changed` tells when there is more.
    pub(crate) async fn get(&mut self) -> Result<BTreeMap<String, Arc<V>>, ObjectError> {
        let known = self.seen.wait_for(|view| matches!(view, View::Known(_)));
        // Whatever came of it: the view says it.
        let _ = timeout_at(self.feed.patience_ends, known).await.map(drop);
        match &*self.seen.borrow_and_update() {
            View::Known(objects) => Ok(objects.clone()),
            View::Trouble(error) => Err(error.clone()),
            View::Unknown => Err(ObjectError::Unanswered { object: self.feed.words.clone() }),
        }
    }

    /// Waits until `get` would say something else than it last did.
    pub(crate) async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            // Nothing more will ever come; whoever waits for several things must not spin on this one.
            std::future::pending::<()>().await;
        }
    }
}

/// Keeps a view up to date, through outages and changes of identity, until it is aborted.
async fn follow<T, V>(
    api: Api<T>,
    name: Option<String>,
    keep: fn(T) -> V,
    words: String,
    view: watch::Sender<View<V>>,
) where
    T: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    V: PartialEq,
{
    let config = watcher::Config::default();
    let config = match &name {
        Some(name) => config.fields(&format!("metadata.name={name}")),
        None => config,
    };
    let mut events = pin!(watcher(api, config).backoff(Delays::new()));
    let mut listing = BTreeMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => take(event, keep, &mut listing, &view),
            Err(error) => {
                let error = ObjectError::of(&words, &error);
                debug!(error = %error, "a watch failed; trying again");
                fail(error, &view);
            }
        }
    }
}

fn fail<V>(error: ObjectError, view: &watch::Sender<View<V>>) {
    view.send_if_modified(|view| {
        let is_news = match view {
            // What was seen counts until something else is.
            View::Known(_) => false,
            View::Trouble(before) => *before != error,
            View::Unknown => true,
        };
        if is_news {
            *view = View::Trouble(error);
        }
        is_news
    });
}

fn take<T: Resource, V: PartialEq>(
    event: Event<T>,
    keep: fn(T) -> V,
    listing: &mut BTreeMap<String, Arc<V>>,
    view: &watch::Sender<View<V>>,
) {
    match event {
        Event::Init => listing.clear(),
        Event::InitApply(object) => {
            listing.insert(object.name_any(), Arc::new(keep(object)));
        }
        Event::InitDone => {
            let listed = View::Known(std::mem::take(listing));
            view.send_if_modified(|view| {
                let is_news = *view != listed;
                *view = listed;
                is_news
            });
        }
        Event::Apply(object) => {
            let (name, kept) = (object.name_any(), Arc::new(keep(object)));
            change(view, |objects| objects.insert(name, kept.clone()).is_none_or(|before| before != kept));
        }
        Event::Delete(object) => change(view, |objects| objects.remove(&object.name_any()).is_some()),
    }
}

/// Changes the objects in a view; `change` says whether it did.
fn change<V>(view: &watch::Sender<View<V>>, change: impl FnOnce(&mut BTreeMap<String, Arc<V>>) -> bool) {
    view.send_if_modified(|view| match view {
        View::Known(objects) => change(objects),
        // Changes come after the list.
        View::Unknown | View::Trouble(_) => false,
    });
}

/// The delays after errors: short at first, for a Pod that the authorizer is about to learn of; long when the API server is away.
struct Delays {
    next: Duration,
    last: Option<Instant>,
}

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// A watch that has gone well for this long starts over with short delays.
const FORGIVEN_AFTER: Duration = Duration::from_mins(2);

impl Delays {
    fn new() -> Self {
        Self { next: FIRST_DELAY, last: None }
    }
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.last.is_some_and(|last| last.elapsed() > FORGIVEN_AFTER) {
            self.next = FIRST_DELAY;
        }
        self.last = Some(Instant::now());
        let delay = self.next;
        self.next = (delay * 2).min(LONGEST_DELAY);
        // Not all watches of all Nodes at once.
        Some(delay.mul_f64(0.5 + fastrand::f64() / 2.0))
    }
}

impl Backoff for Delays {
    /// Every attempt begins with something that looks like a success, so only time tells.
    fn reset(&mut self) {}
}
