//! Gets a certificate from the cluster: asks, waits, and says in the log what it waits for.

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Api, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use rcgen::KeyPair;
use tokio::time::{Instant, interval_at, sleep, timeout};
use tracing::{info, warn};

use super::certificate::Pair;
use super::request::{Asker, CsrAnswer, answer, request};
use super::store::{Store, StoreError};
use crate::error_chain::chain;
use crate::names::NodeName;

const LIMIT: Duration = Duration::from_secs(15);
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// A cluster that approves by itself is done by then.
const FIRST_REMINDER: Duration = Duration::from_secs(5);
const REMIND_EVERY: Duration = Duration::from_mins(1);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObtainError {
    /// Somebody said no.
    #[error(
        "the certificate signing request {name} {words}; to have the agent ask again, run `kubectl delete csr {name}` and start the agent"
    )]
    Refused {
        /// The request.
        name: String,
        /// What the cluster says about it.
        words: String,
    },
    /// The credentials do not allow asking.
    #[error(
        "the API server takes no certificate signing request from these credentials; are they still valid?"
    )]
    Forbidden(#[source] Box<kube::Error>),
    /// The certificate is of no use.
    #[error(
        "the certificate of {name} has ended at {ends:.0} already; is this machine's clock right? It shows {now:.0}"
    )]
    Ended {
        /// The request.
        name: String,
        /// The certificate's end.
        ends: Timestamp,
        /// What the clock says.
        now: Timestamp,
    },
    /// The request cannot be made.
    #[error("cannot make a certificate signing request")]
    Make(#[source] rcgen::Error),
    /// Keys cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What came of waiting for a request.
enum Outcome {
    Issued(String),
    Refused(String),
    /// The request was deleted.
    Gone,
}

/// Asks for a Node's certificate and waits for it, however long that takes.
///
/// A request that an earlier agent made and that still fits is waited for instead of making another. The caller keeps
/// the certificate and then forgets the pending key; until then a restart finds the same certificate again.
pub(crate) async fn obtain(
    client: Client,
    asker: Asker,
    store: &Store,
    node: &NodeName,
) -> Result<Pair, ObtainError> {
    let api: Api<CertificateSigningRequest> = Api::all(client);
    loop {
        let key = store.pending_key()?;
        let request = request(node, &key, asker).map_err(ObtainError::Make)?;
        let name = request.name_any();
        let existed = ask(&api, &request).await?;
        let how = if existed { "asked before" } else { "asked" };
        info!(csr = name, "{how} for a certificate; waiting until it is approved and signed");
        let certificate = match wait(&api, &name).await {
            Outcome::Issued(certificate) => certificate,
            Outcome::Refused(words) => return Err(ObtainError::Refused { name, words }),
            Outcome::Gone => {
                warn!(csr = name, "the certificate signing request was deleted; asking again");
                continue;
            }
        };
        match usable(&certificate, &key, &name, Timestamp::now()) {
            Ok(pair) => return Ok(pair),
            Err(error) if existed => {
                warn!(csr = name, error = chain(&error), "asking again with another key");
                store.forget_pending()?;
            }
            Err(error) => return Err(error),
        }
    }
}

fn usable(certificate: &str, key: &KeyPair, name: &str, now: Timestamp) -> Result<Pair, ObtainError> {
    let pair = Pair::new(certificate, key).map_err(|error| ObtainError::Refused {
        name: name.to_owned(),
        words: format!("has an unusable answer: {}", chain(&error)),
    })?;
    if pair.facts.ends <= now {
        return Err(ObtainError::Ended { name: name.to_owned(), ends: pair.facts.ends, now });
    }
    Ok(pair)
}

/// Makes sure that the request is there, and says whether it was before.
async fn ask(
    api: &Api<CertificateSigningRequest>,
    request: &CertificateSigningRequest,
) -> Result<bool, ObtainError> {
    let mut delay = FIRST_DELAY;
    loop {
        let problem = match timeout(LIMIT, api.create(&PostParams::default(), request)).await {
            Ok(Ok(_)) => return Ok(false),
            Ok(Err(kube::Error::Api(answer))) if answer.code == 409 => return Ok(true),
            Ok(Err(error @ kube::Error::Api(_))) if is_forbidden(&error) => {
                return Err(ObtainError::Forbidden(Box::new(error)));
            }
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("no answer within {} s", LIMIT.as_secs()),
        };
        warn!(problem, "cannot ask for a certificate; trying again");
        sleep(delay).await;
        delay = (delay * 2).min(LONGEST_DELAY);
    }
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(answer) if matches!(answer.code, 401 | 403))
}

async fn wait(api: &Api<CertificateSigningRequest>, name: &str) -> Outcome {
    let only_ours = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut requests = watcher(api.clone(), only_ours).default_backoff().boxed();
    let mut reminder = interval_at(Instant::now() + FIRST_REMINDER, REMIND_EVERY);
    let mut approved = false;
    let mut listed = false;
    let mut problem = None;
    loop {
        let event = tokio::select! {
            Some(event) = requests.next() => event,
            _ = reminder.tick() => {
                remind(name, approved, problem.as_deref());
                continue;
            }
        };
        match event {
            Ok(watcher::Event::Apply(request) | watcher::Event::InitApply(request)) => {
                listed = true;
                problem = None;
                match answer(&request) {
                    CsrAnswer::Issued(certificate) => return Outcome::Issued(certificate),
                    CsrAnswer::Refused(words) => return Outcome::Refused(words),
                    CsrAnswer::Unapproved => approved = false,
                    CsrAnswer::Unsigned => approved = true,
                }
            }
            Ok(watcher::Event::Init) => listed = false,
            Ok(watcher::Event::InitDone) if listed => {}
            Ok(watcher::Event::InitDone | watcher::Event::Delete(_)) => return Outcome::Gone,
            Err(error) => {
                let told = chain(&error);
                if problem.is_none() {
                    warn!(
                        csr = name,
                        problem = told,
                        "cannot watch the certificate signing request; trying again"
                    );
                }
                problem = Some(told);
            }
        }
    }
}

fn remind(name: &str, approved: bool, problem: Option<&str>) {
    if let Some(problem) = problem {
        warn!(csr = name, problem, "cannot watch the certificate signing request; trying again");
    } else if approved {
        warn!(
            csr = name,
            "the certificate signing request is approved, but the cluster has not signed it: is the controller csrsigning of kube-controller-manager running?"
        );
    } else {
        warn!(
            csr = name,
            "the certificate signing request still waits for approval: check it with `kubectl describe csr {name}` and run `kubectl certificate approve {name}`"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::certificate::tests::signed;

    #[test]
    fn a_certificate_is_used_when_it_fits_and_lasts() {
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let now = Timestamp::now();
        let certificate = signed("a", &key);
        let pair = usable(&certificate, &key, "node-csr-1", now).unwrap();
        let later = usable(&certificate, &key, "node-csr-1", pair.facts.ends).unwrap_err();
        assert!(later.to_string().contains("is this machine's clock right?"), "{later}");
        let another = usable(&certificate, &other, "node-csr-1", now).unwrap_err();
        assert!(another.to_string().contains("do not belong together"), "{another}");
        assert!(another.to_string().contains("kubectl delete csr node-csr-1"), "{another}");
    }
}
