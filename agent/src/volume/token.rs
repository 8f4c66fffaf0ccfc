//! Tokens of service accounts, made for one Pod and good for as long as it exists. They are kept in memory only.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::objects::{is_forbidden, words};

/// How long the API server may take for a token.
const LIMIT: Duration = Duration::from_secs(10);
/// The API server may learn a moment later than this Node that a Pod is bound to it, and refuses until then.
const REFUSALS: u32 = 6;
const FIRST_REFUSAL: Duration = Duration::from_millis(100);
/// The life of a token whose Pod does not say, which is also what the API server defaults to.
const USUAL_LIFE: i64 = 3600;
/// No token is kept for longer than this, however long it lives.
const LONGEST_USE: Duration = Duration::from_hours(24);
/// Tokens that were made together are not renewed together.
const LARGEST_JITTER: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_mins(1);
/// The clock is looked at this often: it may be set, and it does not stand still while the machine sleeps.
const LOOK_AT_CLOCK: Duration = Duration::from_mins(1);

/// Where tokens come from.
#[derive(Clone)]
pub struct Tokens(Client);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

/// There is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The API server refuses, or cannot be reached.
    #[error("failed to fetch token: {0}")]
    Refused(String),
    /// It does not answer.
    #[error("failed to fetch token: the API server did not answer within {} s", LIMIT.as_secs())]
    Late,
    /// It answers nonsense.
    #[error("failed to fetch token: the API server's answer has none")]
    None,
}

impl Tokens {
    /// Tokens that this client gets.
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// A token for a Pod. Nothing is asked for yet.
    pub fn token(&self, pod: &Pod, wanted: &ServiceAccountTokenProjection) -> Token {
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        Token {
            api: Api::namespaced(self.0.clone(), &pod.namespace().unwrap_or_default()),
            account: account.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned()),
            request: request(pod, wanted),
            held: None,
            due: Timestamp::MIN,
            failures: 0,
        }
    }
}

/// What the API server is asked for. A Node gets only tokens that end with one of its Pods.
fn request(pod: &Pod, wanted: &ServiceAccountTokenProjection) -> TokenRequest {
    let audience = wanted.audience.iter().filter(|audience| !audience.is_empty());
    TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(audience.cloned().collect()),
            expiration_seconds: wanted.expiration_seconds,
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pod.name_any()),
                uid: pod.metadata.uid.clone(),
            }),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    }
}

/// A token that is renewed while it is good.
pub struct Token {
    api: Api<ServiceAccount>,
    account: String,
    request: TokenRequest,
    held: Option<Held>,
    /// When to ask for the next one.
    due: Timestamp,
    /// How often in a row there was none.
    failures: u32,
}

/// A token, and until when it is good.
struct Held {
    token: String,
    term: Term,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("account", &self.account)
            .field("due", &self.due)
            .finish_non_exhaustive()
    }
}

impl Token {
    /// A token that is good now. One that is to be renewed but cannot be is used for as long as it lives.
    pub async fn get(&mut self) -> Result<String, TokenError> {
        let now = Timestamp::now();
        if let Some(held) = &self.held
            && now < self.due.min(held.term.ends)
        {
            return Ok(held.token.clone());
        }
        match self.ask().await {
            Ok(held) => {
                let jitter = LARGEST_JITTER.mul_f64(fastrand::f64());
                self.due = held.term.renew_at(jitter);
                self.failures = 0;
                Ok(self.held.insert(held).token.clone())
            }
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                self.due = later(Timestamp::now(), retry_after(self.failures));
                match self.held.as_ref().filter(|held| now < held.term.ends) {
                    Some(held) => {
                        warn!(account = self.account, %error, "cannot renew a token; using the old one");
                        Ok(held.token.clone())
                    }
                    None => Err(error),
                }
            }
        }
    }

    /// Waits until `get` would ask for another one. Safe to cancel.
    pub async fn due(&self) {
        loop {
            let left = Duration::try_from(self.due.duration_since(Timestamp::now())).unwrap_or_default();
            if left.is_zero() {
                return;
            }
            sleep(left.min(LOOK_AT_CLOCK)).await;
        }
    }

    async fn ask(&self) -> Result<Held, TokenError> {
        let mut refusals = 0;
        loop {
            // Of this clock alone: the API server's may differ.
            let starts = Timestamp::now();
            let parameters = PostParams::default();
            let asked = self.api.create_token_request(&self.account, &parameters, &self.request);
            match timeout(LIMIT, asked).await.map_err(|_| TokenError::Late)? {
                Ok(answer) => return read(answer, starts).ok_or(TokenError::None),
                Err(error) if is_forbidden(&error) && self.held.is_none() && refusals < REFUSALS => {
                    sleep(FIRST_REFUSAL * 2u32.pow(refusals)).await;
                    refusals += 1;
                }
                Err(error) => return Err(TokenError::Refused(words(&error))),
            }
        }
    }
}

fn read(answer: TokenRequest, starts: Timestamp) -> Option<Held> {
    let token = answer.status.and_then(|status| status.token).filter(|token| !token.is_empty())?;
    // What was granted, which may differ from what was asked for.
    let life = answer.spec.and_then(|spec| spec.expiration_seconds).unwrap_or(USUAL_LIFE);
    let life = Duration::from_secs(u64::try_from(life).unwrap_or_default());
    Some(Held { token, term: Term { starts, ends: later(starts, life) } })
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// A token's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Term {
    starts: Timestamp,
    ends: Timestamp,
}

impl Term {
    /// When the token is to be renewed: at four fifths of its life or after a day, and a little before that.
    fn renew_at(self, jitter: Duration) -> Timestamp {
        let life = Duration::try_from(self.ends.duration_since(self.starts)).unwrap_or_default();
        let used = (life * 4 / 5).min(LONGEST_USE);
        // Of a very short life the jitter must not be all.
        later(self.starts, used.saturating_sub(jitter.min(used / 2)))
    }
}

fn retry_after(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1))).min(LONGEST_RETRY)
}
