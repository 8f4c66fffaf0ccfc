//! Certificates: the facts that the agent needs, and a certificate with its key.

use jiff::Timestamp;
use rcgen::KeyPair;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use x509_parser::parse_x509_certificate;

use super::alt_names::AltNames;

/// The first line of the key in a file with both.
const KEY_BEGINS: &str = "-----BEGIN PRIVATE KEY-----";

#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("there is no certificate in it")]
    NoCertificate(#[source] rustls::pki_types::pem::Error),
    #[error("there is no private key in it")]
    NoKey,
    #[error("its certificate is broken")]
    Broken(#[source] x509_parser::nom::Err<x509_parser::error::X509Error>),
    #[error("its certificate has an impossible date")]
    Date(#[source] jiff::Error),
    #[error("its private key is broken")]
    Key(#[source] rcgen::Error),
    #[error("its certificate and its private key do not belong together")]
    Mismatch,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateFacts {
    pub(super) ends: Timestamp,
    /// The user that its owner is to the API server: the common name.
    pub(super) user: String,
    /// The first bytes of its digest.
    pub(super) number: u32,
    /// The names and addresses of the server that it is for.
    pub(super) alt_names: AltNames,
    public_key: Vec<u8>,
}

impl CertificateFacts {
    /// Parses the first certificate of a PEM text.
    pub(super) fn read(pem: &[u8]) -> Result<Self, CertificateError> {
        let der = CertificateDer::from_pem_slice(pem).map_err(CertificateError::NoCertificate)?;
        let (_, certificate) = parse_x509_certificate(&der).map_err(CertificateError::Broken)?;
        let ends = Timestamp::from_second(certificate.validity().not_after.timestamp());
        let user = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let [a, b, c, d, ..]: [u8; 32] = Sha256::digest(&der).into();
        Ok(Self {
            ends: ends.map_err(CertificateError::Date)?,
            user: user.unwrap_or_default().to_owned(),
            number: u32::from_be_bytes([a, b, c, d]),
            alt_names: AltNames::of_certificate(&certificate),
            public_key: certificate.public_key().subject_public_key.data.to_vec(),
        })
    }

    pub(super) fn has_key(&self, key: &KeyPair) -> bool {
        self.public_key == key.public_key_raw()
    }
}

/// A certificate and its private key, which belong together.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CertifiedKey {
    pub(super) facts: CertificateFacts,
    /// With the intermediate certificates.
    pub(super) certificate: String,
    pub(super) key: String,
}

impl CertifiedKey {
    pub(super) fn new(certificate: &str, key: &KeyPair) -> Result<Self, CertificateError> {
        let facts = CertificateFacts::read(certificate.as_bytes())?;
        if !facts.has_key(key) {
            return Err(CertificateError::Mismatch);
        }
        let mut certificate = certificate.to_owned();
        if !certificate.ends_with('\n') {
            certificate.push('\n');
        }
        Ok(Self { facts, certificate, key: key.serialize_pem() })
    }

    /// Parses what [`Self::to_pem`] wrote.
    pub(super) fn from_pem(text: &str) -> Result<Self, CertificateError> {
        let (certificate, key) =
            text.find(KEY_BEGINS).map(|begin| text.split_at(begin)).ok_or(CertificateError::NoKey)?;
        Self::new(certificate, &KeyPair::from_pem(key).map_err(CertificateError::Key)?)
    }

    /// Both in one text, as the kubelet keeps them: one file can be replaced atomically, two files cannot.
    pub(super) fn to_pem(&self) -> String {
        format!("{}{}", self.certificate, self.key)
    }
}

impl std::fmt::Debug for CertifiedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertifiedKey").field("facts", &self.facts).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType};

    pub(crate) fn signed(user: &str, key: &KeyPair) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        params.self_signed(key).unwrap().pem()
    }

    #[test]
    fn a_certificate_with_its_key_is_parsed_as_it_was_written() {
        let key = KeyPair::generate().unwrap();
        let certified = CertifiedKey::new(&signed("system:node:a", &key), &key).unwrap();
        assert_eq!(certified.facts.user, "system:node:a");
        assert_eq!(CertifiedKey::from_pem(&certified.to_pem()).unwrap(), certified);
        assert!(!format!("{certified:?}").contains("BEGIN"), "no key in a log");
    }

    #[test]
    fn a_certificate_and_a_key_that_do_not_belong_together_are_refused() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let certificate = signed("a", &one);
        assert!(matches!(CertifiedKey::new(&certificate, &other), Err(CertificateError::Mismatch)));
        let text = format!("{certificate}{}", other.serialize_pem());
        assert!(matches!(CertifiedKey::from_pem(&text), Err(CertificateError::Mismatch)));
    }

    #[test]
    fn each_kind_of_broken_file_has_its_error() {
        let key = KeyPair::generate().unwrap();
        let certificate = signed("a", &key);
        assert!(matches!(CertifiedKey::from_pem(""), Err(CertificateError::NoKey)));
        assert!(matches!(CertifiedKey::from_pem(&certificate), Err(CertificateError::NoKey)));
        let only_key = CertifiedKey::from_pem(&key.serialize_pem());
        assert!(matches!(only_key, Err(CertificateError::NoCertificate(_))));
        let half_a_key = CertifiedKey::from_pem(&format!("{certificate}{KEY_BEGINS}"));
        assert!(matches!(half_a_key, Err(CertificateError::Key(_))));
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(CertificateFacts::read(broken.as_bytes()), Err(CertificateError::Broken(_))));
    }
}
