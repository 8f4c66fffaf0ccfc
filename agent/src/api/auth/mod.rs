//! Who may ask for what: client certificates and bearer tokens name a user, and the API server says what the user may do.
//!
//! The agent decides nothing itself. While the API server cannot be asked, it serves only what it was told shortly before.

mod attributes;
mod cache;
mod client_ca;
mod user;

pub(super) use attributes::Attributes;
pub(super) use client_ca::AskForCertificate;
pub(crate) use client_ca::{ClientCa, ClientCaError, PeerCertificates};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Response, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use self::cache::Cache;
use self::user::User;
use super::http::response::{self, Body};
use crate::apiserver::call::{CallError, call};
use crate::error_chain::chain;
use crate::names::NodeName;

/// How long the agent believes what it was told; the kubelet's figures, apart from that for unknown tokens, which may become known soon.
pub(super) const KNOWN_TOKEN: Duration = Duration::from_mins(2);
const UNKNOWN_TOKEN: Duration = Duration::from_secs(10);
pub(super) const ALLOWED: Duration = Duration::from_mins(5);
pub(super) const DENIED: Duration = Duration::from_secs(30);

/// Entries of each cache. A cluster has a handful of scrapers; more are made by a client that tries tokens.
const CACHE_SIZE: usize = 256;
/// Reviews of tokens at once, and reviews of rights: a client that tries tokens must not keep the API server busy, and must not hold up
/// clients that have proved who they are.
const REVIEWS: usize = 8;
/// The limit of one review, with the time that it waits for its turn.
const DEADLINE: Duration = Duration::from_secs(10);
/// Tokens are shorter. The agent asks no API server about a longer one.
const MAX_TOKEN: usize = 32 << 10;

/// The answer of an authenticated and authorized request comes from its handler; this is why there is no such answer.
#[derive(Debug)]
pub(super) enum AuthError {
    /// The client has not said who it is, or cannot prove it.
    Unauthorized,
    /// The user may not do this.
    Forbidden { user: String, attributes: Attributes },
    /// The API server could not be asked.
    NotAsked { what: &'static str, error: CallError },
}

impl AuthError {
    /// The answer. The words are the kubelet's.
    pub(super) fn response(&self) -> Response<Body> {
        match self {
            Self::Unauthorized => response::text(StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::Forbidden { user, attributes: Attributes { verb, subresources } } => response::text(
                StatusCode::FORBIDDEN,
                format!(
                    "Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{}])",
                    subresources.join(" ")
                ),
            ),
            Self::NotAsked { what, error } => response::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("{what} error: {}", error.without_content()),
            ),
        }
    }
}

/// The agent keeps no token.
type TokenDigest = [u8; 32];

/// Authenticates and authorizes requests.
pub(super) struct Auth {
    ca: Arc<ClientCa>,
    client: Client,
    node: NodeName,
    tokens: Mutex<Cache<TokenDigest, Option<User>>>,
    decisions: Mutex<Cache<(User, &'static str, &'static str), bool>>,
    token_reviews: Semaphore,
    access_reviews: Semaphore,
}

impl Auth {
    pub(super) fn new(ca: Arc<ClientCa>, client: Client, node: NodeName) -> Self {
        Self {
            ca,
            client,
            node,
            tokens: Mutex::new(Cache::new(CACHE_SIZE)),
            decisions: Mutex::new(Cache::new(CACHE_SIZE)),
            token_reviews: Semaphore::new(REVIEWS),
            access_reviews: Semaphore::new(REVIEWS),
        }
    }

    /// Checks that the client may send this request.
    pub(super) async fn check(
        &self,
        certificates: &PeerCertificates,
        (method, path, headers): (&Method, &str, &HeaderMap),
    ) -> Result<(), AuthError> {
        let user = self.authenticate(certificates, headers).await?;
        let attributes = Attributes::of(method, path);
        for subresource in attributes.subresources {
            if self.is_allowed(&user, attributes.verb, subresource).await? {
                return Ok(());
            }
        }
        debug!(user = user.name, %method, path, "forbidden");
        Err(AuthError::Forbidden { user: user.name, attributes })
    }

    async fn authenticate(
        &self,
        certificates: &PeerCertificates,
        headers: &HeaderMap,
    ) -> Result<User, AuthError> {
        if let Some(user) = self.ca.user(certificates) {
            return Ok(user);
        }
        let Some(token) = bearer_token(headers) else { return Err(AuthError::Unauthorized) };
        let digest: TokenDigest = Sha256::digest(token).into();
        let known = lock(&self.tokens).get(&digest, Instant::now());
        let user = match known {
            Some(user) => user,
            None => {
                let found = self.review_token(token).await;
                let user = found.map_err(|error| not_asked("Authentication", error))?;
                let life = if user.is_some() { KNOWN_TOKEN } else { UNKNOWN_TOKEN };
                lock(&self.tokens).insert(digest, user.clone(), Instant::now(), life);
                user
            }
        };
        user.ok_or(AuthError::Unauthorized)
    }

    async fn review_token(&self, token: &str) -> Result<Option<User>, CallError> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() },
            ..TokenReview::default()
        };
        let status = self.review(&self.token_reviews, review).await?.status.unwrap_or_default();
        let is_known = status.authenticated == Some(true);
        Ok(status.user.filter(|_| is_known).and_then(User::of_token))
    }

    async fn is_allowed(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, AuthError> {
        let key = (user.clone(), verb, subresource);
        if let Some(known) = lock(&self.decisions).get(&key, Instant::now()) {
            return Ok(known);
        }
        let review = access_review(user, verb, subresource, &self.node);
        let reviewed = self
            .review(&self.access_reviews, review)
            .await
            .map_err(|error| not_asked("Authorization", error))?;
        let allowed = reviewed.status.is_some_and(|status| status.allowed && status.denied != Some(true));
        let life = if allowed { ALLOWED } else { DENIED };
        lock(&self.decisions).insert(key, allowed, Instant::now(), life);
        Ok(allowed)
    }

    /// Has the API server complete a review.
    async fn review<K>(&self, turns: &Semaphore, review: K) -> Result<K, CallError>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        call(DEADLINE, async {
            let _turn = turns.acquire().await;
            api.create(&PostParams::default(), &review).await
        })
        .await
    }
}

fn not_asked(what: &'static str, error: CallError) -> AuthError {
    warn!(error = chain(&error), "{what} of a request: the API server cannot be asked");
    AuthError::NotAsked { what, error }
}

fn access_review(user: &User, verb: &str, subresource: &str, node: &NodeName) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: user.uid.clone(),
            groups: Some(user.groups.clone()),
            extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some(subresource.to_owned()),
                name: Some(node.to_string()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// The token of `Authorization: Bearer …`.
pub(super) fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_TOKEN).then_some(token)
}

/// A cache that another thread held when it panicked is still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_bearer_token_is_read_from_its_header() {
        for (header, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic abc", None),
            ("abc", None),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(header).unwrap())]);
            assert_eq!(bearer_token(&headers), expected, "{header}");
        }
        let long = format!("Bearer {}", "a".repeat(MAX_TOKEN + 1));
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&long).unwrap())]);
        assert_eq!(bearer_token(&headers), None);
        assert_eq!(bearer_token(&HeaderMap::new()), None);
    }

    #[test]
    fn a_review_names_the_user_with_all_groups_and_this_node() {
        let review = access_review(&User::example("ann"), "get", "proxy", &"mac-1".parse().unwrap());
        let review = serde_json::to_value(review.spec).unwrap();
        let expected = serde_json::json!({
            "user": "ann",
            "groups": ["system:authenticated"],
            "resourceAttributes": {
                "verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": "mac-1",
            },
        });
        assert_eq!(review, expected);
    }

    #[test]
    fn refusals_are_in_the_words_of_the_kubelet() {
        let forbidden = AuthError::Forbidden {
            user: "ann".to_owned(),
            attributes: Attributes::of(&Method::GET, "/pods"),
        };
        assert_eq!(forbidden.response().status(), 403);
        assert_eq!(AuthError::Unauthorized.response().status(), 401);
        let error = not_asked("Authorization", CallError::Late(DEADLINE));
        assert_eq!(error.response().status(), 500);
    }
}
