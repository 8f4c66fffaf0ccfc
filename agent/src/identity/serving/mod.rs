//! The certificate of the kubelet API. It is self-signed until the cluster has issued one; then the agent rotates that one, and requests
//! another when the Node's address changes. The server uses a new certificate from the next connection on.

mod decide;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use self::decide::{IssuedCertificate, ServingDecision, decide};
use super::alt_names::AltNames;
use super::certificate::CertifiedKey;
use super::csr::issuance::{IssuanceError, request_certificate};
use super::csr::{Requester, SERVING, WantedCertificate, user};
use super::decide::Lifetime;
use super::store::CertificateStore;
use super::{LOOK_INTERVAL, until};
use crate::backoff::SERVING_CERTIFICATE;
use crate::error_chain::chain;
use crate::names::NodeName;

/// Why there is no certificate at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServingError {
    #[error("cannot make a certificate for the kubelet API")]
    Make(#[from] rcgen::Error),
    #[error("cannot use the certificate for the kubelet API")]
    Use(#[from] rustls::Error),
}

/// The certificate in use, for TLS.
#[derive(Debug)]
pub(crate) struct ServingKey(watch::Receiver<Arc<sign::CertifiedKey>>);

impl ResolvesServerCert for ServingKey {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<sign::CertifiedKey>> {
        Some(self.0.borrow().clone())
    }
}

/// Keeps the kubelet API's certificate valid.
#[derive(Debug)]
pub(crate) struct ServingCertificate {
    node: NodeName,
    store: CertificateStore,
    issued: Option<Issued>,
    self_signed: Arc<sign::CertifiedKey>,
    in_use: watch::Sender<Arc<sign::CertifiedKey>>,
}

/// A certificate of the cluster, ready for use.
#[derive(Debug, Clone)]
struct Issued {
    certificate: IssuedCertificate,
    key: Arc<sign::CertifiedKey>,
}

impl ServingCertificate {
    /// Begins with the certificate in `pki`, or with a self-signed one.
    pub(crate) fn new(pki: &Path, node: NodeName) -> Result<(Self, ServingKey), ServingError> {
        let store = CertificateStore::server(pki);
        let self_signed = Arc::new(self_signed(&node)?);
        let issued = match store.current() {
            Ok((certified, starts)) => Issued::new(&certified, starts),
            // The first start, or a file that cannot be used: the cluster issues another one.
            Err(_) => None,
        };
        let (in_use, seen) = watch::channel(self_signed.clone());
        let serving = Self { node, store, issued, self_signed, in_use };
        serving.choose(Timestamp::now());
        Ok((serving, ServingKey(seen)))
    }

    /// Requests and rotates the certificate for as long as it is polled.
    pub(crate) async fn rotate(mut self, client: Client, mut addresses: watch::Receiver<Option<IpAddr>>) {
        let mut delays = SERVING_CERTIFICATE.delays();
        loop {
            let now = Timestamp::now();
            self.choose(now);
            let wanted = addresses.borrow_and_update().map(|address| AltNames::of_node(&self.node, address));
            let issued = self.issued.as_ref().map(|issued| &issued.certificate);
            match decide(issued, wanted.as_ref(), now) {
                ServingDecision::Wait(then) => {
                    let pause = then.map_or(LOOK_INTERVAL, |then| until(then, now).min(LOOK_INTERVAL));
                    self.wait(pause, &mut addresses).await;
                }
                ServingDecision::Request(alt_names) => {
                    let result = tokio::select! {
                        result = self.request(client.clone(), &alt_names) => result,
                        // An approver compares the names with the Node's addresses.
                        () = changed(&mut addresses) => continue,
                        // The request waits for as long as it takes. The certificate in use may expire meanwhile.
                        never = self.keep_choosing() => match never {},
                    };
                    match result {
                        Ok(issued) => {
                            let ends = issued.certificate.lifetime.ends;
                            info!(%ends, "the kubelet API has a certificate of the cluster");
                            self.issued = Some(issued);
                            delays.reset();
                        }
                        Err(error) => {
                            let pause = delays.next();
                            let problem = match &error {
                                IssuanceError::Refused { name, words } => {
                                    format!("the certificate signing request {name} {words}")
                                }
                                other => chain(other),
                            };
                            let seconds = pause.as_secs();
                            warn!(
                                problem,
                                "no new certificate for the kubelet API; asking again in {seconds} s"
                            );
                            self.wait(pause, &mut addresses).await;
                        }
                    }
                }
            }
        }
    }

    async fn wait(&self, pause: Duration, addresses: &mut watch::Receiver<Option<IpAddr>>) {
        tokio::select! {
            () = sleep(pause) => {}
            () = changed(addresses) => {}
        }
    }

    async fn keep_choosing(&self) -> Never {
        loop {
            sleep(LOOK_INTERVAL).await;
            self.choose(Timestamp::now());
        }
    }

    /// Uses the certificate of the cluster until it expires. One for another address is still better than none.
    fn choose(&self, now: Timestamp) {
        let issued = self.issued.as_ref().filter(|issued| now < issued.certificate.lifetime.ends);
        let chosen = issued.map_or(&self.self_signed, |issued| &issued.key);
        self.in_use.send_if_modified(|known| {
            let changes = !Arc::ptr_eq(known, chosen);
            *known = chosen.clone();
            changes
        });
    }

    /// Gets a certificate. The pending key is forgotten last: after a crash before that, the next agent finds the request again.
    async fn request(&self, client: Client, alt_names: &AltNames) -> Result<Issued, IssuanceError> {
        // After a crash at the end of the last request, the pending key is that of the certificate in use.
        if let Ok((current, _)) = self.store.current()
            && current.facts.has_key(&self.store.pending_key()?)
        {
            self.store.forget_pending()?;
        }
        let wanted = WantedCertificate {
            signer: SERVING,
            requester: Requester::Node,
            node: &self.node,
            alt_names: Some(alt_names),
        };
        let certified = match request_certificate(client, &wanted, &self.store).await {
            // Another key makes another request; the same one would find the same refusal.
            Err(refusal @ IssuanceError::Refused { .. }) => {
                self.store.forget_pending()?;
                return Err(refusal);
            }
            result => result?,
        };
        let issued = Issued::new(&certified, Timestamp::now())
            .filter(|issued| issued.certificate.alt_names == *alt_names)
            .ok_or_else(|| IssuanceError::OtherNames(alt_names.to_strings().join(", ")));
        if issued.is_ok() {
            self.store.set_current(&certified)?;
        }
        self.store.forget_pending()?;
        issued
    }
}

impl Issued {
    /// `None` for a certificate that TLS cannot use.
    fn new(certified: &CertifiedKey, starts: Timestamp) -> Option<Self> {
        let chain = CertificateDer::pem_slice_iter(certified.certificate.as_bytes());
        let chain: Vec<_> = chain.collect::<Result<_, _>>().ok()?;
        let key = PrivateKeyDer::from_pem_slice(certified.key.as_bytes()).ok()?;
        let facts = &certified.facts;
        let lifetime = Lifetime { starts, ends: facts.ends, jitter: facts.number };
        Some(Self {
            certificate: IssuedCertificate { lifetime, alt_names: facts.alt_names.clone() },
            key: Arc::new(sign::CertifiedKey::new(chain, any_supported_type(&key).ok()?)),
        })
    }
}

enum Never {}

/// Waits until the Node has another address.
async fn changed(addresses: &mut watch::Receiver<Option<IpAddr>>) {
    if addresses.changed().await.is_err() {
        // The agent is ending.
        std::future::pending::<()>().await;
    }
}

/// A certificate that no client can verify. Its key is in memory only.
fn self_signed(node: &NodeName) -> Result<sign::CertifiedKey, ServingError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([node.to_string()])?;
    params.distinguished_name.push(DnType::CommonName, user(node));
    let certificate = params.self_signed(&key)?;
    let private =
        PrivateKeyDer::try_from(key.serialize_der()).map_err(|why| rustls::Error::General(why.to_owned()))?;
    Ok(sign::CertifiedKey::new(vec![certificate.der().clone()], any_supported_type(&private)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;
    use rcgen::date_time_ymd;

    fn certified(ends: i32) -> CertifiedKey {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["mac-1".to_owned()]).unwrap();
        params.not_after = date_time_ymd(ends, 1, 1);
        CertifiedKey::new(&params.self_signed(&key).unwrap().pem(), &key).unwrap()
    }

    #[test]
    fn the_certificate_in_use_is_the_clusters_until_it_expires() {
        let dir = dir();
        let in_use = || {
            let (_serving, key) = ServingCertificate::new(dir.path(), "mac-1".parse().unwrap()).unwrap();
            key.0.borrow().cert[0].clone()
        };
        assert_ne!(in_use(), in_use(), "a self-signed certificate is made anew");
        let store = CertificateStore::server(dir.path());
        let valid = certified(4000);
        store.set_current(&valid).unwrap();
        let der = CertificateDer::from_pem_slice(valid.certificate.as_bytes()).unwrap();
        assert_eq!(in_use(), der);
        store.set_current(&certified(2020)).unwrap();
        assert_ne!(in_use(), in_use());
        std::fs::write(store.current_path(), "{").unwrap();
        assert_ne!(in_use(), in_use());
    }
}
