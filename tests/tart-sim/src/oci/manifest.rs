//! The manifest of a remote image, and with it the image's digest.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use fastrand::Rng;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::home::config::Config;
use crate::home::image::Image;

/// The sizes of the layers of a disk: the first one has all the content. tart itself cuts a disk into layers of 512 MiB.
const FIRST: u64 = 1 << 20;
const LARGE: u64 = 64 << 20;
const SMALL: u64 = 1 << 20;

/// The hashes of files that are all zeros, by size: each tart would hash them anew.
const ZEROS: [(u64, &str); 4] = [
    (LARGE, "3b6a07d0d404fab4e23b6d34bc6696a6a312dd92821332385e5af7c01c421351"),
    (SMALL, "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58"),
    (33_579_008, "82742856edb465f9c70ed82f4d7cc6507853328219b9f0426b7b18284433ef08"),
    (131_072, "fa43239bcee7b97ca62f007cc68487560a39e19f74f3dde7486db3f98df8e471"),
];

/// What a registry answers when asked for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The JSON text.
    pub(crate) text: String,
    /// `sha256:` and the hash of the text.
    pub(crate) digest: String,
    /// The content of the image's `config.json`.
    pub(crate) config: Vec<u8>,
    /// The content of the image's disk; zeros follow.
    pub(crate) disk_head: Vec<u8>,
}

impl Manifest {
    /// Describes the image in a folder. Whatever changes in the folder changes the digest.
    pub(crate) fn of(dir: &Path, image: &Image) -> io::Result<Self> {
        let mut facts = Sha256::new();
        for file in ["image.json", "config.json", "labels.json"] {
            facts.update(fs::read(dir.join(file)).unwrap_or_default());
        }
        facts.update(image.disk_bytes().to_be_bytes());
        for tree in ["rootfs", "upper"] {
            hash_tree(&dir.join(tree), tree, &mut facts)?;
        }
        let facts = hex(&facts.finalize());
        // The same at every pull of this image.
        let seed = u64::from_str_radix(&facts[..16], 16).unwrap_or_default();
        let config = match fs::read(dir.join("config.json")) {
            Ok(config) if serde_json::from_slice::<Config>(&config).is_ok() => config,
            _ => serde_json::to_vec(&image.config(&mut Rng::with_seed(seed)))?,
        };
        let disk_bytes = image.disk_bytes();
        let mut disk_head = facts.into_bytes();
        disk_head.truncate(usize::try_from(disk_bytes).unwrap_or(usize::MAX));

        let media = |kind: &str| format!("application/vnd.cirruslabs.tart.{kind}");
        let config_digest = digest(Sha256::new_with_prefix(&config));
        let mut layers =
            vec![json!({ "mediaType": media("config.v1"), "digest": config_digest, "size": config.len() })];
        for (number, bytes) in layer_sizes(disk_bytes).into_iter().enumerate() {
            let content = if number == 0 { padded(&disk_head, bytes) } else { zeros(bytes) };
            let mut packed = Sha256::new_with_prefix("lz4");
            packed.update(&content);
            let size =
                u128::from(image.compressed_bytes()) * u128::from(bytes) / u128::from(disk_bytes.max(1));
            layers.push(json!({
                "mediaType": media("disk.v2"),
                "digest": digest(packed),
                "size": u64::try_from(size).unwrap_or(u64::MAX),
                "annotations": {
                    "org.cirruslabs.tart.uncompressed-size": bytes.to_string(),
                    "org.cirruslabs.tart.uncompressed-content-digest": content,
                },
            }));
        }
        let nvram_bytes = image.os.nvram_bytes();
        layers.push(
            json!({ "mediaType": media("nvram.v1"), "digest": zeros(nvram_bytes), "size": nvram_bytes }),
        );
        let text = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config_digest, "size": 0 },
            "layers": layers,
            "annotations": { "org.cirruslabs.tart.uncompressed-disk-size": disk_bytes.to_string() },
        })
        .to_string();
        Ok(Self { digest: digest(Sha256::new_with_prefix(&text)), text, config, disk_head })
    }
}

/// The sizes of the layers of a disk, in their order.
fn layer_sizes(disk: u64) -> Vec<u64> {
    let mut sizes = vec![disk.min(FIRST)];
    let mut left = disk - disk.min(FIRST);
    while left > 0 {
        let size = if left >= LARGE { LARGE } else { left.min(SMALL) };
        sizes.push(size);
        left -= size;
    }
    sizes
}

/// The digest of so many zeros.
fn zeros(bytes: u64) -> String {
    match ZEROS.iter().find(|(size, _)| *size == bytes) {
        Some((_, hash)) => format!("sha256:{hash}"),
        None => padded(&[], bytes),
    }
}

/// The digest of a content that zeros fill up to so many bytes.
fn padded(content: &[u8], bytes: u64) -> String {
    let mut hash = Sha256::new_with_prefix(content);
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_sub(content.len());
    let block = vec![0; left.min(1 << 16)];
    while left > 0 {
        let part = left.min(block.len());
        hash.update(&block[..part]);
        left -= part;
    }
    digest(hash)
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
    fn known_hashes_of_zeros_are_right() {
        for (bytes, hash) in ZEROS {
            assert_eq!(padded(&[], bytes), format!("sha256:{hash}"), "{bytes}");
        }
    }

    #[test]
    fn layers_have_all_of_the_disk() {
        for disk in [0, 64, FIRST, FIRST + 1, LARGE, 50_000_000_000] {
            assert_eq!(layer_sizes(disk).iter().sum::<u64>(), disk);
        }
        assert!(layer_sizes(50_000_000_000).len() < 1000);
    }

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
