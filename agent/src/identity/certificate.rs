//! What the agent needs to know of a certificate, and certificates that are kept with their key.

use jiff::Timestamp;
use rcgen::KeyPair;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use x509_parser::parse_x509_certificate;

/// Where the key begins in a file with both.
const KEY_BEGINS: &str = "-----BEGIN PRIVATE KEY-----";

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    /// There is no certificate in it.
    #[error("there is no certificate in it")]
    NoCertificate(#[source] rustls::pki_types::pem::Error),
    /// There is no private key in it.
    #[error("there is no private key in it")]
    NoKey,
    /// The certificate is not one.
    #[error("its certificate is broken")]
    Broken(#[source] x509_parser::nom::Err<x509_parser::error::X509Error>),
    /// A date that no clock shows.
    #[error("its certificate has an impossible date")]
    Date(#[source] jiff::Error),
    /// The private key cannot be used.
    #[error("its private key is broken")]
    Key(#[source] rcgen::Error),
    /// The key is another certificate's.
    #[error("its certificate and its private key do not belong together")]
    Mismatch,
}

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateFacts {
    /// When it ends.
    pub(crate) ends: Timestamp,
    /// Whom it makes its owner.
    pub(crate) user: String,
    /// A number that only this certificate has, more or less.
    pub(crate) number: u32,
    public_key: Vec<u8>,
}

impl CertificateFacts {
    /// Reads the first certificate of a PEM text.
    pub(crate) fn read(pem: &[u8]) -> Result<Self, CertificateError> {
        let der = CertificateDer::from_pem_slice(pem).map_err(CertificateError::NoCertificate)?;
        let (_, certificate) = parse_x509_certificate(&der).map_err(CertificateError::Broken)?;
        let ends = Timestamp::from_second(certificate.validity().not_after.timestamp());
        let user = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let [a, b, c, d, ..]: [u8; 32] = Sha256::digest(&der).into();
        Ok(Self {
            ends: ends.map_err(CertificateError::Date)?,
            user: user.unwrap_or_default().to_owned(),
            number: u32::from_be_bytes([a, b, c, d]),
            public_key: certificate.public_key().subject_public_key.data.to_vec(),
        })
    }

    /// Whether the certificate was made for a key.
    pub(crate) fn fit(&self, key: &KeyPair) -> bool {
        self.public_key == key.public_key_raw()
    }
}

/// A certificate and its key, known to belong together.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    /// What the certificate says.
    pub(crate) facts: CertificateFacts,
    certificate: String,
    key: String,
}

impl Pair {
    /// Puts a certificate and a key together.
    pub(crate) fn new(certificate: &str, key: &KeyPair) -> Result<Self, CertificateError> {
        let facts = CertificateFacts::read(certificate.as_bytes())?;
        if !facts.fit(key) {
            return Err(CertificateError::Mismatch);
        }
        let mut certificate = certificate.to_owned();
        if !certificate.ends_with('\n') {
            certificate.push('\n');
        }
        Ok(Self { facts, certificate, key: key.serialize_pem() })
    }

    /// Reads what [`Self::to_pem`] wrote.
    pub(crate) fn from_pem(text: &str) -> Result<Self, CertificateError> {
        let (certificate, key) =
            text.find(KEY_BEGINS).map(|begin| text.split_at(begin)).ok_or(CertificateError::NoKey)?;
        Self::new(certificate, &KeyPair::from_pem(key).map_err(CertificateError::Key)?)
    }

    /// Both in one text, as a kubelet keeps them: one file is replaced at once, two never are.
    pub(crate) fn to_pem(&self) -> String {
        format!("{}{}", self.certificate, self.key)
    }

    /// The certificate, with those that vouch for it.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The private key.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("facts", &self.facts).finish_non_exhaustive()
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
    fn a_pair_survives_its_file() {
        let key = KeyPair::generate().unwrap();
        let pair = Pair::new(&signed("system:node:a", &key), &key).unwrap();
        assert_eq!(pair.facts.user, "system:node:a");
        assert_eq!(Pair::from_pem(&pair.to_pem()).unwrap(), pair);
        assert!(!format!("{pair:?}").contains("BEGIN"), "no key in a log");
    }

    #[test]
    fn what_does_not_belong_together_is_told() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let certificate = signed("a", &one);
        assert!(matches!(Pair::new(&certificate, &other), Err(CertificateError::Mismatch)));
        let text = format!("{certificate}{}", other.serialize_pem());
        assert!(matches!(Pair::from_pem(&text), Err(CertificateError::Mismatch)));
    }

    #[test]
    fn broken_files_are_told_apart() {
        let key = KeyPair::generate().unwrap();
        let certificate = signed("a", &key);
        assert!(matches!(Pair::from_pem(""), Err(CertificateError::NoKey)));
        assert!(matches!(Pair::from_pem(&certificate), Err(CertificateError::NoKey)));
        assert!(matches!(Pair::from_pem(&key.serialize_pem()), Err(CertificateError::NoCertificate(_))));
        assert!(matches!(
            Pair::from_pem(&format!("{certificate}{KEY_BEGINS}")),
            Err(CertificateError::Key(_))
        ));
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(CertificateFacts::read(broken.as_bytes()), Err(CertificateError::Broken(_))));
    }
}
