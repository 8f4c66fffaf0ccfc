//! Container logs: `kubectl logs`.

mod container_start;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::warn;

use self::container_start::{ContainerStart, NoLog, of_init, of_main};
use super::context::ApiContext;
use super::http::path::ContainerPath;
use super::http::response::{self, Body};
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::logs::query::{BadLogQuery, LogQuery};
use crate::logs::reader::{LogChunk, LogReader};
use crate::pod::status::ephemeral;
use crate::state::{InitStage, PodDir, VmRun};

/// How often a log that is followed is looked at.
const INTERVAL: Duration = Duration::from_millis(100);
/// The limit to find a log and its first line.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// Why there is no log to read.
#[derive(Debug, thiserror::Error)]
enum LogError {
    #[error("pod \"{0}\" does not exist")]
    NoPod(String),
    #[error("container \"{container}\" not found in pod \"{pod}\"")]
    NoContainer { container: String, pod: String },
    #[error("{}", ephemeral::refusal(.0))]
    Ephemeral(String),
    #[error("container \"{container}\" in pod \"{pod}\" is waiting to start: {reason}")]
    Waiting { container: String, pod: String, reason: String },
    #[error("previous terminated container \"{container}\" in pod \"{pod}\" not found")]
    NoPrevious { container: String, pod: String },
    #[error(transparent)]
    Query(#[from] BadLogQuery),
    #[error("cannot read the Pod's state")]
    State(#[from] FileError),
    #[error("cannot read the log")]
    Read(#[source] io::Error),
    #[error("the disk does not answer")]
    Late,
}

impl LogError {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoPod(_) | Self::NoContainer { .. } => StatusCode::NOT_FOUND,
            Self::Ephemeral(_)
            | Self::Waiting { .. }
            | Self::NoPrevious { .. }
            | Self::Query(BadLogQuery::Value { .. }) => StatusCode::BAD_REQUEST,
            Self::Query(BadLogQuery::Invalid(_)) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::State(_) | Self::Read(_) | Self::Late => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// Answers a request for a container's log.
pub(super) async fn handle(
    query: Option<&str>,
    target: &ContainerPath,
    context: &ApiContext,
) -> Response<Body> {
    match open(query.unwrap_or_default(), target, context).await {
        Ok(log) => {
            let content = stream::unfold(log, OpenLog::next);
            let mut response = Response::new(StreamBody::new(content).boxed_unsync());
            let text = HeaderValue::from_static("text/plain; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, text);
            response
        }
        Err(error) => {
            if error.status().is_server_error() {
                warn!(error = chain(&error), "cannot serve a log");
            }
            response::text(error.status(), chain(&error))
        }
    }
}

async fn open(query: &str, target: &ContainerPath, context: &ApiContext) -> Result<OpenLog, LogError> {
    let query = LogQuery::parse(query)?;
    let name = &target.pod.name;
    let (uid, pod) = target.pod.find(&context.pods).ok_or_else(|| LogError::NoPod(name.clone()))?;
    if ephemeral::is_ephemeral(&pod, &target.container) {
        return Err(LogError::Ephemeral(target.container.clone()));
    }
    let container = ContainerInPod::find(&pod, &target.container)
        .ok_or_else(|| LogError::NoContainer { container: target.container.clone(), pod: name.clone() })?;
    let dir = context.state.pod(uid);
    let opened = spawn_blocking(move || {
        let (log, start) = container.log(&dir, query.previous)?;
        let reader = LogReader::open(&log, &query, Timestamp::now()).map_err(LogError::Read)?;
        Ok(LogSource { reader, start, follow: query.follow })
    });
    match timeout(OPEN_LIMIT, opened).await {
        Ok(Ok(opened)) => opened.map(LogSource::read_ahead),
        Ok(Err(_)) | Err(_) => Err(LogError::Late),
    }
}

/// A container of a Pod, and what the Pod's status says of it.
struct ContainerInPod {
    pod: String,
    name: String,
    is_init: bool,
    /// Why it waits; absent when it does not.
    waiting: Option<String>,
}

impl ContainerInPod {
    fn find(pod: &Pod, name: &str) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let is_init = spec.init_containers.iter().flatten().any(|one| one.name == name);
        if !is_init && spec.containers.iter().all(|one| one.name != name) {
            return None;
        }
        let statuses = pod.status.as_ref().and_then(|status| {
            if is_init { status.init_container_statuses.as_ref() } else { status.container_statuses.as_ref() }
        });
        let status: Option<&ContainerStatus> =
            statuses.and_then(|all| all.iter().find(|one| one.name == name));
        let waiting = status.and_then(|status| status.state.as_ref()?.waiting.clone());
        Some(Self {
            pod: pod.metadata.name.clone().unwrap_or_default(),
            name: name.to_owned(),
            is_init,
            waiting: waiting.map(|waiting| waiting.reason.unwrap_or_default()),
        })
    }

    /// The log, and the start that writes it.
    fn log(self, dir: &PodDir, previous: bool) -> Result<(std::path::PathBuf, WatchedStart), LogError> {
        let runs = dir.runs()?.iter().map(VmRun::view).collect::<Result<Vec<_>, _>>()?;
        let found = if self.is_init {
            of_init(&runs, &self.name, previous)
        } else {
            of_main(&runs, self.waiting.is_some(), previous)
        };
        let (container, pod) = (self.name.clone(), self.pod.clone());
        match found {
            Ok(ContainerStart::Main { run, number }) => {
                let start = WatchedStart { run: dir.run(run), init: None };
                Ok((dir.log_path(&self.name, number), start))
            }
            Ok(ContainerStart::Init { run, numbers }) => {
                let log = |number: u32| dir.log_path(&self.name, number);
                let number = numbers.iter().find(|number| log(**number).exists()).or_else(|| numbers.first());
                let number = number.copied().unwrap_or_default();
                let start = WatchedStart { run: dir.run(run), init: Some((self.name.clone(), number)) };
                Ok((log(number), start))
            }
            Err(NoLog::Waiting) => Err(LogError::Waiting { container, pod, reason: self.why_it_waits() }),
            Err(NoLog::NoPrevious) => Err(LogError::NoPrevious { container, pod }),
        }
    }

    /// The kubelet's words.
    fn why_it_waits(&self) -> String {
        match self.waiting.as_deref() {
            Some("ErrImagePull") => "image can't be pulled",
            Some("ImagePullBackOff") => "trying and failing to pull image",
            Some(reason) if !reason.is_empty() => reason,
            _ if self.is_init => "PodInitializing",
            _ => "ContainerCreating",
        }
        .to_owned()
    }
}

/// The start of a container whose log is followed.
#[derive(Debug)]
struct WatchedStart {
    run: VmRun,
    /// The name of an init container, and how often it was started before.
    init: Option<(String, u32)>,
}

impl WatchedStart {
    /// Whether the container has ended, so that nothing more is written to its log.
    fn is_over(&self) -> bool {
        let Some((name, number)) = &self.init else { return self.run.is_over() };
        let is_running = self.run.init_states().unwrap_or_default().iter().any(|state| {
            state.name == *name && state.restarts == *number && matches!(state.now, InitStage::Running(_))
        });
        !is_running || self.run.is_over()
    }
}

/// A log that is being sent. Its next part is read while the client gets the one before.
#[derive(Debug)]
struct OpenLog(JoinHandle<ReadPart>);

/// Where the parts come from.
#[derive(Debug)]
struct LogSource {
    reader: LogReader,
    start: WatchedStart,
    follow: bool,
}

#[derive(Debug)]
struct ReadPart {
    chunk: io::Result<LogChunk>,
    /// Whether nothing is written any more after this.
    is_last: bool,
    source: LogSource,
}

impl LogSource {
    fn read_ahead(mut self) -> OpenLog {
        OpenLog(spawn_blocking(move || {
            // Before the last read: all that the container has written is there when it has ended.
            let is_last = !self.follow || self.start.is_over();
            ReadPart { chunk: self.reader.read(), is_last, source: self }
        }))
    }
}

impl OpenLog {
    /// The next part of the answer. The client's pace is the pace at which this is called.
    async fn next(mut self) -> Option<(io::Result<Frame<Bytes>>, Self)> {
        loop {
            let ReadPart { chunk, is_last, source } = self.0.await.ok()?;
            match chunk {
                Ok(LogChunk::Content(content)) => {
                    return Some((Ok(Frame::data(content.into())), source.read_ahead()));
                }
                Ok(LogChunk::CaughtUp) if !is_last => sleep(INTERVAL).await,
                Ok(LogChunk::CaughtUp | LogChunk::Over) => return None,
                Err(error) => return Some((Err(error), source.read_ahead())),
            }
            self = source.read_ahead();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"initContainers": [{"name": "first"}], "containers": [{"name": "main"}]},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_container_that_waits_says_why_in_the_kubelets_words() {
        let dir = crate::testing::dir();
        let state = crate::state::StateDir::open(dir.path()).unwrap();
        let words = |container: &str, reason: Option<&str>, previous: bool| {
            let waiting = json!([{
                "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason}},
            }]);
            let status = if reason.is_some() { json!({"containerStatuses": waiting}) } else { json!({}) };
            let found = ContainerInPod::find(&pod(&status), container).unwrap();
            found.log(&state.pod("0b1c".parse().unwrap()), previous).unwrap_err().to_string()
        };
        let waits = "container \"main\" in pod \"p\" is waiting to start: ";
        for (reason, expected) in [
            (None, "ContainerCreating"),
            (Some("PodInitializing"), "PodInitializing"),
            (Some("ErrImagePull"), "image can't be pulled"),
            (Some("ImagePullBackOff"), "trying and failing to pull image"),
        ] {
            assert_eq!(words("main", reason, false), format!("{waits}{expected}"));
        }
        assert_eq!(
            words("main", None, true),
            "previous terminated container \"main\" in pod \"p\" not found"
        );
        let init = "container \"first\" in pod \"p\" is waiting to start: PodInitializing";
        assert_eq!(words("first", None, false), init);
        assert!(ContainerInPod::find(&pod(&json!({})), "other").is_none());
    }
}
