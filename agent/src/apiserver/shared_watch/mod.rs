//! Watches that several users share. A watch ends when its last handle is dropped.

mod slots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
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

pub(crate) use self::slots::WatchSlots;
use super::watched_objects::ObjectError;
use crate::backoff::{Delays, WATCH};
use crate::mutex::lock;

/// How long a reader waits for the first list of a new watch. The Node authorizer may learn of a Pod later than this Node, and refuses
/// until then.
const FIRST_LIST_LIMIT: Duration = Duration::from_secs(10);
/// A watch that has had no error for this long starts over with short delays.
const ERRORS_FORGOTTEN_AFTER: Duration = Duration::from_mins(2);

/// Which objects a watch shows: all of a namespace, or the one with a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    pub(crate) namespace: String,
    pub(crate) name: Option<String>,
}

impl Scope {
    /// The objects in the words of error messages.
    fn words(&self, noun: &str) -> String {
        match &self.name {
            Some(name) => format!("{noun} \"{name}\""),
            None => format!("{noun}s of namespace \"{}\"", self.namespace),
        }
    }
}

/// The watches of one kind of object; clones share them. Each object is kept as `keep` returns it.
#[derive(Clone)]
pub(crate) struct SharedWatches<T, V = T> {
    client: Client,
    noun: &'static str,
    keep: fn(T) -> V,
    slots: WatchSlots,
    running: RunningWatches<V>,
}

type RunningWatches<V> = Arc<Mutex<HashMap<Scope, Weak<RunningWatch<V>>>>>;

/// A watch whose task is aborted on drop.
struct RunningWatch<V> {
    scope: Scope,
    words: String,
    view: watch::Receiver<View<V>>,
    first_list_ends: Instant,
    task: AbortHandle,
    running: RunningWatches<V>,
}

/// What a watch has returned so far.
#[derive(Debug, PartialEq)]
enum View<V> {
    Empty,
    /// Nothing but errors; the latest.
    Failed(ObjectError),
    /// The objects by name. They stay while the API server is away.
    Listed(BTreeMap<String, Arc<V>>),
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
    /// `slots` are those of the client's connection.
    pub(crate) fn new(client: Client, noun: &'static str, keep: fn(T) -> V, slots: WatchSlots) -> Self {
        Self { client, noun, keep, slots, running: RunningWatches::default() }
    }

    /// A handle of the watch of these objects; starts the watch if it does not run. Must be called inside a runtime.
    pub(crate) fn watch(&self, scope: Scope) -> SharedWatch<V> {
        let mut running = lock(&self.running);
        let watch = running.get(&scope).and_then(Weak::upgrade).unwrap_or_else(|| {
            let watch = Arc::new(self.start(scope.clone()));
            running.insert(scope, Arc::downgrade(&watch));
            watch
        });
        SharedWatch { view: watch.view.clone(), watch }
    }

    fn start(&self, scope: Scope) -> RunningWatch<V> {
        let api = Api::namespaced(self.client.clone(), &scope.namespace);
        let words = scope.words(self.noun);
        let (sender, view) = watch::channel(View::Empty);
        let task = run(api, scope.name.clone(), self.keep, words.clone(), self.slots.clone(), sender);
        RunningWatch {
            scope,
            words,
            view,
            first_list_ends: Instant::now() + FIRST_LIST_LIMIT,
            task: tokio::spawn(task).abort_handle(),
            running: self.running.clone(),
        }
    }
}

impl<V> Drop for RunningWatch<V> {
    fn drop(&mut self) {
        self.task.abort();
        let mut running = lock(&self.running);
        // Another watch of the same scope may have started meanwhile.
        if running.get(&self.scope).is_some_and(|watch| watch.strong_count() == 0) {
            running.remove(&self.scope);
        }
    }
}

pub(crate) struct SharedWatch<V> {
    watch: Arc<RunningWatch<V>>,
    view: watch::Receiver<View<V>>,
}

impl<V> Clone for SharedWatch<V> {
    fn clone(&self) -> Self {
        Self { watch: self.watch.clone(), view: self.view.clone() }
    }
}

impl<V> Debug for SharedWatch<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The objects may be secret.
        write!(f, "SharedWatch({})", self.watch.words)
    }
}

impl<V> SharedWatch<V> {
    /// The objects by name. Waits while the watch is new; afterwards it returns what there is at once.
    pub(crate) async fn get(&mut self) -> Result<BTreeMap<String, Arc<V>>, ObjectError> {
        let listed = self.view.wait_for(|view| matches!(view, View::Listed(_)));
        // The view tells whether the wait succeeded.
        let _ = timeout_at(self.watch.first_list_ends, listed).await.map(drop);
        match &*self.view.borrow_and_update() {
            View::Listed(objects) => Ok(objects.clone()),
            View::Failed(error) => Err(error.clone()),
            View::Empty => Err(ObjectError::Unanswered { object: self.watch.words.clone() }),
        }
    }

    /// Waits until `get` would return something else than it last did.
    pub(crate) async fn changed(&mut self) {
        if self.view.changed().await.is_err() {
            // The watch has ended. A caller that selects over several futures must not spin on this one.
            std::future::pending::<()>().await;
        }
    }
}

/// Keeps a view up to date, through outages and changes of identity, until it is aborted.
async fn run<T, V>(
    api: Api<T>,
    name: Option<String>,
    keep: fn(T) -> V,
    words: String,
    slots: WatchSlots,
    view: watch::Sender<View<V>>,
) where
    T: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    V: PartialEq,
{
    let _slot = match &name {
        Some(name) => slots.poll_until_free(&api, name, keep, &words, &view).await,
        // There are as many watches of whole namespaces as there are namespaces with Pods here.
        None => None,
    };
    let config = watcher::Config::default();
    let config = match &name {
        Some(name) => config.fields(&format!("metadata.name={name}")),
        None => config,
    };
    let mut events =
        pin!(watcher(api, config).backoff(WatchBackoff { delays: WATCH.delays(), last_error: None }));
    let mut listing = BTreeMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => apply(event, keep, &mut listing, &view),
            Err(error) => {
                let error = ObjectError::new(&words, error);
                debug!(error = %error, "a watch failed; trying again");
                fail(error, &view);
            }
        }
    }
}

fn fail<V>(error: ObjectError, view: &watch::Sender<View<V>>) {
    view.send_if_modified(|view| {
        let is_change = match view {
            // The last list is valid until the next one.
            View::Listed(_) => false,
            View::Failed(before) => *before != error,
            View::Empty => true,
        };
        if is_change {
            *view = View::Failed(error);
        }
        is_change
    });
}

fn apply<T: Resource, V: PartialEq>(
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
            let listed = View::Listed(std::mem::take(listing));
            view.send_if_modified(|view| {
                let is_change = *view != listed;
                *view = listed;
                is_change
            });
        }
        Event::Apply(object) => {
            let (name, kept) = (object.name_any(), Arc::new(keep(object)));
            change(view, |objects| objects.insert(name, kept.clone()).is_none_or(|before| before != kept));
        }
        Event::Delete(object) => change(view, |objects| objects.remove(&object.name_any()).is_some()),
    }
}

/// Changes the objects in a view; `change` returns whether it changed any.
fn change<V>(view: &watch::Sender<View<V>>, change: impl FnOnce(&mut BTreeMap<String, Arc<V>>) -> bool) {
    view.send_if_modified(|view| match view {
        View::Listed(objects) => change(objects),
        // Changes come after the list.
        View::Empty | View::Failed(_) => false,
    });
}

/// The delays after errors. Every attempt begins with an answer that looks like a success, so only time without an error resets them.
struct WatchBackoff {
    delays: Delays,
    last_error: Option<Instant>,
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.last_error.is_some_and(|last| last.elapsed() > ERRORS_FORGOTTEN_AFTER) {
            self.delays.reset();
        }
        self.last_error = Some(Instant::now());
        Some(self.delays.next())
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {}
}
