//! Keys: the private key that opens a Mac, and the host key by which the Mac is known.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::{HashAlg, PrivateKey, PublicKey};

/// The object identifier of RSA keys in PKCS #8.
const RSA_ENCRYPTION: &str = "1.2.840.113549.1.1.1";

/// The SHA-256 fingerprint of a host key, as `ssh-keygen -l` prints it: `SHA256:…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint(String);

/// A text that is no fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no fingerprint of a host key; it is SHA256: and 43 letters, as `ssh-keygen -l` prints it")]
pub(crate) struct BadFingerprint(String);

impl Fingerprint {
    pub(super) fn of(key: &PublicKey) -> Self {
        Self(key.fingerprint(HashAlg::Sha256).to_string())
    }
}

impl FromStr for Fingerprint {
    type Err = BadFingerprint;

    fn from_str(text: &str) -> Result<Self, BadFingerprint> {
        let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/');
        match text.strip_prefix("SHA256:") {
            Some(hash) if hash.len() == 43 && hash.chars().all(is_base64) => Ok(Self(text.to_owned())),
            _ => Err(BadFingerprint(text.to_owned())),
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A private key.
#[derive(Clone)]
pub(crate) struct SshKey(Arc<PrivateKey>);

/// A private key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SshKeyError {
    /// The file cannot be read.
    #[error("cannot read the SSH key {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be written as text.
    #[error("a new SSH key cannot be written")]
    Write(#[source] Box<russh::keys::ssh_key::Error>),
    /// It is an RSA key.
    #[error(
        "the SSH key is an RSA key, which cannot be used; make another with `ssh-keygen -t ed25519`, and add its public key to the Mac's \
         ~/.ssh/authorized_keys"
    )]
    Rsa,
    /// It has a passphrase, which no user is there to type.
    #[error("the SSH key has a passphrase; name a key without one, or remove it with `ssh-keygen -p`")]
    HasPassphrase,
    /// It is no private key.
    #[error("the SSH key is no private key of OpenSSH")]
    Parse(#[source] Box<russh::keys::Error>),
}

impl From<russh::keys::Error> for SshKeyError {
    fn from(error: russh::keys::Error) -> Self {
        use russh::keys::Error;
        match error {
            Error::KeyIsEncrypted => Self::HasPassphrase,
            Error::UnsupportedKeyType { key_type_string, .. } if key_type_string == "RSA" => Self::Rsa,
            Error::UnknownAlgorithm(algorithm) if algorithm.to_string() == RSA_ENCRYPTION => Self::Rsa,
            other => Self::Parse(Box::new(other)),
        }
    }
}

impl SshKey {
    /// Reads a private key from a file.
    pub(crate) fn read(path: &Path) -> Result<Self, SshKeyError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| SshKeyError::Read { path: path.to_owned(), source })?;
        text.parse()
    }

    /// Makes a new key. The generator of the thread is a cryptographic one.
    pub(crate) fn generate() -> Self {
        Self(Arc::new(Ed25519Keypair::from_seed(&rand::random()).into()))
    }

    /// The private key, as OpenSSH keeps it in a file.
    pub(crate) fn private_text(&self) -> Result<String, SshKeyError> {
        let text = self.0.to_openssh(LineEnding::LF).map_err(|error| SshKeyError::Write(Box::new(error)))?;
        Ok(text.to_string())
    }

    /// The public key, as `authorized_keys` has it.
    pub(crate) fn authorized_key(&self) -> String {
        self.0.public_key().to_openssh().unwrap_or_default()
    }

    pub(super) fn private(&self) -> Arc<PrivateKey> {
        Arc::clone(&self.0)
    }
}

impl FromStr for SshKey {
    type Err = SshKeyError;

    fn from_str(text: &str) -> Result<Self, SshKeyError> {
        let key = russh::keys::decode_secret_key(text, None)?;
        // It can be read in OpenSSH's own format, but nothing can be signed with it.
        if key.algorithm().is_rsa() {
            return Err(SshKeyError::Rsa);
        }
        Ok(Self(Arc::new(key)))
    }
}

impl fmt::Debug for SshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SshKey({})", self.authorized_key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_what_ssh_keygen_prints() {
        let text = format!("SHA256:{}", "a".repeat(43));
        assert_eq!(text.parse::<Fingerprint>().unwrap().to_string(), text);
        for text in ["", "SHA256:abc", "MD5:00", &format!("SHA256:{}=", "a".repeat(42))] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
    }

    /// A new key of OpenSSH's program.
    fn made_by_ssh_keygen(arguments: &[&str]) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let mut ssh_keygen = std::process::Command::new("ssh-keygen");
        let made = ssh_keygen.args(["-q", "-f"]).arg(&path).args(arguments).status().unwrap();
        assert!(made.success(), "{arguments:?}");
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_key_that_cannot_be_used_is_refused_with_the_reason() {
        let [rsa, of_pem, of_pkcs8] = [&[][..], &["-m", "PEM"], &["-m", "PKCS8"]].map(|format: &[&str]| {
            made_by_ssh_keygen(&[&["-t", "rsa", "-b", "2048", "-N", ""], format].concat())
        });
        for key in [rsa, of_pem, of_pkcs8] {
            let error = key.parse::<SshKey>().unwrap_err();
            assert!(matches!(error, SshKeyError::Rsa), "{error:?}");
        }
        let locked = made_by_ssh_keygen(&["-t", "ed25519", "-N", "passphrase"]);
        let error = locked.parse::<SshKey>().unwrap_err();
        assert!(matches!(error, SshKeyError::HasPassphrase), "{error:?}");
        made_by_ssh_keygen(&["-t", "ed25519", "-N", ""]).parse::<SshKey>().unwrap();
    }

    #[test]
    fn a_new_key_can_be_kept_as_text() {
        let key = SshKey::generate();
        let read: SshKey = key.private_text().unwrap().parse().unwrap();
        assert_eq!(read.authorized_key(), key.authorized_key());
        assert_ne!(SshKey::generate().authorized_key(), key.authorized_key());
    }

    #[test]
    fn a_text_that_is_no_key_is_refused_without_being_shown() {
        let error = "canary".parse::<SshKey>().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
    }
}
