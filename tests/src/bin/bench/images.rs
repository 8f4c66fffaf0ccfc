//! What the check of an image's content costs.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Mac;

/// An image with a disk that is not all zeros.
pub(crate) const LARGE_IMAGE: &str = "registry.test/macos/large:1";

const LAYERS: u64 = 4;
const LAYER: u64 = 64 << 20;
const DISK_TYPE: &str = "application/vnd.cirruslabs.tart.disk.v2";

/// Puts [`LARGE_IMAGE`] into tart's cache, as `tart pull` would.
pub(crate) async fn cache_large_image(mac: &Mac) -> Result<()> {
    mac.add_image(LARGE_IMAGE, &json!({}))?;
    mac.tart(["pull", LARGE_IMAGE]).await?;
    let tag = mac.tart_home().join("cache/OCIs/registry.test/macos/large/1");
    let pulled = fs::canonicalize(&tag)?;
    let disk = pulled.join("disk.img");
    let mut manifest: Value = serde_json::from_slice(&fs::read(pulled.join("manifest.json"))?)?;
    let layers = manifest["layers"].as_array_mut().context("no layers")?;
    layers.retain(|layer| layer["mediaType"] != DISK_TYPE);
    layers.extend(fill(&disk)?);
    let text = serde_json::to_vec(&manifest)?;
    fs::write(pulled.join("manifest.json"), &text)?;
    let named = pulled.with_file_name(format!("sha256:{}", hex(&Sha256::digest(&text))));
    fs::rename(&pulled, &named)?;
    fs::remove_file(&tag)?;
    std::os::unix::fs::symlink(&named, &tag)?;
    Ok(())
}

/// Writes a disk, and describes its layers.
fn fill(disk: &Path) -> Result<Vec<Value>> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut file = File::create(disk)?;
    let mut described = Vec::new();
    for _ in 0..LAYERS {
        let mut bytes = vec![0; usize::try_from(LAYER)?];
        random.fill(&mut bytes);
        std::io::Write::write_all(&mut file, &bytes)?;
        let digest = format!("sha256:{}", hex(&Sha256::digest(&bytes)));
        described.push(json!({
            "mediaType": DISK_TYPE,
            "digest": digest,
            "size": LAYER,
            "annotations": {
                "org.cirruslabs.tart.uncompressed-size": LAYER.to_string(),
                "org.cirruslabs.tart.uncompressed-content-digest": digest,
            },
        }));
    }
    Ok(described)
}

/// How long the agent took to check [`LARGE_IMAGE`], in parts of the time that one core takes to hash its disk.
pub(crate) fn check_ratio(mac: &Mac, agent: &RunningAgent) -> Result<f64> {
    let directory = fs::canonicalize(mac.tart_home().join("cache/OCIs/registry.test/macos/large/1"))?;
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let log = agent.log()?;
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let said = lines.filter(|line| line["message"] == "the image is what its digest says");
    let mut checks =
        said.filter(|line| line["digest"].as_str().is_some_and(|digest| digest.ends_with(&name)));
    let seconds = checks.next().context("the agent has not checked the image")?["seconds"].as_f64();
    ensure!(checks.next().is_none(), "the agent has checked the image twice");
    let begun = Instant::now();
    let (mut hash, mut buffer, mut disk) =
        (Sha256::new(), vec![0; 256 << 10], File::open(directory.join("disk.img"))?);
    while let length @ 1.. = disk.read(&mut buffer)? {
        hash.update(&buffer[..length]);
    }
    ensure!(hash.finalize().iter().any(|byte| *byte != 0), "no hash");
    Ok(seconds.context("no time")? / begun.elapsed().as_secs_f64())
}

/// How many MB the agent has read so far.
#[cfg(target_os = "linux")]
#[expect(clippy::cast_precision_loss, reason = "no process reads 2^52 bytes")]
pub(crate) fn read_by(agent: &RunningAgent) -> Result<f64> {
    let io = fs::read_to_string(format!("/proc/{}/io", agent.process().pid()))?;
    let bytes = io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok());
    Ok(bytes.context("no rchar")? as f64 / 1e6)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
