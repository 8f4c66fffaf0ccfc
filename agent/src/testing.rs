//! Helpers of unit tests.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};

/// Whether programs may be started. A child holds the locks of this process from its fork to its exec.
static PROGRAMS: RwLock<()> = RwLock::const_new(());

/// Files as each release has written them, one folder a release.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/state/golden");

/// Fails unless every release's file of this name is this value, and this release writes it so. `UPDATE_GOLDEN` writes it.
pub(crate) fn is_read_and_written<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    name: &str,
    value: &T,
) {
    let path = Path::new(GOLDEN).join(env!("CARGO_PKG_VERSION")).join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, serde_json::to_string_pretty(value).unwrap() + "\n").unwrap();
    }
    let written: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(json!(value), written, "{name} has another format now");
    let releases = fs::read_dir(GOLDEN).unwrap().map(|entry| entry.unwrap().path());
    for file in releases.map(|release| release.join(name)).filter(|file| file.exists()) {
        let read: T = serde_json::from_str(&fs::read_to_string(&file).unwrap()).expect(name);
        assert_eq!(&read, value, "{}", file.display());
    }
}

/// A temporary directory in the sandbox of the test run.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap()
}

/// For tests that start programs over and over.
pub(crate) async fn programs() -> RwLockReadGuard<'static, ()> {
    PROGRAMS.read().await
}

/// For tests that expect a lock to be free as soon as they have dropped it.
pub(crate) fn no_programs() -> RwLockWriteGuard<'static, ()> {
    PROGRAMS.blocking_write()
}

/// So many seconds after the beginning of 1970.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The API server's answer to one request: a code and an object.
pub(crate) type Answer = (u16, Value);

/// The answer of an API server that refuses a request.
pub(crate) fn refusal(code: u16, reason: &str) -> Answer {
    (code, json!({"status": "Failure", "message": "no", "reason": reason, "code": code}))
}

/// The client of an API server that gives these answers in turn, with `None` for a connection that breaks, and the requests that it gets.
pub(crate) fn answering(
    answers: impl IntoIterator<Item = Option<Answer>>,
) -> (Client, mpsc::UnboundedReceiver<(Method, String, Value)>) {
    let (asked, asks) = mpsc::unbounded_channel();
    let answers: Vec<_> = answers.into_iter().collect();
    let answers = Arc::new(Mutex::new(answers.into_iter()));
    let answer = move |request: Request<Body>| {
        let (asked, answers) = (asked.clone(), answers.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
            // A test need not look at the requests.
            let _ = asked.send((head.method, head.uri.path().to_owned(), body));
            let answer = answers.lock().unwrap().next().expect("one request too many");
            let (code, body) = answer.ok_or(std::io::ErrorKind::ConnectionReset)?;
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, std::io::Error>(Response::builder().status(code).body(body).unwrap())
        }
    };
    (Client::new(tower::service_fn(answer), "default"), asks)
}

/// A JSON object with the fields of another one, which come first.
pub(crate) fn merged(object: &Value, fields: &Value) -> Value {
    let mut all = object.as_object().unwrap().clone();
    all.extend(fields.as_object().unwrap().clone());
    all.into()
}

/// An API object from its JSON.
pub(crate) fn from_json<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}
