//! The certificates of a cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pair: Pair,
}

/// A certificate and its private key, both as PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Authority {
    /// Makes an authority.
    pub fn new(name: &str) -> Result<Self> {
        let make = || -> Result<Self, rcgen::Error> {
            let key = KeyPair::generate()?;
            let mut params = subject(name, None);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
            let pair = Pair { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() };
            Ok(Self { issuer: Issuer::new(params, key), pair })
        };
        make().with_context(|| format!("cannot make authority {name}"))
    }

    /// The authority's own certificate and key.
    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// Makes a client certificate for a user, who may be in a group.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Pair> {
        self.issue(subject(user, group), ExtendedKeyUsagePurpose::ClientAuth)
            .with_context(|| format!("cannot make a certificate for {user}"))
    }

    /// The same with a certificate that ends at a time.
    pub fn client_until(&self, user: &str, group: Option<&str>, ends: Timestamp) -> Result<Pair> {
        let mut params = subject(user, group);
        params.not_after =
            date_time_ymd(1970, 1, 1) + ends.duration_since(Timestamp::UNIX_EPOCH).unsigned_abs();
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
            .with_context(|| format!("cannot make a certificate for {user}"))
    }

    /// Makes a server certificate for host names and addresses.
    pub fn server(&self, names: &[&str]) -> Result<Pair> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        CertificateParams::new(names.clone())
            .and_then(|params| self.issue(params, ExtendedKeyUsagePurpose::ServerAuth))
            .with_context(|| format!("cannot make a certificate for {}", names.join(", ")))
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Pair, rcgen::Error> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

impl Pair {
    /// Writes `<name>.crt` and `<name>.key`, and returns their paths.
    pub fn write(&self, directory: &Path, name: &str) -> Result<(PathBuf, PathBuf)> {
        Ok((
            write(directory, &format!("{name}.crt"), &self.certificate)?,
            write(directory, &format!("{name}.key"), &self.key)?,
        ))
    }
}

/// Writes the key pair that service account tokens are signed with: `<name>.key` and `<name>.pub`.
pub fn write_signing_key(directory: &Path, name: &str) -> Result<(PathBuf, PathBuf)> {
    let key = KeyPair::generate().context("cannot make a key")?;
    Ok((
        write(directory, &format!("{name}.key"), &key.serialize_pem())?,
        write(directory, &format!("{name}.pub"), &key.public_key_pem())?,
    ))
}

fn subject(name: &str, organization: Option<&str>) -> CertificateParams {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    if let Some(organization) = organization {
        subject.push(DnType::OrganizationName, organization);
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    params
}

fn write(directory: &Path, name: &str, content: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
