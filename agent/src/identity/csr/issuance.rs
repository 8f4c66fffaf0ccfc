//! Gets a certificate from the cluster: creates a certificate signing request, waits, and logs what it waits for.

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Api, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use rcgen::KeyPair;
use tokio::time::{Instant, interval_at, sleep};
use tracing::{info, warn};

use super::{CsrAnswer, Requester, Signer, WantedCertificate, answer, request};
use crate::apiserver::call::{CallError, DEADLINE, call};
use crate::backoff::CSR;
use crate::error_chain::chain;
use crate::identity::certificate::CertifiedKey;
use crate::identity::store::{CertificateStore, StoreError};

/// A cluster that approves automatically has signed by then.
const FIRST_REMINDER: Duration = Duration::from_secs(5);
const REMIND_EVERY: Duration = Duration::from_mins(1);
const REMIND_OF_OPTIONAL_EVERY: Duration = Duration::from_hours(1);

#[derive(Debug, thiserror::Error)]
pub(crate) enum IssuanceError {
    /// The cluster denied the request, or its answer cannot be used.
    #[error(
        "the certificate signing request {name} {words}; to have the agent ask again, run `kubectl delete csr {name}` and start the agent"
    )]
    Refused { name: String, words: String },
    #[error(
        "the API server takes no certificate signing request from these credentials; are they still valid?"
    )]
    Forbidden(#[source] CallError),
    #[error(
        "the certificate of {name} has ended at {ends:.0} already; is this machine's clock right? It shows {now:.0}"
    )]
    Expired { name: String, ends: Timestamp, now: Timestamp },
    /// The certificate is for other names than the agent asked for.
    #[error("the cluster's certificate is not for {0}")]
    OtherNames(String),
    #[error("cannot make a certificate signing request")]
    Make(#[source] rcgen::Error),
    #[error(transparent)]
    CertificateStore(#[from] StoreError),
}

enum WaitResult {
    Issued(String),
    Refused(String),
    Deleted,
}

/// Requests a certificate for a Node and waits for it, however long that takes.
///
/// If an earlier agent sent the same request, it waits for that one. The caller writes the certificate and then forgets the pending key;
/// until then a restarted agent finds the same certificate again.
pub(in crate::identity) async fn request_certificate(
    client: Client,
    wanted: &WantedCertificate<'_>,
    store: &CertificateStore,
) -> Result<CertifiedKey, IssuanceError> {
    let api: Api<CertificateSigningRequest> = Api::all(client);
    loop {
        let key = store.pending_key()?;
        let request = request(wanted, &key).map_err(IssuanceError::Make)?;
        let name = request.name_any();
        let existed = create(&api, &request).await?;
        let how = if existed { "asked before" } else { "asked" };
        let signer = wanted.signer.name;
        info!(csr = name, signer, "{how} for a certificate; waiting until it is approved and signed");
        let certificate = match wait(&api, &name, wanted).await {
            WaitResult::Issued(certificate) => certificate,
            WaitResult::Refused(words) => return Err(IssuanceError::Refused { name, words }),
            WaitResult::Deleted => {
                warn!(csr = name, "the certificate signing request was deleted; asking again");
                continue;
            }
        };
        match usable(&certificate, &key, &name, Timestamp::now()) {
            Ok(certified) => return Ok(certified),
            Err(error) if existed => {
                warn!(csr = name, error = chain(&error), "asking again with another key");
                store.forget_pending()?;
            }
            Err(error) => return Err(error),
        }
    }
}

fn usable(
    certificate: &str,
    key: &KeyPair,
    name: &str,
    now: Timestamp,
) -> Result<CertifiedKey, IssuanceError> {
    let certified = CertifiedKey::new(certificate, key).map_err(|error| IssuanceError::Refused {
        name: name.to_owned(),
        words: format!("has an unusable answer: {}", chain(&error)),
    })?;
    if certified.facts.ends <= now {
        return Err(IssuanceError::Expired { name: name.to_owned(), ends: certified.facts.ends, now });
    }
    Ok(certified)
}

/// Creates the request, and returns whether it existed before.
async fn create(
    api: &Api<CertificateSigningRequest>,
    request: &CertificateSigningRequest,
) -> Result<bool, IssuanceError> {
    let mut delays = CSR.delays();
    loop {
        match call(DEADLINE, api.create(&PostParams::default(), request)).await {
            Ok(_) => return Ok(false),
            Err(error) if error.is_conflict() => return Ok(true),
            Err(error) if matches!(error.code(), Some(401 | 403)) => {
                return Err(IssuanceError::Forbidden(error));
            }
            Err(error) => warn!(problem = chain(&error), "cannot ask for a certificate; trying again"),
        }
        sleep(delays.next()).await;
    }
}

async fn wait(
    api: &Api<CertificateSigningRequest>,
    name: &str,
    &WantedCertificate { signer, requester, .. }: &WantedCertificate<'_>,
) -> WaitResult {
    let remind_every = if signer.is_needed { REMIND_EVERY } else { REMIND_OF_OPTIONAL_EVERY };
    let only_ours = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut requests = watcher(api.clone(), only_ours).default_backoff().boxed();
    let mut reminder = interval_at(Instant::now() + FIRST_REMINDER, remind_every);
    let mut approved = false;
    let mut listed = false;
    let mut problem = None;
    loop {
        let event = tokio::select! {
            Some(event) = requests.next() => event,
            _ = reminder.tick() => {
                remind(name, signer, approved, problem.as_deref());
                continue;
            }
        };
        match event {
            Ok(watcher::Event::Apply(request) | watcher::Event::InitApply(request)) => {
                listed = true;
                problem = None;
                match answer(&request) {
                    CsrAnswer::Issued(certificate) => return WaitResult::Issued(certificate),
                    CsrAnswer::Refused(words) => return WaitResult::Refused(words),
                    CsrAnswer::Unapproved => approved = false,
                    CsrAnswer::Unsigned => approved = true,
                }
            }
            Ok(watcher::Event::Init) => listed = false,
            Ok(watcher::Event::InitDone) if listed => {}
            Ok(watcher::Event::InitDone | watcher::Event::Delete(_)) => return WaitResult::Deleted,
            Err(error) => {
                let mut words = chain(&error);
                if requester == Requester::Bootstrap && is_unauthorized(&error) {
                    words.push_str(
                        ". The bootstrap credentials are no longer valid: write others to the bootstrap kubeconfig, the agent notices",
                    );
                }
                if problem.is_none() {
                    remind(name, signer, approved, Some(&words));
                }
                problem = Some(words);
            }
        }
    }
}

fn is_unauthorized(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) = error else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 401)
}

/// Logs what the agent waits for.
fn remind(name: &str, signer: Signer, approved: bool, problem: Option<&str>) {
    if let Some(problem) = problem {
        warn!(csr = name, problem, "cannot watch the certificate signing request; trying again");
    } else if approved {
        warn!(
            csr = name,
            "the certificate signing request is approved, but the cluster has not signed it: is the controller csrsigning of kube-controller-manager running?"
        );
    } else if !signer.is_needed {
        info!(
            csr = name,
            signer = signer.name,
            "the certificate signing request still waits for approval: run `kubectl certificate approve {name}`, or have an approver in the cluster do it"
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
    fn a_certificate_is_used_if_it_has_the_key_and_has_not_expired() {
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let now = Timestamp::now();
        let certificate = signed("a", &key);
        let certified = usable(&certificate, &key, "node-csr-1", now).unwrap();
        let later = usable(&certificate, &key, "node-csr-1", certified.facts.ends).unwrap_err();
        assert!(later.to_string().contains("is this machine's clock right?"), "{later}");
        let another = usable(&certificate, &other, "node-csr-1", now).unwrap_err();
        assert!(another.to_string().contains("do not belong together"), "{another}");
        assert!(another.to_string().contains("kubectl delete csr node-csr-1"), "{another}");
    }
}
