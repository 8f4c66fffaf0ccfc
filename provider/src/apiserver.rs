//! Calls of the API server, each with a deadline.

use std::fmt::Debug;
use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// How long the API server may take to answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// The API server refused it, or was not reached.
    #[error("cannot {what}")]
    Call {
        /// What was to be done.
        what: &'static str,
        /// Why it was not.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("cannot {what}: the API server did not answer within {} s", DEADLINE.as_secs())]
    DeadlineExceeded {
        /// What was to be done.
        what: &'static str,
    },
}

impl ApiError {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Call { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::DeadlineExceeded { .. } => None,
        }
    }

    /// Whether the object is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether it is not allowed yet.
    pub(crate) fn is_too_many(&self) -> bool {
        self.code() == Some(429)
    }

    /// Whether the object was changed meanwhile, or is there already.
    pub(crate) fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }
}

/// Makes a call.
pub(crate) async fn call<T>(
    what: &'static str,
    future: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(ApiError::Call { what, source: Box::new(source) }),
        Err(_) => Err(ApiError::DeadlineExceeded { what }),
    }
}

/// Deletes an object that may be gone already.
pub(crate) async fn delete<K>(what: &'static str, api: &Api<K>, name: &str) -> Result<(), ApiError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    match call(what, api.delete(name, &DeleteParams::default())).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Changes a part of an object, unless the object was changed since it was read.
pub(crate) async fn change<K>(
    what: &'static str,
    api: &Api<K>,
    object: &K,
    mut patch: Value,
) -> Result<K, ApiError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    add_version(&mut patch, object.meta().resource_version.as_deref());
    let name = object.meta().name.clone().unwrap_or_default();
    call(what, api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))).await
}

/// Replaces the status of an object, unless the object was changed since it was read.
pub(crate) async fn change_status<K, S>(
    what: &'static str,
    api: &Api<K>,
    object: &K,
    before: &S,
    after: &S,
) -> Result<K, ApiError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
    S: Serialize,
{
    let mut patch = json!({ "status": difference(before, after) });
    add_version(&mut patch, object.meta().resource_version.as_deref());
    let name = object.meta().name.clone().unwrap_or_default();
    call(what, api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))).await
}

fn add_version(patch: &mut Value, version: Option<&str>) {
    if let Some(version) = version {
        patch["metadata"]["resourceVersion"] = json!(version);
    }
}

/// A merge patch from one value to another: what is gone is null.
fn difference(before: &impl Serialize, after: &impl Serialize) -> Value {
    let fields = |value: Value| match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    // Serializing plain data to memory does not fail.
    let before = fields(serde_json::to_value(before).unwrap_or_default());
    let mut after = fields(serde_json::to_value(after).unwrap_or_default());
    for key in before.keys() {
        after.entry(key.clone()).or_insert(Value::Null);
    }
    after.retain(|key, value| before.get(key) != Some(value));
    Value::Object(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_has_only_what_differs_and_null_for_what_is_gone() {
        let before = json!({ "a": 1, "b": 2, "c": 3 });
        let after = json!({ "a": 1, "b": 4, "d": 5 });
        assert_eq!(difference(&before, &after), json!({ "b": 4, "c": null, "d": 5 }));
        assert_eq!(difference(&before, &before), json!({}));
    }
}
