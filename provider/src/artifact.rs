//! A file of this machine that Macs get: a program or an archive. It is known by its hash, and never read into memory as a whole.

use std::fmt::{self, Write};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use sha2::{Digest, Sha256};

/// A SHA-256 hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Sha256Hash(String);

impl Sha256Hash {
    /// The hash of some bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::hex(&Sha256::digest(bytes))
    }

    fn hex(bytes: &[u8]) -> Self {
        let mut text = String::with_capacity(2 * bytes.len());
        for byte in bytes {
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
    }

    /// The hash in hexadecimal digits.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The first digits, for people.
    pub(crate) fn short(&self) -> &str {
        &self.0[..12]
    }
}

impl fmt::Display for Sha256Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A file that Macs get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Artifact {
    // Where the file is on this machine makes no difference to a Mac.
    #[serde(skip)]
    path: PathBuf,
    sha256: Sha256Hash,
    size: u64,
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", path.display())]
pub(crate) struct ArtifactError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Artifact {
    /// Looks at a file.
    pub(crate) fn read(path: &Path) -> Result<Self, ArtifactError> {
        let (sha256, size) = hash(path).map_err(|source| ArtifactError { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), sha256, size })
    }

    /// Where it is on this machine.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The hash of its contents.
    pub(crate) fn sha256(&self) -> &Sha256Hash {
        &self.sha256
    }

    /// How many bytes it has.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }
}

fn hash(path: &Path) -> io::Result<(Sha256Hash, u64)> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 64 << 10];
    let mut size = 0;
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok((Sha256Hash::hex(&hasher.finalize()), size));
        }
        hasher.update(&chunk[..read]);
        size += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_is_its_contents() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::write(&one, "abc").unwrap();
        std::fs::write(&two, "abc").unwrap();
        let artifact = Artifact::read(&one).unwrap();
        assert_eq!(artifact.size(), 3);
        assert_eq!(
            artifact.sha256().as_str(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let json = |artifact: &Artifact| serde_json::to_string(artifact).unwrap();
        assert_eq!(json(&artifact), json(&Artifact::read(&two).unwrap()));
        assert!(Artifact::read(&dir.path().join("none")).is_err());
    }
}
