//! Who the agent is to the API server: by TLS bootstrap it becomes `system:node:<name>`, as a kubelet does, and stays so.
//!
//! A kubeconfig with credentials of its own is used as it is. One that the agent wrote after a bootstrap refers to a
//! certificate in the state directory, which the agent replaces before it ends.

pub(crate) mod access;
pub(crate) mod certificate;
mod cluster;
mod connection;
pub(crate) mod decide;
pub(crate) mod kubeconfig;
pub(crate) mod obtain;
pub(crate) mod request;
pub(crate) mod store;

pub(crate) use access::ApiAccess;
pub(crate) use cluster::Cluster;

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use kube::config::KubeconfigError;
use kube::{Client, Config};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::access::Changer;
use self::certificate::Pair;
use self::decide::{IdentityDecision, RotationReason, Seen, Term, decide, pause};
use self::kubeconfig::{after_bootstrap, load, look, with_pair};
use self::obtain::{ObtainError, obtain};
use self::request::Asker;
use self::store::{Store, StoreError};
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::fs::secret_file::write_secret;
use crate::names::NodeName;

/// The clock is looked at this often: a Mac that slept, or whose clock was set, still rotates in time.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);

/// One attempt to rotate ends after this at the latest, for the same reason; the next one goes on where it was.
const LONGEST_ATTEMPT: Duration = Duration::from_mins(10);

/// Why the agent has no identity.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    /// The kubeconfig cannot be used, and no other can be got.
    #[error(
        "cannot use the kubeconfig {}: {reason}; name another one with --kubeconfig, or have the agent get one with --bootstrap-kubeconfig",
        path.display()
    )]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: RotationReason,
    },
    /// The bootstrap kubeconfig cannot be used.
    #[error("cannot use the bootstrap kubeconfig {}; name another one with --bootstrap-kubeconfig", .0.display())]
    Bootstrap(PathBuf, #[source] Box<KubeconfigError>),
    /// The credentials in a kubeconfig cannot be used.
    #[error("cannot use the credentials in {}", .0.display())]
    Credentials(PathBuf, #[source] Box<kube::Error>),
    /// The cluster gives no certificate.
    #[error("no certificate for {node} with the bootstrap kubeconfig {}", path.display())]
    Obtain {
        /// For whom.
        node: NodeName,
        /// The bootstrap kubeconfig.
        path: PathBuf,
        /// Why not.
        #[source]
        source: ObtainError,
    },
    /// The certificate cannot be kept.
    #[error("cannot keep the certificate")]
    Store(#[from] StoreError),
    /// The kubeconfig cannot be written.
    #[error("cannot write the kubeconfig {}", .0.display())]
    Write(PathBuf, #[source] FileError),
    /// The kubeconfig cannot be put into words.
    #[error("cannot write the kubeconfig {}", .0.display())]
    Render(PathBuf, #[source] serde_saphyr::ser::Error),
}

/// Where the agent's identity comes from and is kept.
#[derive(Debug, Clone)]
pub(crate) struct CredentialSources {
    /// The kubeconfig to use, and to write after a bootstrap.
    pub(crate) kubeconfig: PathBuf,
    /// The kubeconfig to get a certificate with.
    pub(crate) bootstrap: Option<PathBuf>,
    /// The directory for keys and certificates.
    pub(crate) pki: PathBuf,
}

/// The agent's identity.
#[derive(Debug)]
pub(crate) struct Identity {
    access: ApiAccess,
    keeper: Option<Keeper>,
}

/// What it takes to replace the certificate.
#[derive(Debug)]
struct Keeper {
    sources: CredentialSources,
    store: Store,
    node: NodeName,
    term: Term,
    config: Config,
    changer: Changer,
}

impl Identity {
    /// Finds the agent's identity, or gets one, however long that takes.
    pub(crate) async fn establish(sources: CredentialSources, node: NodeName) -> Result<Self, IdentityError> {
        let store = Store::new(&sources.pki);
        let path = &sources.kubeconfig;
        let mut may_bootstrap = sources.bootstrap.is_some();
        loop {
            let found = look(path, &store, &node).await;
            let reason = match (decide(&found.seen, may_bootstrap, Timestamp::now()), found.config) {
                (IdentityDecision::Bootstrap(reason), _) => {
                    bootstrap(&sources, &store, &node, reason).await?;
                    // What was just got is either good or never will be.
                    may_bootstrap = false;
                    continue;
                }
                (IdentityDecision::Refuse(reason), _) => reason,
                (_, None) => RotationReason::Unusable("it holds no credentials".to_owned()),
                (_, Some(config)) => {
                    let (access, changer) = ApiAccess::new(config.clone());
                    let Seen::Own(term) = found.seen else { return Ok(Self { access, keeper: None }) };
                    info!(ends = %term.ends, rotates = %term.rotates(), "the certificate is the agent's own");
                    let keeper = Keeper { sources, store, node, term, config, changer };
                    return Ok(Self { access, keeper: Some(keeper) });
                }
            };
            return Err(IdentityError::Kubeconfig { path: path.clone(), reason });
        }
    }

    /// How the API server is reached in this identity.
    pub(crate) fn access(&self) -> ApiAccess {
        self.access.clone()
    }

    /// Keeps the identity valid for as long as it is polled. It ends only when that is no longer possible.
    pub(crate) async fn keep(self) -> IdentityError {
        match self.keeper {
            Some(keeper) => match keeper.keep(&self.access).await {
                Ok(never) => match never {},
                Err(error) => error,
            },
            None => std::future::pending().await,
        }
    }
}

/// No value has this type.
enum Never {}

impl Keeper {
    async fn keep(mut self, access: &ApiAccess) -> Result<Never, IdentityError> {
        let client = access
            .client(&tower::layer::util::Identity::new())
            .map_err(|error| IdentityError::Credentials(self.sources.kubeconfig.clone(), Box::new(error)))?;
        loop {
            let now = Timestamp::now();
            match decide(&Seen::Own(self.term), self.sources.bootstrap.is_some(), now) {
                IdentityDecision::Wait(then) => sleep(until(then, now).min(LONGEST_SLEEP)).await,
                IdentityDecision::Rotate { ends } => {
                    match timeout(until(ends, now).min(LONGEST_ATTEMPT), self.rotate(client.clone())).await {
                        Ok(Ok(pair)) => self.change_over(&pair),
                        Ok(Err(error)) => {
                            let pause = pause(ends, now);
                            warn!(ends = %ends, error = chain(&error), "cannot rotate the certificate; trying again in {pause:#}");
                            // Another key makes another request, instead of one more look at the same refusal.
                            if matches!(error, ObtainError::Refused { .. })
                                && let Err(error) = self.store.forget_pending()
                            {
                                warn!(error = chain(&error), "cannot forget a private key");
                            }
                            sleep(pause.unsigned_abs().min(until(ends, now))).await;
                        }
                        // Has it ended meanwhile? Decide again.
                        Err(_) => {}
                    }
                }
                IdentityDecision::Bootstrap(reason) => {
                    let pair = bootstrap(&self.sources, &self.store, &self.node, reason).await?;
                    self.change_over(&pair);
                }
                IdentityDecision::Refuse(reason) => {
                    return Err(IdentityError::Kubeconfig { path: self.sources.kubeconfig, reason });
                }
                // Not for a certificate of our own.
                IdentityDecision::Use => std::future::pending().await,
            }
        }
    }

    async fn rotate(&self, client: Client) -> Result<Pair, ObtainError> {
        // A crash right after the last rotation leaves the key of the certificate in use.
        if let Ok((current, _)) = self.store.current()
            && current.facts.fit(&self.store.pending_key()?)
        {
            self.store.forget_pending()?;
        }
        info!(ends = %self.term.ends, "the certificate is due: asking for its successor");
        let pair = obtain(client, Asker::Node, &self.store, &self.node).await?;
        self.store.set_current(&pair)?;
        self.store.forget_pending()?;
        Ok(pair)
    }

    fn change_over(&mut self, pair: &Pair) {
        self.term = Term { starts: Timestamp::now(), ends: pair.facts.ends, jitter: pair.facts.number };
        self.changer.change(with_pair(self.config.clone(), pair));
        info!(ends = %self.term.ends, rotates = %self.term.rotates(), "using the new certificate");
    }
}

/// Gets a certificate with the bootstrap credentials and writes the kubeconfig that uses it.
///
/// The pending key goes last: whatever happens before, the next agent finds its request and certificate again.
async fn bootstrap(
    sources: &CredentialSources,
    store: &Store,
    node: &NodeName,
    reason: RotationReason,
) -> Result<Pair, IdentityError> {
    info!(kubeconfig = %sources.kubeconfig.display(), %reason, "getting a certificate by TLS bootstrap");
    let Some(path) = &sources.bootstrap else {
        return Err(IdentityError::Kubeconfig { path: sources.kubeconfig.clone(), reason });
    };
    let unusable = |error| IdentityError::Bootstrap(path.clone(), Box::new(error));
    let (kubeconfig, config) = load(path).await.map_err(unusable)?;
    let own = after_bootstrap(&kubeconfig, &store.current_path())
        .ok_or_else(|| unusable(KubeconfigError::CurrentContextNotSet))?;
    let client = Client::try_from(config)
        .map_err(|error| IdentityError::Credentials(path.clone(), Box::new(error)))?;
    let pair = obtain(client, Asker::Bootstrap, store, node)
        .await
        .map_err(|source| IdentityError::Obtain { node: node.clone(), path: path.to_owned(), source })?;
    store.set_current(&pair)?;
    let target = &sources.kubeconfig;
    let text = serde_saphyr::to_string(&own).map_err(|error| IdentityError::Render(target.clone(), error))?;
    write_secret(target, text.as_bytes()).map_err(|error| IdentityError::Write(target.clone(), error))?;
    store.forget_pending()?;
    info!(kubeconfig = %target.display(), ends = %pair.facts.ends, "got a certificate and wrote the kubeconfig");
    Ok(pair)
}

fn until(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}
