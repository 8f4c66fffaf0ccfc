//! The client: one request at a time, each with a time limit, tried again where that can help.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::config::{ScalewayConfig, ScalewayConfigError};
use super::error::{Reason, ScalewayError};
use super::retry::RetryPolicy;
use super::server::{Image, Images, Page, Server, Servers, SshKey, SshKeys};
use crate::error_chain::chain;
use crate::names::{HostId, Zone};

/// Scaleway refuses larger pages.
const PAGE_SIZE: usize = 100;
/// A page of servers has some hundred kilobytes.
const LONGEST_ANSWER: usize = 8 << 20;
/// How often a list is read again that changes while it is read.
const LISTINGS: u32 = 3;

/// Scaleway, as one project sees it.
#[derive(Debug, Clone)]
pub(crate) struct Scaleway {
    config: ScalewayConfig,
    retry: RetryPolicy,
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// One call.
struct Call<'a> {
    /// What it does, for errors.
    what: String,
    method: Method,
    path: &'a str,
    body: Option<Value>,
}

impl Scaleway {
    /// A client. It makes no connection yet.
    pub(crate) fn new(config: ScalewayConfig, retry: RetryPolicy) -> Result<Self, ScalewayConfigError> {
        let roots = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
            .map_err(|_| {
                ScalewayConfigError::Wrong("SSL_CERT_FILE", "this system has no root certificates")
            })?;
        let connector = roots.https_or_http().enable_http1().build();
        let http = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Self { config, retry, http })
    }

    /// All servers of the project in a zone, the oldest first.
    pub(crate) async fn servers(&self, zone: &Zone) -> Result<Vec<Server>, ScalewayError> {
        let path = format!("{}/servers?project_id={}", zone_path(zone), self.config.project_id);
        self.list::<Servers, _>(&format!("list the servers of {zone}"), &path, |server| &server.id).await
    }

    /// A server.
    pub(crate) async fn server(&self, zone: &Zone, id: &HostId) -> Result<Server, ScalewayError> {
        self.call(&Call {
            what: format!("show the server {id}"),
            method: Method::GET,
            path: &server_path(zone, id),
            body: None,
        })
        .await
    }

    /// Gives a server another name, whatever it is called now. The last call wins.
    pub(crate) async fn rename(&self, zone: &Zone, id: &HostId, name: &str) -> Result<Server, ScalewayError> {
        self.call(&Call {
            what: format!("rename the server {id}"),
            method: Method::PATCH,
            path: &server_path(zone, id),
            body: Some(json!({"name": name})),
        })
        .await
    }

    /// Has a server installed anew, with the newest image of its type unless one is given. This takes many minutes.
    pub(crate) async fn reinstall(
        &self,
        zone: &Zone,
        id: &HostId,
        image: Option<&Image>,
    ) -> Result<(), ScalewayError> {
        let body = image.map_or_else(|| json!({}), |image| json!({"os_id": image.id}));
        let path = format!("{}/reinstall", server_path(zone, id));
        let what = format!("reinstall the server {id}");
        let call = Call { what, method: Method::POST, path: &path, body: Some(body) };
        self.call::<IgnoredAny>(&call).await.map(|_| ())
    }

    /// Restarts a server.
    pub(crate) async fn reboot(&self, zone: &Zone, id: &HostId) -> Result<(), ScalewayError> {
        let path = format!("{}/reboot", server_path(zone, id));
        let what = format!("reboot the server {id}");
        let call = Call { what, method: Method::POST, path: &path, body: Some(json!({})) };
        self.call::<IgnoredAny>(&call).await.map(|_| ())
    }

    /// The images for a type of server.
    pub(crate) async fn images(&self, zone: &Zone, kind: &str) -> Result<Vec<Image>, ScalewayError> {
        let path = format!("{}/os?server_type={}", zone_path(zone), encoded(kind));
        self.list::<Images, _>(&format!("list the images for {kind}"), &path, |image| &image.id).await
    }

    /// The project's keys of exactly this name.
    pub(crate) async fn ssh_keys(&self, name: &str) -> Result<Vec<SshKey>, ScalewayError> {
        // The filter also finds names that contain this one.
        let path = format!("{KEYS}?project_id={}&name={}", self.config.project_id, encoded(name));
        let mut keys =
            self.list::<SshKeys, _>(&format!("list the SSH keys {name}"), &path, |key| &key.id).await?;
        keys.retain(|key| key.name == name);
        Ok(keys)
    }

    /// Adds a key to the project.
    pub(crate) async fn add_ssh_key(&self, name: &str, public_key: &str) -> Result<SshKey, ScalewayError> {
        let body = json!({"name": name, "public_key": public_key, "project_id": self.config.project_id});
        let what = format!("add the SSH key {name}");
        self.call(&Call { what, method: Method::POST, path: KEYS, body: Some(body) }).await
    }

    /// Removes a key.
    pub(crate) async fn remove_ssh_key(&self, id: &HostId) -> Result<(), ScalewayError> {
        let path = format!("{KEYS}/{id}");
        let what = format!("remove the SSH key {id}");
        let call = Call { what, method: Method::DELETE, path: &path, body: None };
        match self.call_bytes(&call).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads all pages. A list that changes meanwhile could hide an item between two pages, so it is read again.
    async fn list<P: Page, I: PartialEq>(
        &self,
        what: &str,
        path: &str,
        id: impl Fn(&P::Item) -> &I,
    ) -> Result<Vec<P::Item>, ScalewayError> {
        for _ in 0..LISTINGS {
            let mut items: Vec<P::Item> = Vec::new();
            let mut total = None;
            for page in 1.. {
                let path = format!("{path}&page={page}&page_size={PAGE_SIZE}");
                let call = Call { what: what.to_owned(), method: Method::GET, path: &path, body: None };
                let (found, count) = self.call::<P>(&call).await?.take();
                let (is_last, is_same) = (found.len() < PAGE_SIZE, *total.get_or_insert(count) == count);
                items.extend(found);
                if is_last || !is_same || items.len() >= count {
                    break;
                }
            }
            let is_repeated = |at: usize| items[..at].iter().any(|item| id(item) == id(&items[at]));
            if total == Some(items.len()) && !(0..items.len()).any(is_repeated) {
                return Ok(items);
            }
        }
        let reason = Reason::BadAnswer("the list changes all the time".to_owned());
        Err(ScalewayError { call: what.to_owned(), reason })
    }

    async fn call<T: DeserializeOwned>(&self, call: &Call<'_>) -> Result<T, ScalewayError> {
        let body = self.call_bytes(call).await?;
        serde_json::from_slice(&body).map_err(|error| {
            // The error's own words may repeat the answer, which has a password.
            let reason =
                Reason::BadAnswer(format!("it has no {} at byte {}", error_kind(&error), error.column()));
            ScalewayError { call: call.what.clone(), reason }
        })
    }

    async fn call_bytes(&self, call: &Call<'_>) -> Result<Bytes, ScalewayError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let answered = timeout(self.retry.timeout, self.send(call)).await;
            let reason = match answered.unwrap_or(Err(Reason::Timeout)) {
                Ok(body) => return Ok(body),
                Err(reason) => reason,
            };
            let Some(delay) = self.retry.delay(&reason, tries, rand::random()) else {
                return Err(ScalewayError { call: call.what.clone(), reason });
            };
            tracing::debug!(call = call.what, %reason, tries, ?delay, "Scaleway is asked again");
            sleep(delay).await;
        }
    }

    /// One try.
    async fn send(&self, call: &Call<'_>) -> Result<Bytes, Reason> {
        let unreachable = |error: &(dyn std::error::Error + 'static)| Reason::Unreachable(chain(error));
        let base = self.config.url.to_string();
        let body = call.body.as_ref().map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(&call.method)
            .uri(format!("{}{}", base.trim_end_matches('/'), call.path))
            .header(HeaderName::from_static("x-auth-token"), &self.config.token)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(Full::from(body))
            .map_err(|error| unreachable(&error))?;
        let response = self.http.request(request).await.map_err(|error| unreachable(&error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await;
        let body = body.map_err(|error| Reason::Unreachable(error.to_string()))?.to_bytes();
        if head.status.is_success() {
            return Ok(body);
        }
        let seconds = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Err(Reason::of_answer(head.status, seconds.map(Duration::from_secs), &body))
    }
}

const KEYS: &str = "/iam/v1alpha1/ssh-keys";

fn zone_path(zone: &Zone) -> String {
    format!("/apple-silicon/v1alpha1/zones/{zone}")
}

fn server_path(zone: &Zone, id: &HostId) -> String {
    format!("{}/servers/{id}", zone_path(zone))
}

fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

fn error_kind(error: &serde_json::Error) -> &'static str {
    match error.classify() {
        serde_json::error::Category::Data => "expected field",
        _ => "JSON",
    }
}
