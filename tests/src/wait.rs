//! Waiting for something to become true, with a deadline and an account of why it did not.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kube::{Api, Resource, runtime::wait::await_condition};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep_until, timeout_at};

const INTERVAL: Duration = Duration::from_millis(25);

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
    async fn an_attempt_that_hangs_does_not_outlive_the_deadline() {
        let hang = eventually("an answer", Duration::from_millis(60), async || -> Result<()> {
            std::future::pending().await
        });
        let error = format!("{:#}", hang.await.unwrap_err());
        assert_eq!(error, "waited 60ms in vain for an answer: the first attempt did not end");
    }
}
