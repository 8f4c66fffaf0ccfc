//! Service account tokens, each bound to one Pod. The agent keeps them in memory only.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use tokio::time::sleep;
use tracing::warn;

use super::call::call;
use crate::backoff::{TOKEN_OF_NEW_POD, TOKEN_RENEWAL};
use crate::clock;

const DEADLINE: Duration = Duration::from_secs(10);
/// The Node authorizer may learn later than this Node that a Pod is bound to it, and refuses until then.
const REFUSALS: u32 = 6;
/// In seconds: the API server's default.
const DEFAULT_LIFETIME: i64 = 3600;
/// The agent renews a token after this time, however long it is valid.
const LONGEST_USE: Duration = Duration::from_hours(24);
/// Tokens that were requested together are not renewed together.
const LARGEST_JITTER: Duration = Duration::from_secs(10);
/// The agent compares with the clock this often: a user may set it, and it goes on while the machine sleeps.
const CLOCK_INTERVAL: Duration = Duration::from_mins(1);

#[derive(Clone)]
pub(crate) struct Tokens(Client);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

/// There is no token. The first words are the kubelet's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("failed to fetch token: {0}")]
    Request(String),
    #[error("failed to fetch token: the API server's answer has none")]
    Missing,
}

impl Tokens {
    pub(crate) fn new(client: Client) -> Self {
        Self(client)
    }

    /// A token for a Pod; the first `get` requests it.
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

/// The request. A Node gets only tokens that are bound to one of its Pods.
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

/// A token that the agent renews before it expires.
pub(crate) struct Token {
    api: Api<ServiceAccount>,
    account: String,
    request: TokenRequest,
    held: Option<Held>,
    /// When to request the next one.
    due: Timestamp,
    /// In a row.
    failures: u32,
}

struct Held {
    token: String,
    validity: Validity,
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
    /// A valid token. While a renewal fails, the old token is used until it expires.
    pub(crate) async fn get(&mut self) -> Result<String, TokenError> {
        let now = clock::latest();
        if let Some(held) = &self.held
            && now < self.due.min(held.validity.ends)
        {
            return Ok(held.token.clone());
        }
        match self.request().await {
            Ok(held) => {
                let jitter = LARGEST_JITTER.mul_f64(fastrand::f64());
                self.due = held.validity.renew_at(jitter);
                self.failures = 0;
                Ok(self.held.insert(held).token.clone())
            }
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                self.due = later(clock::latest(), TOKEN_RENEWAL.after(self.failures));
                match self.held.as_ref().filter(|held| now < held.validity.ends) {
                    Some(held) => {
                        warn!(account = self.account, %error, "cannot renew a token; using the old one");
                        Ok(held.token.clone())
                    }
                    None => Err(error),
                }
            }
        }
    }

    /// Waits until `get` would request another token. Safe to cancel.
    pub(crate) async fn due(&self) {
        loop {
            let left = Duration::try_from(self.due.duration_since(clock::latest())).unwrap_or_default();
            if left.is_zero() {
                return;
            }
            sleep(left.min(CLOCK_INTERVAL)).await;
        }
    }

    async fn request(&self) -> Result<Held, TokenError> {
        let mut refusals = 0;
        loop {
            // By the agent's clock alone: the API server's may differ.
            let starts = clock::latest();
            let parameters = PostParams::default();
            let request = self.api.create_token_request(&self.account, &parameters, &self.request);
            match call(DEADLINE, request).await {
                Ok(answer) => return read(answer, starts).ok_or(TokenError::Missing),
                Err(error) if error.is_forbidden() && self.held.is_none() && refusals < REFUSALS => {
                    refusals += 1;
                    sleep(TOKEN_OF_NEW_POD.after(refusals)).await;
                }
                Err(error) => return Err(TokenError::Request(error.without_content())),
            }
        }
    }
}

fn read(answer: TokenRequest, starts: Timestamp) -> Option<Held> {
    let token = answer.status.and_then(|status| status.token).filter(|token| !token.is_empty())?;
    // What the API server granted, which may differ from the request.
    let lifetime = answer.spec.and_then(|spec| spec.expiration_seconds).unwrap_or(DEFAULT_LIFETIME);
    let lifetime = Duration::from_secs(u64::try_from(lifetime).unwrap_or_default());
    Some(Held { token, validity: Validity { starts, ends: later(starts, lifetime) } })
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Validity {
    starts: Timestamp,
    ends: Timestamp,
}

impl Validity {
    /// At four fifths of the lifetime or after a day, and a little before that.
    fn renew_at(self, jitter: Duration) -> Timestamp {
        let lifetime = Duration::try_from(self.ends.duration_since(self.starts)).unwrap_or_default();
        let used = (lifetime * 4 / 5).min(longest_use());
        // The jitter must not take all of a very short lifetime.
        later(self.starts, used.saturating_sub(jitter.min(used / 2)))
    }
}

/// A token is valid for ten minutes at least. Tests do not wait for that: in debug builds `TART_KUBELET_TOKEN_USE` is the number of
/// seconds after which the agent renews.
#[cfg(debug_assertions)]
fn longest_use() -> Duration {
    let seconds = std::env::var("TART_KUBELET_TOKEN_USE").ok().and_then(|seconds| seconds.parse().ok());
    seconds.map_or(LONGEST_USE, Duration::from_secs)
}

#[cfg(not(debug_assertions))]
fn longest_use() -> Duration {
    LONGEST_USE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Answer, at};
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_token_is_renewed_at_four_fifths_of_its_lifetime_or_after_a_day() {
        let table = [(600, 480), (3600, 2880), (100_000, 80_000), (1_000_000, 86_400), (0, 0)];
        for (life, expected) in table {
            let validity = Validity { starts: at(5), ends: at(5 + life) };
            assert_eq!(validity.renew_at(Duration::ZERO), at(5 + expected), "{life}");
        }
    }

    #[test]
    fn a_failed_renewal_is_repeated_with_longer_delays() {
        let delays = [1, 2, 3, 7, 8, u32::MAX].map(|failures| TOKEN_RENEWAL.after(failures).as_secs());
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
    fn the_lifetime_is_the_one_that_the_api_server_granted() {
        let answer = |spec| -> TokenRequest {
            serde_json::from_value(json!({"spec": spec, "status": {"token": "t"}})).unwrap()
        };
        let ends = |answer| read(answer, at(0)).unwrap().validity.ends;
        assert_eq!(ends(answer(json!({"expirationSeconds": 7200}))), at(7200));
        assert_eq!(ends(answer(json!({}))), at(3600));
        let empty: TokenRequest =
            serde_json::from_value(json!({"spec": {}, "status": {"token": ""}})).unwrap();
        assert!(read(empty, at(0)).is_none());
    }

    fn granted(token: &str) -> Answer {
        let spec = json!({"audiences": [], "expirationSeconds": 3600});
        (201, json!({"spec": spec, "status": {"token": token, "expirationTimestamp": null}}))
    }

    fn refused(code: u16) -> Answer {
        testing::refusal(code, "x")
    }

    /// A token of an API server that gives these answers in turn.
    fn token(answers: impl IntoIterator<Item = Answer>) -> Token {
        let pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"}})).unwrap();
        let (client, _) = testing::answering(answers.into_iter().map(Some));
        Tokens::new(client).token(&pod, &ServiceAccountTokenProjection::default())
    }

    #[tokio::test]
    async fn a_token_is_used_until_it_is_due() {
        let mut token = token([granted("first"), granted("second")]);
        token.due().await;
        for expected in ["first", "second"] {
            token.due = Timestamp::MIN;
            assert_eq!([token.get().await.unwrap(), token.get().await.unwrap()], [expected, expected]);
            assert!(token.due > clock::latest());
        }
    }

    #[tokio::test]
    async fn an_old_token_is_used_while_its_renewal_fails_and_it_is_valid() {
        let mut token = token([granted("old"), refused(403), refused(403), granted("new")]);
        token.get().await.unwrap();
        token.due = Timestamp::MIN;
        assert_eq!(token.get().await.unwrap(), "old");
        assert!(token.due > clock::latest(), "the agent does not ask again at once");
        token.held.as_mut().unwrap().validity.ends = Timestamp::MIN;
        assert_eq!(token.get().await.unwrap_err().to_string(), "failed to fetch token: no");
        assert_eq!(token.get().await.unwrap(), "new");
    }

    #[tokio::test]
    async fn a_token_is_requested_again_while_the_api_server_does_not_know_the_pod() {
        let mut token = token([refused(403), refused(403), granted("t")]);
        assert_eq!(token.get().await.unwrap(), "t");
        assert!(!format!("{token:?}").contains("\"t\""));
    }

    proptest! {
        #[test]
        fn a_token_is_renewed_while_it_is_valid(life in 1i64..10_000_000, jitter in 0u64..10) {
            let validity = Validity { starts: at(0), ends: at(life) };
            let renewed = validity.renew_at(Duration::from_secs(jitter));
            prop_assert!(validity.starts < renewed && renewed < validity.ends);
        }
    }
}
