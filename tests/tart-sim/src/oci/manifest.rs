//! The manifest of a remote image, and with it the image's digest.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::home::image::Image;

/// What a registry answers when asked for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The JSON text.
    pub(crate) text: String,
    /// `sha256:` and the hash of the text.
    pub(crate) digest: String,
}

impl Manifest {
    /// Describes the image in a folder. Whatever changes in the folder changes the digest.
    pub(crate) fn of(dir: &Path, image: &Image) -> io::Result<Self> {
        let mut config = Sha256::new();
        for file in ["image.json", "config.json", "labels.json"] {
            config.update(fs::read(dir.join(file)).unwrap_or_default());
        }
        let mut disk = Sha256::new();
        disk.update(image.disk_bytes().to_be_bytes());
        for tree in ["rootfs", "upper"] {
            hash_tree(&dir.join(tree), tree, &mut disk)?;
        }
        let layer = |kind: &str, digest: String, size: u64| json!({ "mediaType": format!("application/vnd.cirruslabs.tart.{kind}"), "digest": digest, "size": size });
        let config = digest(config);
        let text = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": 0 },
            "layers": [
                layer("config.v1", config.clone(), 0),
                layer("disk.v2", digest(disk), image.compressed_bytes()),
                layer("nvram.v1", digest(Sha256::new()), 0),
            ],
            "annotations": {
                "org.cirruslabs.tart.uncompressed-disk-size": image.disk_bytes().to_string(),
            },
        })
        .to_string();
        let mut hash = Sha256::new();
        hash.update(&text);
        Ok(Self { digest: digest(hash), text })
    }
}

/// Names, kinds, modes, sizes and times stand for the content: reading whole systems would take too long.
fn hash_tree(path: &Path, name: &str, hash: &mut Sha256) -> io::Result<()> {
    let metadata = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    hash.update(name);
    hash.update(metadata.mode().to_be_bytes());
    if metadata.is_dir() {
        let mut names: Vec<_> =
            fs::read_dir(path)?.map(|entry| entry.map(|e| e.file_name())).collect::<io::Result<_>>()?;
        names.sort();
        for entry in names {
            hash_tree(&path.join(&entry), &format!("{name}/{}", entry.to_string_lossy()), hash)?;
        }
    } else if metadata.is_symlink() {
        hash.update(fs::read_link(path)?.as_os_str().as_encoded_bytes());
    } else {
        hash.update(metadata.len().to_be_bytes());
        hash.update(metadata.mtime().to_be_bytes());
        hash.update(metadata.mtime_nsec().to_be_bytes());
    }
    Ok(())
}

fn digest(hash: Sha256) -> String {
    format!("sha256:{}", hex(&hash.finalize()))
}

/// Two digits per byte.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_the_folder_changes_the_digest_and_nothing_else_does() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let digest = || Manifest::of(dir.path(), &Image::default()).unwrap().digest;
        fs::write(dir.path().join("image.json"), "{}").unwrap();
        let first = digest();
        assert_eq!(first, digest());
        assert_eq!(first.len(), "sha256:".len() + 64);
        fs::write(dir.path().join("image.json"), "{ }").unwrap();
        let second = digest();
        fs::create_dir_all(dir.path().join("rootfs/bin")).unwrap();
        let third = digest();
        fs::write(dir.path().join("rootfs/bin/tool"), "1").unwrap();
        let digests = [first, second, third, digest()];
        let distinct: std::collections::HashSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), 4, "{digests:?}");
    }
}
