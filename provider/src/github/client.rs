//! The client: short calls, each with a time limit.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{App, AppError};
use crate::error_chain::chain;
use crate::host::Secret;

/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(30);
const LONGEST_ANSWER: usize = 4 << 20;

/// GitHub's API.
#[derive(Debug, Clone)]
pub(crate) struct Github {
    url: String,
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// A call that failed. Neither tokens nor answers that may have one are in its words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GithubError {
    #[error("the App cannot sign")]
    App(#[from] AppError),
    #[error("GitHub does not answer: {0}")]
    Unreachable(String),
    #[error("GitHub says no to {call}: {status} {message}")]
    Refused { call: &'static str, status: StatusCode, message: String },
    #[error("GitHub's answer to {0} cannot be read")]
    BadAnswer(&'static str),
    #[error("this system has no root certificates")]
    NoRoots,
}

impl GithubError {
    /// Whether the same call may succeed later. A runner that GitHub takes for busy cannot be removed yet (422).
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::BadAnswer(_) => true,
            Self::Refused { status, .. } => {
                let later = [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::TOO_MANY_REQUESTS];
                status.is_server_error() || later.contains(status)
            }
            Self::App(_) | Self::NoRoots => false,
        }
    }
}

#[derive(Deserialize)]
struct Token {
    token: String,
}

#[derive(Deserialize)]
struct Runners {
    runners: Vec<Runner>,
}

#[derive(Deserialize)]
struct Runner {
    id: u64,
    name: String,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    message: String,
}

impl Github {
    /// A client. It makes no connection yet.
    pub(crate) fn new(url: &str) -> Result<Self, GithubError> {
        let roots = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
            .map_err(|_| GithubError::NoRoots)?;
        let connector = roots.https_or_http().enable_http1().build();
        let http = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Self { url: url.trim_end_matches('/').to_owned(), http })
    }

    /// A token with which one runner of an organization can be registered. It is valid for an hour.
    pub(crate) async fn registration_token(&self, app: &App, org: &str) -> Result<Secret, GithubError> {
        let token = self.log_in(app).await?;
        let path = format!("/orgs/{}/actions/runners/registration-token", encoded(org));
        let answer = self.call::<Token>("register a runner", Method::POST, &path, &token).await?;
        Ok(Secret::new(answer.token.into_bytes()))
    }

    /// Removes the runner of this name from an organization. One that is not there is no error.
    pub(crate) async fn remove_runner(&self, app: &App, org: &str, name: &str) -> Result<(), GithubError> {
        let token = self.log_in(app).await?;
        let runners = format!("/orgs/{}/actions/runners", encoded(org));
        // Names are unique in an organization, and the filter may find longer ones.
        let path = format!("{runners}?per_page=100&name={}", encoded(name));
        let found = self.call::<Runners>("list runners", Method::GET, &path, &token).await?;
        for runner in found.runners.iter().filter(|runner| runner.name == name) {
            let path = format!("{runners}/{}", runner.id);
            match self.send("remove a runner", Method::DELETE, &path, &token).await {
                Err(GithubError::Refused { status: StatusCode::NOT_FOUND, .. }) => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// The token of the App's installation in the organization.
    async fn log_in(&self, app: &App) -> Result<String, GithubError> {
        let token = app.token(Timestamp::now())?;
        let path = format!("/app/installations/{}/access_tokens", app.installation);
        Ok(self.call::<Token>("log in", Method::POST, &path, &token).await?.token)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        what: &'static str,
        method: Method,
        path: &str,
        token: &str,
    ) -> Result<T, GithubError> {
        let body = self.send(what, method, path, token).await?;
        serde_json::from_slice(&body).map_err(|_| GithubError::BadAnswer(what))
    }

    async fn send(
        &self,
        what: &'static str,
        method: Method,
        path: &str,
        token: &str,
    ) -> Result<Bytes, GithubError> {
        let unreachable = |error: &(dyn std::error::Error + 'static)| GithubError::Unreachable(chain(error));
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| GithubError::BadAnswer("log in"))?;
        bearer.set_sensitive(true);
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(AUTHORIZATION, bearer)
            .header(ACCEPT, "application/vnd.github+json")
            .header(USER_AGENT, "tart-provider")
            .header("x-github-api-version", "2022-11-28")
            .body(Full::default())
            .map_err(|error| unreachable(&error))?;
        let talk = async {
            let response = self.http.request(request).await.map_err(|error| unreachable(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, LONGEST_ANSWER).collect().await;
            let body = body.map_err(|error| GithubError::Unreachable(error.to_string()))?.to_bytes();
            if head.status.is_success() {
                return Ok(body);
            }
            let message = serde_json::from_slice::<Refusal>(&body).map(|refusal| refusal.message);
            Err(GithubError::Refused {
                call: what,
                status: head.status,
                message: message.unwrap_or_default(),
            })
        };
        let late = || GithubError::Unreachable(format!("no answer within {} s", DEADLINE.as_secs()));
        timeout(DEADLINE, talk).await.unwrap_or_else(|_| Err(late()))
    }
}

fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}
