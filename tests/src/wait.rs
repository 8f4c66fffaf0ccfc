//! Waiting for something to become true, with a deadline and an account of why it did not.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Event;
use kube::runtime::wait::await_condition;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Resource, runtime::WatchStreamExt};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep_until, timeout_at};

const INTERVAL: Duration = Duration::from_millis(25);
/// After this time [`on_change`] makes an attempt although nothing was seen to change.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Tries until `attempt` succeeds and returns its value; after the deadline, the error says why the last attempt failed.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    let mut last = anyhow!("the first attempt did not end");
    loop {
        let next = Instant::now() + INTERVAL;
        match timeout_at(end, attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => last = error,
            // An attempt that was cut short says less than the one before.
            Err(_) => {}
        }
        if next >= end {
            return Err(last.context(format!("waited {deadline:?} in vain for {what}")));
        }
        sleep_until(next).await;
    }
}

/// The changes of an object and of the Events about it. The first item says that the watches have begun.
pub fn changes<K>(api: &Api<K>, name: &str, events: &Api<Event>) -> BoxStream<'static, ()>
where
    K: Clone + Debug + Send + DeserializeOwned + Resource + 'static,
{
    let object = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let about = watcher::Config::default().fields(&format!("involvedObject.name={name}"));
    let object = watcher(api.clone(), object).default_backoff().map(|change| is_begun(&change));
    let about = watcher(events.clone(), about).default_backoff().map(|change| is_begun(&change));
    let mut not_begun = 2;
    let changes = stream::select(object.boxed(), about.boxed()).filter_map(move |is_begun| {
        not_begun -= i32::from(is_begun && not_begun > 0);
        std::future::ready((not_begun == 0).then_some(()))
    });
    changes.boxed()
}

fn is_begun<K>(change: &watcher::Result<watcher::Event<K>>) -> bool {
    matches!(change, Ok(watcher::Event::InitDone))
}

/// As [`eventually`], for an attempt that starts a program: it is made after [`changes`], not at every interval. A program that is started
/// over and over takes the processor from what it waits for.
pub async fn on_change<T>(
    what: &str,
    deadline: Duration,
    mut changes: BoxStream<'static, ()>,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    let mut last = anyhow!("the first attempt did not end");
    loop {
        // No change may come: the attempt may depend on more than what is watched.
        let _ = timeout_at(end.min(Instant::now() + LONGEST_PAUSE), changes.next()).await;
        while let Some(Some(())) = changes.next().now_or_never() {}
        match timeout_at(end, attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => last = error,
            // An attempt that was cut short says less than the one before.
            Err(_) => {}
        }
        if Instant::now() >= end {
            return Err(last.context(format!("waited {deadline:?} in vain for {what}")));
        }
    }
}

/// Watches an object until `condition` holds for it; after the deadline, the error shows the object.
pub async fn until<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    deadline: Duration,
    condition: impl Fn(&K) -> bool,
) -> Result<K>
where
    K: Clone + Debug + Send + Serialize + DeserializeOwned + Resource + 'static,
{
    let met = |object: Option<&K>| object.is_some_and(&condition);
    watched(api, name, what, deadline, met).await?.with_context(|| format!("{name} is gone"))
}

/// Watches until an object is gone.
pub async fn until_gone<K>(api: &Api<K>, name: &str, deadline: Duration) -> Result<()>
where
    K: Clone + Debug + Send + Serialize + DeserializeOwned + Resource + 'static,
{
    watched(api, name, "gone", deadline, |object: Option<&K>| object.is_none()).await.map(drop)
}

/// Watches an object until `met` holds. A watch that breaks off is no reason to give up before the deadline.
async fn watched<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    deadline: Duration,
    met: impl Fn(Option<&K>) -> bool,
) -> Result<Option<K>>
where
    K: Clone + Debug + Send + Serialize + DeserializeOwned + Resource + 'static,
{
    let end = Instant::now() + deadline;
    let mut broken = String::new();
    while let Ok(watch) = timeout_at(end, await_condition(api.clone(), name, &met)).await {
        match watch {
            Ok(object) => return Ok(object),
            Err(error) => broken = format!("; the last watch broke off: {:#}", anyhow!(error)),
        }
        sleep_until(end.min(Instant::now() + INTERVAL)).await;
    }
    let why = anyhow!("{}{broken}", shown(api, name).await);
    Err(why.context(format!("waited {deadline:?} in vain for {name} to be {what}")))
}

/// An object as it is now, for an error message.
async fn shown<K>(api: &Api<K>, name: &str) -> String
where
    K: Clone + Debug + Serialize + DeserializeOwned + Resource,
{
    match tokio::time::timeout(Duration::from_secs(5), api.get_opt(name)).await {
        Ok(Ok(Some(mut object))) => {
            // Longer than all the rest, and says nothing about it.
            object.meta_mut().managed_fields = None;
            format!(
                "it is {}",
                serde_json::to_string_pretty(&object).unwrap_or_else(|error| error.to_string())
            )
        }
        Ok(Ok(None)) => "it does not exist".to_owned(),
        Ok(Err(error)) => format!("it cannot be read: {error}"),
        Err(_) => "it cannot be read: the API server does not answer".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;

    #[tokio::test]
    async fn what_comes_true_is_returned() {
        let mut attempts = 0;
        let result = eventually("the third attempt", Duration::from_secs(10), async || {
            attempts += 1;
            ensure!(attempts == 3, "this is attempt {attempts}");
            Ok(attempts)
        });
        assert_eq!(result.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn the_error_says_what_was_last_seen() {
        let result = eventually("a miracle", Duration::from_millis(60), async || -> Result<()> {
            Err(anyhow!("none is in sight"))
        });
        let error = format!("{:#}", result.await.unwrap_err());
        assert_eq!(error, "waited 60ms in vain for a miracle: none is in sight");
    }

    #[tokio::test]
    async fn an_attempt_is_made_after_a_change() {
        let (mut attempts, changes) =
            (0, stream::iter([(), (), ()]).then(async |()| tokio::task::yield_now().await));
        let changes = changes.chain(stream::pending()).boxed();
        let result = on_change("the second attempt", Duration::from_secs(10), changes, async || {
            attempts += 1;
            ensure!(attempts == 2, "this is attempt {attempts}");
            Ok(attempts)
        });
        assert_eq!(result.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn an_attempt_without_a_change_fails_at_the_deadline() {
        let still = on_change("a change", Duration::from_millis(60), stream::pending().boxed(), async || {
            Err::<(), _>(anyhow!("there is none"))
        });
        let error = format!("{:#}", still.await.unwrap_err());
        assert_eq!(error, "waited 60ms in vain for a change: there is none");
    }

    #[tokio::test]
    async fn an_attempt_that_hangs_does_not_outlive_the_deadline() {
        let hang = eventually("an answer", Duration::from_millis(60), async || -> Result<()> {
            std::future::pending().await
        });
        let error = format!("{:#}", hang.await.unwrap_err());
        assert_eq!(error, "waited 60ms in vain for an answer: the first attempt did not end");
    }
}
