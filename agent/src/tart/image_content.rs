//! Whether the files of a cached image are what its manifest says.
//!
//! tart names an image by the hash of the manifest that the registry answered with. It compares nothing else with a digest: not the
//! configuration, not the NVRAM, not the layers of the disk, neither those that it downloads nor those that it copies from other images in
//! its cache. So the agent does, before it makes the first VM of an image.
//!
//! - `config.json` and `nvram.bin` are as the registry has sent them: the digests of their layers are theirs.
//! - `disk.img` is what the layers of the disk unpack to, one after the other. An annotation of each layer has the digest of that.
//! - `manifest.json` is what tart has read, written anew. For an image that `tart push` has made, that is the registry's text again.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::fs::absent_is_none;
use crate::mutex::lock;

const CONFIG: &str = "application/vnd.cirruslabs.tart.config.v1";
const DISK: &str = "application/vnd.cirruslabs.tart.disk.v2";
const NVRAM: &str = "application/vnd.cirruslabs.tart.nvram.v1";
/// The file that tarts after 2.35 have in place of the disk, if an image is the difference to another one.
pub(super) const OVERLAY: &str = "overlay.asif";
const UNPACKED_SIZE: &str = "org.cirruslabs.tart.uncompressed-size";
const UNPACKED_DIGEST: &str = "org.cirruslabs.tart.uncompressed-content-digest";

/// More than the manifest of any disk that fits on a Mac has.
const MAX_MANIFEST: u64 = 16 << 20;
const BUFFER: usize = 256 << 10;
/// More threads than this read no faster from the disk of a Mac.
const MAX_THREADS: usize = 4;

/// An image whose files are what its manifest says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckedContent {
    /// And the manifest has the image's digest.
    Whole,
    /// tart has written the manifest in other words than the registry, so that only tart knows that it has the image's digest.
    RewrittenManifest,
    /// There is no manifest to compare with: no pull has brought the image.
    NoManifest,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentError {
    #[error("its {0} is not what its manifest says")]
    Differs(String),
    #[error("its manifest does not describe a VM: {0}")]
    Manifest(String),
    #[error(
        "it is stacked on another image: tart has only the difference, `{OVERLAY}`, which the agent cannot compare with a digest yet; push it \
         as a whole image, and use that"
    )]
    Stacked,
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("the disk was too slow")]
    Cancelled,
}

impl ContentError {
    /// Whether the image itself is at fault, and not the disk that it is on.
    pub(crate) fn is_of_image(&self) -> bool {
        matches!(self, Self::Differs(_) | Self::Manifest(_))
    }
}

#[derive(Debug, Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// A part of a file, and the digest that it should have.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    offset: u64,
    bytes: u64,
    digest: String,
}

impl Manifest {
    fn parse(text: &[u8]) -> Result<Self, ContentError> {
        serde_json::from_slice(text).map_err(|error| ContentError::Manifest(error.to_string()))
    }

    /// The digest of the only layer of a kind.
    fn only(&self, kind: &str) -> Result<&str, ContentError> {
        let mut layers = self.layers.iter().filter(|layer| layer.media_type == kind);
        match (layers.next(), layers.next()) {
            (Some(layer), None) => Ok(&layer.digest),
            _ => Err(ContentError::Manifest(format!("it has not one layer of type {kind}"))),
        }
    }

    /// The parts of the disk, in their order.
    fn disk(&self) -> Result<Vec<Part>, ContentError> {
        let mut parts = Vec::new();
        let mut offset = 0u64;
        for layer in self.layers.iter().filter(|layer| layer.media_type == DISK) {
            let annotation = |name: &str| layer.annotations.as_ref()?.get(name);
            let bytes = annotation(UNPACKED_SIZE).and_then(|bytes| bytes.parse().ok());
            let (Some(bytes), Some(digest)) = (bytes, annotation(UNPACKED_DIGEST)) else {
                let why =
                    "a layer of its disk does not say what it unpacks to; push it again with a current tart";
                return Err(ContentError::Manifest(why.to_owned()));
            };
            parts.push(Part { offset, bytes, digest: digest.clone() });
            let end = offset.checked_add(bytes);
            offset = end.ok_or_else(|| ContentError::Manifest("its disk is too large".to_owned()))?;
        }
        if parts.is_empty() {
            return Err(ContentError::Manifest(format!("it has no layer of type {DISK}")));
        }
        Ok(parts)
    }
}

/// Ends a check when its requester is gone.
#[derive(Debug)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs [`check`] until a deadline. It has a thread of its own: those of the runtime are few, and serve all Pods.
pub(super) async fn check_within(
    dir: PathBuf,
    hex: String,
    deadline: Duration,
) -> Result<CheckedContent, ContentError> {
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let _cancel = CancelOnDrop(is_cancelled.clone());
    let (sender, result) = oneshot::channel();
    let failed = |source| ContentError::Read(dir.clone(), source);
    let checked = dir.clone();
    // The receiver may be gone.
    let work = move || drop(sender.send(check(&checked, &hex, &is_cancelled)));
    std::thread::Builder::new().name("image-content".to_owned()).spawn(work).map_err(failed)?;
    timeout(deadline, result).await.ok().and_then(Result::ok).unwrap_or(Err(ContentError::Cancelled))
}

/// Compares the files in an image's directory with its manifest, and the manifest with the image's digest, in hexadecimal digits. Reads the
/// whole disk image, until `is_cancelled`.
pub(super) fn check(
    dir: &Path,
    hex: &str,
    is_cancelled: &AtomicBool,
) -> Result<CheckedContent, ContentError> {
    let path = dir.join("manifest.json");
    let failed = |source| ContentError::Read(path.clone(), source);
    let Some(file) = absent_is_none(File::open(&path)).map_err(failed)? else {
        return Ok(CheckedContent::NoManifest);
    };
    let mut text = Vec::new();
    file.take(MAX_MANIFEST).read_to_end(&mut text).map_err(failed)?;
    let manifest = Manifest::parse(&text)?;
    if !dir.join("disk.img").exists() && dir.join(OVERLAY).exists() {
        return Err(ContentError::Stacked);
    }
    for (name, digest) in [("config.json", manifest.only(CONFIG)?), ("nvram.bin", manifest.only(NVRAM)?)] {
        let bytes =
            fs::metadata(dir.join(name)).map_err(|error| ContentError::Read(dir.join(name), error))?;
        let whole = Part { offset: 0, bytes: bytes.len(), digest: digest.to_owned() };
        check_parts(dir, name, &[whole], is_cancelled)?;
    }
    check_parts(dir, "disk.img", &manifest.disk()?, is_cancelled)?;
    let is_same = hex_of(&Sha256::digest(&text)) == hex;
    Ok(if is_same { CheckedContent::Whole } else { CheckedContent::RewrittenManifest })
}

/// Compares all parts of a file with their digests, several at a time.
fn check_parts(
    dir: &Path,
    name: &str,
    parts: &[Part],
    is_cancelled: &AtomicBool,
) -> Result<(), ContentError> {
    let path = dir.join(name);
    let failed = |source| ContentError::Read(path.clone(), source);
    let file = File::open(&path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if parts.iter().map(|part| part.bytes).sum::<u64>() != length {
        return Err(ContentError::Differs(format!("{name} (its size)")));
    }
    let threads =
        std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS).min(parts.len());
    let (next, zeros) = (AtomicUsize::new(0), Mutex::default());
    let (next, zeros, file, failed) = (&next, &zeros, &file, &failed);
    let work = || {
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = if is_hole(file, part) {
                hash_zeros(part.bytes, zeros, is_cancelled)?
            } else {
                hash_part(file, part, is_cancelled)?.map_err(failed)?
            };
            if format!("sha256:{found}") != part.digest {
                let end = part.offset + part.bytes;
                return Err(ContentError::Differs(format!("{name} (bytes {} to {end})", part.offset)));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        workers.into_iter().fold(own, |result, worker| {
            let joined = worker.join().unwrap_or(Err(ContentError::Cancelled));
            result.and(joined)
        })
    })
}

/// Whether a part of a file has no blocks, so that it is all zeros. Most of a disk image is.
fn is_hole(file: &File, part: &Part) -> bool {
    let Ok(offset) = part.offset.try_into() else { return false };
    match lseek(file, offset, Whence::SeekData) {
        Ok(data) => u64::try_from(data).is_ok_and(|data| data >= part.offset + part.bytes),
        // There is no data after this offset.
        Err(Errno::ENXIO) => true,
        // The file system cannot tell.
        Err(_) => false,
    }
}

fn hash_part(
    file: &File,
    part: &Part,
    is_cancelled: &AtomicBool,
) -> Result<io::Result<String>, ContentError> {
    let mut offset = part.offset;
    let mut buffer = vec![0; BUFFER];
    let mut read = Ok(());
    let hash = hash(part.bytes, is_cancelled, |hash, bytes| {
        if read.is_ok() {
            read = file.read_exact_at(&mut buffer[..bytes], offset);
            hash.update(&buffer[..bytes]);
            offset += bytes as u64;
        }
    })?;
    Ok(read.map(|()| hash))
}

/// The hash of so many zeros. The layers of a disk have few different sizes.
fn hash_zeros(
    bytes: u64,
    known: &Mutex<HashMap<u64, String>>,
    is_cancelled: &AtomicBool,
) -> Result<String, ContentError> {
    // The other threads wait for the hash instead of computing it, too.
    let mut known = lock(known);
    if let Some(hash) = known.get(&bytes) {
        return Ok(hash.clone());
    }
    let zeros = vec![0; BUFFER];
    let hash = hash(bytes, is_cancelled, |hash, bytes| hash.update(&zeros[..bytes]))?;
    known.insert(bytes, hash.clone());
    Ok(hash)
}

/// Hashes so many bytes, of which `update` hashes no more than a buffer at a time.
fn hash(
    bytes: u64,
    is_cancelled: &AtomicBool,
    mut update: impl FnMut(&mut Sha256, usize),
) -> Result<String, ContentError> {
    let (mut hash, mut left) = (Sha256::new(), bytes);
    while left > 0 {
        if is_cancelled.load(Ordering::Relaxed) {
            return Err(ContentError::Cancelled);
        }
        let next = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
        update(&mut hash, next);
        left -= next as u64;
    }
    Ok(hex_of(&hash.finalize()))
}

fn hex_of(hash: &[u8]) -> String {
    hash.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use serde_json::{Value, json};

    const LAYER: usize = 1 << 20;

    fn sha256(content: &[u8]) -> String {
        format!("sha256:{}", hex_of(&Sha256::digest(content)))
    }

    fn layer(content: &[u8]) -> Value {
        let annotations =
            json!({ UNPACKED_SIZE: content.len().to_string(), UNPACKED_DIGEST: sha256(content) });
        json!({"mediaType": DISK, "digest": "sha256:packed", "size": 1, "annotations": annotations})
    }

    /// A directory with an image of two layers, the second of them a hole; and the hash of its manifest.
    fn image(dir: &Path) -> String {
        let disk = [vec![7; LAYER], vec![0; 2 * LAYER]];
        let manifest = json!({ "layers": [
            {"mediaType": CONFIG, "digest": sha256(b"config"), "size": 6},
            layer(&disk[0]),
            layer(&disk[1]),
            {"mediaType": NVRAM, "digest": sha256(b"nvram"), "size": 5},
        ]});
        fs::write(dir.join("config.json"), "config").unwrap();
        fs::write(dir.join("nvram.bin"), "nvram").unwrap();
        fs::write(dir.join("disk.img"), &disk[0]).unwrap();
        File::options().write(true).open(dir.join("disk.img")).unwrap().set_len(3 * LAYER as u64).unwrap();
        write_manifest(dir, &manifest)
    }

    fn write_manifest(dir: &Path, manifest: &Value) -> String {
        fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
        hex_of(&Sha256::digest(manifest.to_string()))
    }

    fn found(dir: &Path, hex: &str) -> Result<CheckedContent, String> {
        check(dir, hex, &AtomicBool::new(false)).map_err(|error| error.to_string())
    }

    #[test]
    fn an_image_is_what_its_manifest_says_or_it_is_refused() {
        let dir = testing::dir();
        let at = |name: &str| dir.path().join(name);
        let hex = image(dir.path());
        assert_eq!(found(dir.path(), &hex), Ok(CheckedContent::Whole));
        assert_eq!(found(dir.path(), &"0".repeat(64)), Ok(CheckedContent::RewrittenManifest));
        let disk = |name: &str, offset: u64, byte: u8| {
            File::options().write(true).open(at(name)).unwrap().write_all_at(&[byte], offset).unwrap();
        };
        for (name, offset, why) in [
            ("config.json", 0, "its config.json (bytes 0 to 6) is not"),
            ("nvram.bin", 4, "its nvram.bin (bytes 0 to 5) is not"),
            ("disk.img", 5, "its disk.img (bytes 0 to 1048576) is not"),
            ("disk.img", LAYER as u64, "its disk.img (bytes 1048576 to 3145728) is not"),
            ("disk.img", 3 * LAYER as u64 - 1, "its disk.img (bytes 1048576 to 3145728) is not"),
            ("disk.img", 3 * LAYER as u64, "its disk.img (its size) is not"),
        ] {
            image(dir.path());
            disk(name, offset, b'!');
            let refused = found(dir.path(), &hex).unwrap_err();
            assert!(refused.contains(why), "{name} {offset}: {refused}");
        }
    }

    #[test]
    fn a_manifest_that_does_not_describe_a_vm_is_refused() {
        let dir = testing::dir();
        let hex = image(dir.path());
        let text = fs::read(dir.path().join("manifest.json")).unwrap();
        let whole: Value = serde_json::from_slice(&text).unwrap();
        let without = |change: &dyn Fn(&mut Vec<Value>)| {
            let mut manifest = whole.clone();
            change(manifest["layers"].as_array_mut().unwrap());
            let hex = write_manifest(dir.path(), &manifest);
            found(dir.path(), &hex)
        };
        assert!(without(&|_| {}).is_ok());
        assert!(without(&|layers| drop(layers.remove(0))).is_err(), "no configuration");
        assert!(without(&|layers| layers.push(layers[0].clone())).is_err(), "two configurations");
        assert!(without(&|layers| layers.retain(|layer| layer["mediaType"] != DISK)).is_err(), "no disk");
        assert!(
            without(&|layers| layers[1]["annotations"] = Value::Null).is_err(),
            "no digest of the content"
        );
        assert!(without(&|layers| drop(layers.remove(2))).is_err(), "a smaller disk");
        fs::write(dir.path().join("manifest.json"), "{").unwrap();
        assert!(found(dir.path(), &hex).is_err());
        fs::remove_file(dir.path().join("manifest.json")).unwrap();
        assert_eq!(found(dir.path(), &hex), Ok(CheckedContent::NoManifest));
    }

    #[test]
    fn an_image_that_is_stacked_on_another_one_is_told_apart() {
        let dir = testing::dir();
        let hex = image(dir.path());
        fs::rename(dir.path().join("disk.img"), dir.path().join(OVERLAY)).unwrap();
        let error = check(dir.path(), &hex, &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, ContentError::Stacked) && !error.is_of_image(), "it is kept: {error}");
        for words in ["stacked on another image", "push it as a whole image"] {
            assert!(error.to_string().contains(words), "{error}");
        }
        fs::remove_file(dir.path().join(OVERLAY)).unwrap();
        let error = check(dir.path(), &hex, &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, ContentError::Read(..)), "it is not whole: {error}");
    }

    #[test]
    fn a_check_can_be_cancelled() {
        let dir = testing::dir();
        let hex = image(dir.path());
        let cancelled = check(dir.path(), &hex, &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(cancelled, ContentError::Cancelled) && !cancelled.is_of_image());
    }
}
