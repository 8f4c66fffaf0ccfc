//! The agent's identity to the API server: by TLS bootstrap it becomes `system:node:<name>`, as a kubelet does.
//!
//! The agent uses a kubeconfig with credentials of the user as it is. The kubeconfig that the agent writes after a bootstrap refers to a
//! certificate in the state directory, which the agent rotates before it expires.

mod access;
mod alt_names;
mod certificate;
mod cluster;
mod connection;
mod csr;
mod decide;
mod kubeconfig;
mod kubeconfig_flaw;
pub(crate) mod serving;
mod store;

pub(crate) use access::ApiAccess;
pub(crate) use cluster::Cluster;
pub(crate) use kubeconfig_flaw::{KubeconfigFlaw, kubeconfig_flaws, skips_tls_verify};

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use kube::config::KubeconfigError;
use kube::{Client, Config};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::access::AccessUpdater;
use self::certificate::CertifiedKey;
use self::csr::issuance::{IssuanceError, request_certificate};
use self::csr::{CLIENT, Requester, WantedCertificate};
use self::decide::{FoundCredentials, IdentityDecision, Lifetime, UnusableReason, decide, pause};
use self::kubeconfig::{after_bootstrap, inspect, load, with_certificate};
use self::kubeconfig_flaw::access_flaw;
use self::store::{CertificateStore, StoreError};
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::fs::secret_file::write_secret;
use crate::names::NodeName;

/// The agent compares with the clock this often: a Mac that slept, or whose clock was set, still rotates in time.
const CLOCK_INTERVAL: Duration = Duration::from_mins(1);

/// The limit of one try to rotate, for the same reason. The next try continues with the same request.
const ROTATION_LIMIT: Duration = Duration::from_mins(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error(
        "cannot use the kubeconfig {}: {reason}; name another one with --kubeconfig, or have the agent get one with --bootstrap-kubeconfig",
        path.display()
    )]
    Kubeconfig { path: PathBuf, reason: UnusableReason },
    #[error("cannot use the bootstrap kubeconfig {}; name another one with --bootstrap-kubeconfig", .0.display())]
    Bootstrap(PathBuf, #[source] Box<KubeconfigError>),
    /// The agent would trust every server from then on, and the user would not see it in any file of theirs.
    #[error(
        "the bootstrap kubeconfig {} has insecure-skip-tls-verify, and the agent would obey every machine that answers in place of the API server; put \
         certificate-authority-data in its place",
        .0.display()
    )]
    SkipsTlsVerify(PathBuf),
    #[error("{flaw}; {}", flaw.mend())]
    Flawed { flaw: KubeconfigFlaw },
    #[error("cannot use the credentials in {}", .0.display())]
    Credentials(PathBuf, #[source] Box<kube::Error>),
    #[error("no certificate for {node} with the bootstrap kubeconfig {}", path.display())]
    Issuance {
        node: NodeName,
        path: PathBuf,
        #[source]
        source: IssuanceError,
    },
    #[error("cannot keep the certificate")]
    CertificateStore(#[from] StoreError),
    #[error("cannot write the kubeconfig {}", .0.display())]
    Write(PathBuf, #[source] FileError),
    #[error("cannot write the kubeconfig {}", .0.display())]
    Render(PathBuf, #[source] serde_saphyr::ser::Error),
}

/// When the agent's own certificate expires; `None` if it has none.
pub(crate) fn certificate_end(pki: &Path) -> Option<Timestamp> {
    CertificateStore::client(pki).current().ok().map(|(certified, _)| certified.facts.ends)
}

/// The files of the agent's identity.
#[derive(Debug, Clone)]
pub(crate) struct CredentialSources {
    /// The kubeconfig to use, and to write after a bootstrap.
    pub(crate) kubeconfig: PathBuf,
    pub(crate) bootstrap: Option<PathBuf>,
    /// The directory for keys and certificates.
    pub(crate) pki: PathBuf,
}

impl CredentialSources {
    /// Refuses files that another user of the machine can change, and tells of those that others can read.
    fn check_access(&self) -> Result<(), IdentityError> {
        for flaw in [Some(&self.kubeconfig), self.bootstrap.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|path| access_flaw(path))
        {
            if flaw.is_fatal() {
                return Err(IdentityError::Flawed { flaw });
            }
            warn!("{flaw}; {}", flaw.mend());
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Identity {
    access: ApiAccess,
    /// `None` for credentials of the user.
    rotation: Option<Rotation>,
}

/// The rotation of the agent's own certificate.
#[derive(Debug)]
struct Rotation {
    sources: CredentialSources,
    store: CertificateStore,
    node: NodeName,
    lifetime: Lifetime,
    config: Config,
    updater: AccessUpdater,
}

impl Identity {
    /// Finds the agent's identity, or bootstraps one, however long that takes.
    pub(crate) async fn establish(sources: CredentialSources, node: NodeName) -> Result<Self, IdentityError> {
        let store = CertificateStore::client(&sources.pki);
        let path = &sources.kubeconfig;
        sources.check_access()?;
        let mut may_bootstrap = sources.bootstrap.is_some();
        loop {
            let (credentials, config) = inspect(path, &store, &node).await;
            let reason = match (decide(&credentials, may_bootstrap, Timestamp::now()), config) {
                (IdentityDecision::Bootstrap(reason), _) => {
                    bootstrap(&sources, &store, &node, reason).await?;
                    // A second bootstrap would get the same.
                    may_bootstrap = false;
                    continue;
                }
                (IdentityDecision::Refuse(reason), _) => reason,
                (_, None) => UnusableReason::Unusable("it holds no credentials".to_owned()),
                (_, Some(config)) => {
                    if config.accept_invalid_certs {
                        let flaw = KubeconfigFlaw::SkipsTlsVerify;
                        warn!(kubeconfig = %path.display(), "{flaw}; {}", flaw.mend());
                    }
                    let (access, updater) = ApiAccess::new(config.clone());
                    let FoundCredentials::Own(lifetime) = credentials else {
                        return Ok(Self { access, rotation: None });
                    };
                    info!(ends = %lifetime.ends, rotates = %lifetime.rotates(), "the certificate is the agent's own");
                    let rotation = Rotation { sources, store, node, lifetime, config, updater };
                    return Ok(Self { access, rotation: Some(rotation) });
                }
            };
            return Err(IdentityError::Kubeconfig { path: path.clone(), reason });
        }
    }

    pub(crate) fn access(&self) -> ApiAccess {
        self.access.clone()
    }

    /// Rotates the certificate for as long as it is polled. It returns only if the agent has lost its identity.
    pub(crate) async fn rotate(self) -> IdentityError {
        match self.rotation {
            Some(rotation) => match rotation.run(&self.access).await {
                Ok(never) => match never {},
                Err(error) => error,
            },
            None => std::future::pending().await,
        }
    }
}

impl Rotation {
    async fn run(mut self, access: &ApiAccess) -> Result<Infallible, IdentityError> {
        let client = access
            .client(None)
            .map_err(|error| IdentityError::Credentials(self.sources.kubeconfig.clone(), Box::new(error)))?;
        loop {
            let now = Timestamp::now();
            match decide(&FoundCredentials::Own(self.lifetime), self.sources.bootstrap.is_some(), now) {
                IdentityDecision::Wait(then) => sleep(until(then, now).min(CLOCK_INTERVAL)).await,
                IdentityDecision::Rotate { ends } => {
                    match timeout(until(ends, now).min(ROTATION_LIMIT), self.renew(client.clone())).await {
                        Ok(Ok(certified)) => self.switch_to(&certified),
                        Ok(Err(error)) => {
                            let pause = pause(ends, now);
                            warn!(ends = %ends, error = chain(&error), "cannot rotate the certificate; trying again in {pause:#}");
                            // Another key makes another request; the same one would find the same refusal.
                            if matches!(error, IssuanceError::Refused { .. })
                                && let Err(error) = self.store.forget_pending()
                            {
                                warn!(error = chain(&error), "cannot forget a private key");
                            }
                            sleep(pause.unsigned_abs().min(until(ends, now))).await;
                        }
                        // The certificate may have expired meanwhile: decide again.
                        Err(_) => {}
                    }
                }
                IdentityDecision::Bootstrap(reason) => {
                    let certified = bootstrap(&self.sources, &self.store, &self.node, reason).await?;
                    self.switch_to(&certified);
                }
                IdentityDecision::Refuse(reason) => {
                    return Err(IdentityError::Kubeconfig { path: self.sources.kubeconfig, reason });
                }
                // Never for the agent's own certificate.
                IdentityDecision::Use => std::future::pending().await,
            }
        }
    }

    async fn renew(&self, client: Client) -> Result<CertifiedKey, IssuanceError> {
        // After a crash at the end of the last rotation, the pending key is that of the certificate in use.
        if let Ok((current, _)) = self.store.current()
            && current.facts.has_key(&self.store.pending_key()?)
        {
            self.store.forget_pending()?;
        }
        info!(ends = %self.lifetime.ends, "the certificate is due: asking for its successor");
        let wanted = client_certificate(Requester::Node, &self.node);
        let certified = request_certificate(client, &wanted, &self.store).await?;
        self.store.set_current(&certified)?;
        self.store.forget_pending()?;
        Ok(certified)
    }

    fn switch_to(&mut self, certified: &CertifiedKey) {
        let facts = &certified.facts;
        self.lifetime = Lifetime { starts: Timestamp::now(), ends: facts.ends, jitter: facts.number };
        self.updater.change(with_certificate(self.config.clone(), certified));
        info!(ends = %self.lifetime.ends, rotates = %self.lifetime.rotates(), "using the new certificate");
    }
}

/// Requests a certificate with the bootstrap credentials and writes the kubeconfig that uses it.
///
/// The pending key is forgotten last: after a crash before that, the next agent finds the request and its certificate again.
async fn bootstrap(
    sources: &CredentialSources,
    store: &CertificateStore,
    node: &NodeName,
    reason: UnusableReason,
) -> Result<CertifiedKey, IdentityError> {
    info!(kubeconfig = %sources.kubeconfig.display(), %reason, "getting a certificate by TLS bootstrap");
    let Some(path) = &sources.bootstrap else {
        return Err(IdentityError::Kubeconfig { path: sources.kubeconfig.clone(), reason });
    };
    let unusable = |error| IdentityError::Bootstrap(path.clone(), Box::new(error));
    let (kubeconfig, config) = load(path).await.map_err(unusable)?;
    if skips_tls_verify(&kubeconfig) {
        return Err(IdentityError::SkipsTlsVerify(path.clone()));
    }
    let own = after_bootstrap(&kubeconfig, &store.current_path())
        .ok_or_else(|| unusable(KubeconfigError::CurrentContextNotSet))?;
    let client = Client::try_from(config)
        .map_err(|error| IdentityError::Credentials(path.clone(), Box::new(error)))?;
    let certified = request_certificate(client, &client_certificate(Requester::Bootstrap, node), store)
        .await
        .map_err(|source| IdentityError::Issuance { node: node.clone(), path: path.to_owned(), source })?;
    store.set_current(&certified)?;
    let target = &sources.kubeconfig;
    let text = serde_saphyr::to_string(&own).map_err(|error| IdentityError::Render(target.clone(), error))?;
    write_secret(target, text.as_bytes()).map_err(|error| IdentityError::Write(target.clone(), error))?;
    store.forget_pending()?;
    info!(kubeconfig = %target.display(), ends = %certified.facts.ends, "got a certificate and wrote the kubeconfig");
    Ok(certified)
}

fn client_certificate(requester: Requester, node: &NodeName) -> WantedCertificate<'_> {
    WantedCertificate { signer: CLIENT, requester, node, alt_names: None }
}

fn until(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}
