//! The certificate store: the agent's keys and certificates on disk.
//!
//! ```text
//! pki/client-current.pem    the certificate in use for the API server, with its key
//! pki/client-pending.key    the key of the certificate signing request that is under way
//! pki/server-current.pem    the same for the kubelet API
//! pki/server-pending.key
//! ```
//!
//! The name of a request follows from its key. So a restarted agent finds its request again by the pending key.

use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rcgen::KeyPair;
use tracing::warn;

use super::certificate::{CertificateError, CertifiedKey};
use crate::error_chain::chain;
use crate::fs::absent_is_none;
use crate::fs::file::{self, FileError};
use crate::fs::secret_file::write_secret;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot use {}", .0.display())]
    Content(PathBuf, #[source] CertificateError),
    #[error("cannot make a private key")]
    NoKey(#[source] rcgen::Error),
}

/// The files of one of the agent's certificates.
#[derive(Debug, Clone)]
pub(super) struct CertificateStore {
    directory: PathBuf,
    name: &'static str,
}

impl CertificateStore {
    /// The certificate for the API server, in a directory that the first write creates.
    pub(super) fn client(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), name: "client" }
    }

    /// The certificate for the kubelet API.
    pub(super) fn server(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), name: "server" }
    }

    /// The file with the certificate in use and its key.
    pub(super) fn current_path(&self) -> PathBuf {
        self.directory.join(format!("{}-current.pem", self.name))
    }

    fn pending_path(&self) -> PathBuf {
        self.directory.join(format!("{}-pending.key", self.name))
    }

    /// The certificate in use, and when the agent wrote it.
    pub(super) fn current(&self) -> Result<(CertifiedKey, Timestamp), StoreError> {
        let path = self.current_path();
        let read = || -> io::Result<(String, Timestamp)> {
            let written = std::fs::metadata(&path)?.modified()?;
            let written = Timestamp::try_from(written).map_err(io::Error::other)?;
            Ok((std::fs::read_to_string(&path)?, written))
        };
        let (text, written) = read().map_err(|source| FileError::new("read", &path, source))?;
        let certified = CertifiedKey::from_pem(&text).map_err(|error| StoreError::Content(path, error))?;
        Ok((certified, written))
    }

    pub(super) fn set_current(&self, certified: &CertifiedKey) -> Result<(), StoreError> {
        Ok(write_secret(&self.current_path(), certified.to_pem().as_bytes())?)
    }

    /// The key for a request: that of the request under way, or a new one.
    pub(super) fn pending_key(&self) -> Result<KeyPair, StoreError> {
        let path = self.pending_path();
        let kept = absent_is_none(std::fs::read_to_string(&path));
        match kept
            .map_err(|source| FileError::new("read", &path, source))?
            .map(|text| KeyPair::from_pem(&text))
        {
            Some(Ok(key)) => return Ok(key),
            Some(Err(error)) => {
                warn!(path = %path.display(), error = chain(&error), "a private key is broken; making another");
            }
            None => {}
        }
        let key = KeyPair::generate().map_err(StoreError::NoKey)?;
        // Written before the request is sent: a certificate without its key is useless.
        write_secret(&path, key.serialize_pem().as_bytes())?;
        Ok(key)
    }

    /// Has the next request use another key.
    pub(super) fn forget_pending(&self) -> Result<(), StoreError> {
        Ok(file::remove(&self.pending_path())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::certificate::tests::signed;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_pending_key_survives_until_it_is_forgotten() {
        let dir = crate::testing::dir();
        let store = CertificateStore::client(&dir.path().join("pki"));
        let key = store.pending_key().unwrap();
        assert_eq!(mode(&store.pending_path()), 0o600);
        assert_eq!(mode(&store.directory), 0o700);
        assert_eq!(store.pending_key().unwrap().public_key_raw(), key.public_key_raw());
        store.forget_pending().unwrap();
        store.forget_pending().unwrap();
        assert_ne!(store.pending_key().unwrap().public_key_raw(), key.public_key_raw());
    }

    #[test]
    fn a_broken_pending_key_is_replaced() {
        let dir = crate::testing::dir();
        let store = CertificateStore::client(dir.path());
        std::fs::write(store.pending_path(), "half a k").unwrap();
        let key = store.pending_key().unwrap();
        assert_eq!(store.pending_key().unwrap().public_key_raw(), key.public_key_raw());
        assert_eq!(mode(&store.pending_path()), 0o600);
    }

    #[test]
    fn the_current_certificate_comes_back_with_its_key() {
        let dir = crate::testing::dir();
        let store = CertificateStore::client(dir.path());
        let absent = store.current().unwrap_err();
        assert!(
            matches!(&absent, StoreError::File(_)) && absent.to_string().starts_with("cannot read"),
            "{absent}"
        );
        // A crash left a temporary file that every user can read.
        std::fs::write(dir.path().join("client-current.pem.tmp"), "old").unwrap();
        let key = KeyPair::generate().unwrap();
        let certified = CertifiedKey::new(&signed("a", &key), &key).unwrap();
        store.set_current(&certified).unwrap();
        assert_eq!(store.current().unwrap().0, certified);
        assert_eq!(mode(&store.current_path()), 0o600);
        std::fs::write(store.current_path(), "{").unwrap();
        assert!(matches!(store.current(), Err(StoreError::Content(..))));
    }
}
