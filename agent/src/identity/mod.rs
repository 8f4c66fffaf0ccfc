//! The agent's identity to the API server: by TLS bootstrap it becomes `system:node:<name>`, as a kubelet does.
//!
//! The agent uses a kubeconfig with credentials of the user as it is, and notices when the user replaces them. The kubeconfig that the agent
//! writes after a bootstrap refers to a certificate in the state directory, which the agent rotates before it expires. If the API server
//! refuses that certificate nevertheless, the agent bootstraps again.

mod access;
mod alt_names;
mod bootstrap;
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
use kube::Client;
use kube::config::KubeconfigError;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use self::access::AccessUpdater;
use self::bootstrap::bootstrap;
use self::csr::issuance::{IssuanceError, request_certificate};
use self::csr::{CLIENT, Requester, WantedCertificate};
use self::decide::{FoundCredentials, IdentityDecision, UnusableReason, decide, pause};
use self::kubeconfig::{Loaded, inspect};
use self::kubeconfig_flaw::access_flaw;
use self::store::{CertificateStore, StoreError};
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::metrics::Metrics;
use crate::names::NodeName;

/// The agent looks at the clock, at its files and at the API server's answers this often: a Mac that slept, or whose clock was set, still
/// rotates in time.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The limit of one try to get a certificate, for the same reason. The next try continues with the same request.
const TRY_LIMIT: Duration = Duration::from_mins(10);

/// How often the log has a warning about credentials that cannot be used.
const WARN_INTERVAL: Duration = Duration::from_mins(1);

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
    manager: CredentialManager,
}

/// Keeps the agent's credentials valid.
#[derive(Debug)]
struct CredentialManager {
    sources: CredentialSources,
    store: CertificateStore,
    node: NodeName,
    loaded: Loaded,
    updater: AccessUpdater,
    warned_at: Option<Instant>,
}

impl Identity {
    /// Finds the agent's identity, or bootstraps one, however long that takes.
    pub(crate) async fn establish(sources: CredentialSources, node: NodeName) -> Result<Self, IdentityError> {
        let store = CertificateStore::client(&sources.pki);
        sources.check_access()?;
        let mut may_bootstrap = sources.bootstrap.is_some();
        loop {
            let found = inspect(&sources.kubeconfig, &store, &node).await;
            let credentials = found.as_ref().map_or_else(|unusable| unusable, |loaded| &loaded.credentials);
            let reason = match decide(credentials, Duration::ZERO, may_bootstrap, Timestamp::now()) {
                IdentityDecision::Bootstrap(reason) => {
                    bootstrap(&sources, &store, &node, &reason).await?;
                    // A second bootstrap would get the same.
                    may_bootstrap = false;
                    continue;
                }
                IdentityDecision::Refuse(reason) => reason,
                IdentityDecision::Use | IdentityDecision::Wait(_) | IdentityDecision::Rotate { .. } => {
                    let Ok(loaded) = found else { continue };
                    if loaded.config.accept_invalid_certs {
                        let flaw = KubeconfigFlaw::SkipsTlsVerify;
                        warn!(kubeconfig = %sources.kubeconfig.display(), "{flaw}; {}", flaw.mend());
                    }
                    let (access, updater) = ApiAccess::new(loaded.config.clone());
                    if let FoundCredentials::Own(lifetime) = &loaded.credentials {
                        info!(ends = %lifetime.ends, rotates = %lifetime.rotates(), "the certificate is the agent's own");
                    }
                    let manager =
                        CredentialManager { sources, store, node, loaded, updater, warned_at: None };
                    return Ok(Self { access, manager });
                }
            };
            return Err(IdentityError::Kubeconfig { path: sources.kubeconfig, reason });
        }
    }

    pub(crate) fn access(&self) -> ApiAccess {
        self.access.clone()
    }

    /// Keeps the credentials valid for as long as it is polled. An agent that loses them goes on: its VMs need it.
    pub(crate) async fn keep(self, metrics: Metrics) -> IdentityError {
        match self.manager.run(&self.access, &metrics).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }
}

impl CredentialManager {
    /// The error is that of a client that cannot be made.
    async fn run(mut self, access: &ApiAccess, metrics: &Metrics) -> Result<Infallible, IdentityError> {
        let client = access
            .client(None)
            .map_err(|error| IdentityError::Credentials(self.sources.kubeconfig.clone(), Box::new(error)))?;
        loop {
            self.reload().await;
            metrics.certificate_end(certificate_end(&self.sources.pki));
            let (now, can_bootstrap) = (Timestamp::now(), self.sources.bootstrap.is_some());
            match decide(&self.loaded.credentials, access.refused_for(), can_bootstrap, now) {
                IdentityDecision::Use => sleep(LOOK_INTERVAL).await,
                IdentityDecision::Wait(then) => sleep(until(then, now).min(LOOK_INTERVAL)).await,
                IdentityDecision::Rotate { ends } => {
                    let renewal = timeout(until(ends, now).min(TRY_LIMIT), self.renew(client.clone()));
                    // After the limit the certificate may have expired: decide again.
                    if let Ok(Err(error)) = renewal.await {
                        let pause = pause(ends, now);
                        warn!(ends = %ends, error = chain(&error), "cannot rotate the certificate; trying again in {pause:#}");
                        self.forget_refused(&error);
                        sleep(pause.unsigned_abs().min(until(ends, now))).await;
                    }
                }
                IdentityDecision::Bootstrap(reason) => {
                    let bootstrap = bootstrap(&self.sources, &self.store, &self.node, &reason);
                    // After the limit the API server may accept the old credentials again: decide again.
                    if let Ok(Err(error)) = timeout(TRY_LIMIT, bootstrap).await {
                        self.warn(&chain(&error));
                        if let IdentityError::Issuance { source, .. } = &error {
                            self.forget_refused(source);
                        }
                        sleep(LOOK_INTERVAL).await;
                    }
                }
                IdentityDecision::Refuse(reason) => {
                    self.warn(&reason.to_string());
                    sleep(LOOK_INTERVAL).await;
                }
            }
        }
    }

    /// Uses what is in the kubeconfig now, if it can be used. The user may be about to replace two files, one after the other.
    async fn reload(&mut self) {
        let Ok(loaded) = inspect(&self.sources.kubeconfig, &self.store, &self.node).await else { return };
        if loaded.is_same_as(&self.loaded) || connection::client(&loaded.config).is_err() {
            return;
        }
        if let FoundCredentials::Own(lifetime) = &loaded.credentials {
            info!(ends = %lifetime.ends, rotates = %lifetime.rotates(), "using the new certificate");
        } else {
            info!(kubeconfig = %self.sources.kubeconfig.display(), "using the new credentials in the kubeconfig");
        }
        self.updater.change(loaded.config.clone());
        self.loaded = loaded;
        self.warned_at = None;
    }

    async fn renew(&self, client: Client) -> Result<(), IssuanceError> {
        // After a crash at the end of the last rotation, the pending key is that of the certificate in use.
        if let Ok((current, _)) = self.store.current()
            && current.facts.has_key(&self.store.pending_key()?)
        {
            self.store.forget_pending()?;
        }
        info!("the certificate is due: asking for its successor");
        let wanted = client_certificate(Requester::Node, &self.node);
        let certified = request_certificate(client, &wanted, &self.store).await?;
        self.store.set_current(&certified)?;
        self.store.forget_pending()?;
        Ok(())
    }

    /// Another key makes another request; the same one would find the same refusal.
    fn forget_refused(&self, error: &IssuanceError) {
        if matches!(error, IssuanceError::Refused { .. })
            && let Err(error) = self.store.forget_pending()
        {
            warn!(error = chain(&error), "cannot forget a private key");
        }
    }

    /// Logs, not too often, that there are no credentials to use.
    fn warn(&mut self, problem: &str) {
        if self.warned_at.is_some_and(|at| at.elapsed() < WARN_INTERVAL) {
            return;
        }
        self.warned_at = Some(Instant::now());
        let kubeconfig = self.sources.kubeconfig.display();
        if let Some(bootstrap) = &self.sources.bootstrap {
            let bootstrap = bootstrap.display();
            warn!(%kubeconfig, %bootstrap, problem, "the agent has no valid credentials, and its Node will not be ready; VMs run on. Write valid ones to the bootstrap kubeconfig: the agent notices");
        } else {
            warn!(%kubeconfig, problem, "the agent has no valid credentials, and its Node will not be ready; VMs run on. Write valid ones to the kubeconfig: the agent notices. Or start it with --bootstrap-kubeconfig");
        }
    }
}

fn client_certificate(requester: Requester, node: &NodeName) -> WantedCertificate<'_> {
    WantedCertificate { signer: CLIENT, requester, node, alt_names: None }
}

fn until(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}
