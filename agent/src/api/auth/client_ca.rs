//! Client certificates: those of the cluster's client authority say who their owner is.
//!
//! TLS proves only that the client has the certificate's key. The certificate itself is verified with each request, so that a connection
//! does not outlive its certificate, and a client with a wrong certificate gets an answer in words.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
};
use tracing::{info, warn};

use super::user::User;
use crate::error_chain::chain;

/// The certificates of a client, its own first.
pub(crate) type PeerCertificates = Vec<CertificateDer<'static>>;

/// Why a client authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientCaError {
    #[error("cannot read --client-ca-file {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    #[error("--client-ca-file {} has no certificate in it that can be used", .0.display())]
    NoCertificate(PathBuf),
}

/// The authority of the cluster's clients.
#[derive(Debug)]
pub(crate) struct ClientCa {
    /// The file that the user named; the agent reads it again when it has changed.
    file: Option<PathBuf>,
    current: Mutex<Trusted>,
}

#[derive(Debug, Default)]
struct Trusted {
    content: Vec<u8>,
    /// `None` when no client certificate is trusted.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl ClientCa {
    /// The authority in `--client-ca-file`.
    pub(crate) fn from_file(path: &Path) -> Result<Self, ClientCaError> {
        let current = read(path)?;
        Ok(Self { file: Some(path.to_owned()), current: Mutex::new(current) })
    }

    /// The authority that signed the API server's certificate, from the kubeconfig. In most clusters it signs clients' certificates, too.
    pub(crate) fn of_cluster(authorities: &[Vec<u8>]) -> Self {
        let certificates = authorities.iter().map(|der| CertificateDer::from(der.clone()));
        let verifier = verifier(certificates);
        if verifier.is_none() {
            warn!(
                "the kubeconfig has no authority and --client-ca-file is absent: no client certificate is accepted, not even the API server's"
            );
        }
        Self { file: None, current: Mutex::new(Trusted { content: Vec::new(), verifier }) }
    }

    /// Reads the file again. An unusable file leaves the authority as it is.
    pub(crate) fn reload(&self) {
        let Some(path) = &self.file else { return };
        match read(path) {
            Ok(found) => {
                let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
                if current.content != found.content {
                    info!(path = %path.display(), "the clients' authority has changed");
                    *current = found;
                }
            }
            Err(error) => warn!(error = chain(&error), "the clients' authority stays as it was"),
        }
    }

    /// The owner of a certificate that the authority signed for clients, and that is valid now.
    pub(super) fn user(&self, certificates: &PeerCertificates) -> Option<User> {
        let (own, intermediates) = certificates.split_first()?;
        let verifier = self.current.lock().unwrap_or_else(PoisonError::into_inner).verifier.clone()?;
        verifier.verify_client_cert(own, intermediates, UnixTime::now()).ok()?;
        User::of_certificate(own)
    }
}

fn read(path: &Path) -> Result<Trusted, ClientCaError> {
    let content = std::fs::read(path).map_err(|error| ClientCaError::Read(path.to_owned(), error))?;
    let certificates = CertificateDer::pem_slice_iter(&content).filter_map(Result::ok);
    let verifier = verifier(certificates).ok_or_else(|| ClientCaError::NoCertificate(path.to_owned()))?;
    Ok(Trusted { content, verifier: Some(verifier) })
}

fn verifier(
    certificates: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Option<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()))
        .build()
        .ok()
}

/// Asks clients for a certificate in the TLS handshake, and takes any one whose key the client has.
#[derive(Debug)]
pub(in crate::api) struct AskForCertificate(Arc<CryptoProvider>);

impl AskForCertificate {
    pub(in crate::api) fn new(provider: Arc<CryptoProvider>) -> Self {
        Self(provider)
    }
}

impl ClientCertVerifier for AskForCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Without hints, every client sends the certificate that it has.
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        date_time_ymd,
    };

    struct Authority {
        pem: String,
        issuer: Issuer<'static, KeyPair>,
    }

    fn authority() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    fn client(authority: &Authority, change: impl FnOnce(&mut CertificateParams)) -> PeerCertificates {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "admin");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        vec![params.signed_by(&key, &authority.issuer).unwrap().der().clone()]
    }

    #[test]
    fn only_a_valid_client_certificate_of_the_authority_names_a_user() {
        let (ours, theirs) = (authority(), authority());
        let der = CertificateDer::from_pem_slice(ours.pem.as_bytes()).unwrap();
        let ca = ClientCa::of_cluster(&[der.to_vec()]);
        let user = |certificates: &PeerCertificates| ca.user(certificates).map(|user| user.name);
        assert_eq!(user(&client(&ours, |_| {})).as_deref(), Some("admin"));
        for (what, certificates) in [
            ("of another authority", client(&theirs, |_| {})),
            (
                "of a server",
                client(&ours, |params| {
                    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
                }),
            ),
            ("expired", client(&ours, |params| params.not_after = date_time_ymd(2020, 1, 1))),
            ("not valid yet", client(&ours, |params| params.not_before = date_time_ymd(4000, 1, 1))),
            ("absent", Vec::new()),
            ("broken", vec![CertificateDer::from(vec![0; 8])]),
        ] {
            assert_eq!(user(&certificates), None, "{what}");
        }
        assert_eq!(ClientCa::of_cluster(&[]).user(&client(&ours, |_| {})), None);
    }

    #[test]
    fn a_file_that_changes_is_read_again_and_an_unusable_one_changes_nothing() {
        let (old, new) = (authority(), authority());
        let dir = dir();
        let path = dir.path().join("ca.crt");
        assert!(matches!(ClientCa::from_file(&path), Err(ClientCaError::Read(..))));
        std::fs::write(&path, "no certificate").unwrap();
        assert!(matches!(ClientCa::from_file(&path), Err(ClientCaError::NoCertificate(_))));
        std::fs::write(&path, &old.pem).unwrap();
        let ca = ClientCa::from_file(&path).unwrap();
        let knows = |authority: &Authority| ca.user(&client(authority, |_| {})).is_some();
        assert_eq!((knows(&old), knows(&new)), (true, false));
        std::fs::write(&path, "").unwrap();
        ca.reload();
        assert_eq!((knows(&old), knows(&new)), (true, false));
        std::fs::write(&path, &new.pem).unwrap();
        ca.reload();
        assert_eq!((knows(&old), knows(&new)), (false, true));
    }
}
