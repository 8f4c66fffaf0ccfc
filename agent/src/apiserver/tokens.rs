//! Tokens of service accounts, made for one Pod and good for as long as it exists. They are kept in memory only.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::watched_objects::{is_forbidden, words};

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
pub(crate) struct Tokens(Client);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

/// There is no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
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
    pub(crate) fn new(client: Client) -> Self {
        Self(client)
    }

    /// A token for a Pod. Nothing is asked for yet.
    pub(crate) fn token(&self, pod: &Pod, wanted: &ServiceAccountTokenProjection) -> Token {
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
        }),
        ..TokenRequest::default()
    }
}

/// A token that is renewed while it is good.
pub(crate) struct Token {
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
    pub(crate) async fn get(&mut self) -> Result<String, TokenError> {
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
    pub(crate) async fn due(&self) {
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
        let used = (life * 4 / 5).min(longest_use());
        // Of a very short life the jitter must not be all.
        later(self.starts, used.saturating_sub(jitter.min(used / 2)))
    }
}

/// No token is kept for longer than this. A test that cannot wait for the ten minutes that a token lives at least has it renewed
/// after as many seconds as `TART_KUBELET_TOKEN_USE` says; release builds know nothing of it.
#[cfg(debug_assertions)]
fn longest_use() -> Duration {
    let asked = std::env::var("TART_KUBELET_TOKEN_USE").ok().and_then(|seconds| seconds.parse().ok());
    asked.map_or(LONGEST_USE, Duration::from_secs)
}

#[cfg(not(debug_assertions))]
fn longest_use() -> Duration {
    LONGEST_USE
}

fn retry_after(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1))).min(LONGEST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use kube::client::Body;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_token_is_renewed_at_four_fifths_of_its_life_or_after_a_day() {
        let table = [(600, 480), (3600, 2880), (100_000, 80_000), (1_000_000, 86_400), (0, 0)];
        for (life, expected) in table {
            let term = Term { starts: at(5), ends: at(5 + life) };
            assert_eq!(term.renew_at(Duration::ZERO), at(5 + expected), "{life}");
        }
    }

    #[test]
    fn failures_are_retried_ever_more_slowly() {
        let delays = [1, 2, 3, 7, 8, u32::MAX].map(|failures| retry_after(failures).as_secs());
        assert_eq!(delays, [1, 2, 4, 60, 60, 60]);
    }

    #[test]
    fn a_token_is_bound_to_its_pod() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}))
                .unwrap();
        let wanted = ServiceAccountTokenProjection {
            audience: Some("vault".to_owned()),
            expiration_seconds: Some(600),
            path: "token".to_owned(),
        };
        assert_eq!(
            json!(request(&pod, &wanted).spec),
            json!({
                "audiences": ["vault"], "expirationSeconds": 600,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
            })
        );
        let usual = ServiceAccountTokenProjection { audience: Some(String::new()), ..wanted };
        assert_eq!(request(&pod, &usual).spec.unwrap().audiences, Some(Vec::new()), "the API server's own");
    }

    #[test]
    fn the_life_that_was_granted_counts() {
        let answer = |spec| -> TokenRequest {
            serde_json::from_value(json!({"spec": spec, "status": {"token": "t"}})).unwrap()
        };
        let ends = |answer| read(answer, at(0)).unwrap().term.ends;
        assert_eq!(ends(answer(json!({"expirationSeconds": 7200}))), at(7200));
        assert_eq!(ends(answer(json!({}))), at(3600));
        let empty: TokenRequest =
            serde_json::from_value(json!({"spec": {}, "status": {"token": ""}})).unwrap();
        assert!(read(empty, at(0)).is_none());
    }

    /// Tokens of an API server that answers thus, in turn.
    fn answering(answers: impl IntoIterator<Item = (u16, Value)>) -> Tokens {
        let answers = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
        let answer = move |_: http::Request<Body>| {
            let (code, answer) = answers.lock().unwrap().pop_front().expect("one request too many");
            let body = Body::from(answer.to_string().into_bytes());
            std::future::ready(Ok::<_, Infallible>(
                http::Response::builder().status(code).body(body).unwrap(),
            ))
        };
        Tokens::new(Client::new(tower::service_fn(answer), "default"))
    }

    fn granted(token: &str) -> (u16, Value) {
        let spec = json!({"audiences": [], "expirationSeconds": 3600});
        (201, json!({"spec": spec, "status": {"token": token, "expirationTimestamp": null}}))
    }

    fn refused(code: u16) -> (u16, Value) {
        (code, json!({"status": "Failure", "message": "no", "reason": "x", "code": code}))
    }

    fn token(answers: impl IntoIterator<Item = (u16, Value)>) -> Token {
        let pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"}})).unwrap();
        answering(answers).token(&pod, &ServiceAccountTokenProjection::default())
    }

    #[tokio::test]
    async fn a_token_is_kept_until_it_is_due() {
        let mut token = token([granted("first"), granted("second")]);
        token.due().await;
        assert_eq!(
            (token.get().await.unwrap(), token.get().await.unwrap()),
            ("first".into(), "first".into())
        );
        assert!(token.due > Timestamp::now());
        token.due = Timestamp::MIN;
        assert_eq!(
            (token.get().await.unwrap(), token.get().await.unwrap()),
            ("second".into(), "second".into())
        );
    }

    #[tokio::test]
    async fn an_old_token_is_used_while_there_is_no_new_one_and_it_is_good() {
        let mut token = token([granted("old"), refused(403), refused(403), granted("new")]);
        token.get().await.unwrap();
        token.due = Timestamp::MIN;
        assert_eq!(token.get().await.unwrap(), "old");
        assert!(token.due > Timestamp::now(), "not asked for again at once");
        token.held.as_mut().unwrap().term.ends = Timestamp::MIN;
        assert_eq!(token.get().await.unwrap_err().to_string(), "failed to fetch token: no");
        assert_eq!(token.get().await.unwrap(), "new");
    }

    #[tokio::test]
    async fn a_pod_that_the_api_server_is_about_to_learn_of_gets_its_token() {
        let mut token = token([refused(403), refused(403), granted("t")]);
        assert_eq!(token.get().await.unwrap(), "t");
        assert!(!format!("{token:?}").contains("\"t\""));
    }

    proptest! {
        #[test]
        fn a_token_is_renewed_while_it_is_good(life in 1i64..10_000_000, jitter in 0u64..10) {
            let term = Term { starts: at(0), ends: at(life) };
            let renewed = term.renew_at(Duration::from_secs(jitter));
            prop_assert!(term.starts < renewed && renewed < term.ends);
        }
    }
}
