//! `tart-kubelet images list`. It locks and writes nothing, so the agent may run.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;

use super::AgentArgs;
use super::images_pull::CommandError;
use crate::duration::Approximate;
use crate::image::ownership::{ImageRecord, KnownImage};
use crate::names::{BaseName, ImageDigest};
use crate::state::StateDir;
use crate::tart::{CachedImage, Tart};
use crate::text_table::columns;

const HEAD: [&str; 6] = ["IMAGE", "DIGEST", "SIZE", "LAST USED", "NEEDED BY", "PULLED BY"];
const NOTHING: &str = "-";
/// The digits of a digest that the table shows.
const DIGITS: usize = 12;

/// The table.
pub(crate) fn table(args: &AgentArgs) -> Result<String, CommandError> {
    let (state, tart) = (StateDir::at(&args.state_dir), Tart::new(&args.tart_binary));
    let record = state.images()?;
    let cached = tart.cached_images().map_err(CommandError::Cache)?;
    let sight = Sight {
        inodes: cached
            .iter()
            .filter_map(|image| Some((image.digest.clone(), tart.image_inode(&image.digest)?)))
            .collect(),
        // The image has left tart's cache; only its base VM is here.
        bases: record
            .images
            .iter()
            .filter(|known| tart.has_base(&known.base()) && !tart.has_image(&known.digest))
            .map(|known| CachedImage {
                digest: known.digest.clone(),
                tags: Vec::new(),
                bytes: tart.base_size(&known.base()),
            })
            .collect(),
        cached,
        in_use: state.bases_in_use()?,
        record,
    };
    Ok(render(&sight, Timestamp::now()))
}

/// What the table shows.
#[derive(Debug)]
struct Sight {
    cached: Vec<CachedImage>,
    bases: Vec<CachedImage>,
    inodes: Vec<(ImageDigest, u64)>,
    record: ImageRecord,
    /// The base VMs in use; `None` if a VM's plan cannot be read.
    in_use: Option<HashSet<BaseName>>,
}

fn render(sight: &Sight, now: Timestamp) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    for image in sight.cached.iter().chain(&sight.bases) {
        let known = sight.record.images.iter().find(|known| known.digest == image.digest);
        let inode = sight.inodes.iter().find(|(digest, _)| *digest == image.digest).map(|(_, inode)| *inode);
        let is_base = inode.is_none();
        lines.push([
            name(image),
            format!("sha256:{}", image.digest.hex().chars().take(DIGITS).collect::<String>()),
            size(image.bytes),
            known.map_or_else(|| NOTHING.to_owned(), |known| last_used(known, now)),
            sight.needed_by(image).to_owned(),
            if is_base || known.is_some_and(|known| known.is_own(inode)) { "agent" } else { "others" }
                .to_owned(),
        ]);
    }
    // A pull of which nothing is on the disk yet.
    let tags: HashSet<&String> = sight.cached.iter().flat_map(|image| &image.tags).collect();
    for pulled in sight.record.pulls().filter(|name| !tags.contains(&(*name).to_owned())) {
        lines.push([pulled, NOTHING, NOTHING, NOTHING, "pull", "agent"].map(str::to_owned));
    }
    columns(&lines)
}

impl Sight {
    fn needed_by(&self, image: &CachedImage) -> &'static str {
        let is_pulled =
            |name: &str| image.tags.iter().any(|tag| tag == name) || image.digest.to_string() == name;
        match &self.in_use {
            Some(in_use) if in_use.contains(&BaseName::of(&image.digest)) => "VM",
            _ if self.record.pulls().any(is_pulled) => "pull",
            Some(_) => NOTHING,
            None => "unknown",
        }
    }
}

fn name(image: &CachedImage) -> String {
    match image.tags.as_slice() {
        [] => image.digest.to_string().split('@').next().unwrap_or_default().to_owned(),
        tags => tags.join(","),
    }
}

fn last_used(known: &KnownImage, now: Timestamp) -> String {
    let ago = Duration::try_from(now.duration_since(known.last_used_at)).unwrap_or_default();
    format!("{} ago", Approximate(ago))
}

/// Bytes in decimal units, as in Finder.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes / 1000),
        1_000_000..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{}.{} GB", bytes / 1_000_000_000, bytes % 1_000_000_000 / 100_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ownership::Present;

    fn digest(digit: char) -> ImageDigest {
        ImageDigest::parse(&format!("r.test/macos@sha256:{}", digit.to_string().repeat(64))).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn every_image_shows_its_owner() {
        let image = |digit, tags: &[&str], bytes| CachedImage {
            digest: digest(digit),
            tags: tags.iter().map(|tag| format!("r.test/macos:{tag}")).collect(),
            bytes,
        };
        let mut record = ImageRecord::default();
        record.begin("r.test/macos:1", [], at(0));
        record.mark_fetching("r.test/macos:1");
        record.settle("r.test/macos:1", Some(&Present { digest: digest('a'), inode: 1 }), true, at(0));
        record.used(&digest('c'), at(60));
        record.begin("r.test/macos:new", [], at(0));
        let sight = Sight {
            cached: vec![image('a', &["1"], 61_234_000_000), image('b', &["2", "3"], 5_000_000)],
            bases: vec![image('c', &[], 7000)],
            inodes: vec![(digest('a'), 1), (digest('b'), 2)],
            record,
            in_use: Some(HashSet::from([BaseName::of(&digest('a'))])),
        };
        let expected = "\
IMAGE                         DIGEST                SIZE      LAST USED   NEEDED BY   PULLED BY
r.test/macos:1                sha256:aaaaaaaaaaaa   61.2 GB   2 min ago   VM          agent
r.test/macos:2,r.test/macos:3 sha256:bbbbbbbbbbbb   5 MB      -           -           others
r.test/macos                  sha256:cccccccccccc   7 kB      60 s ago    -           agent
r.test/macos:new              -                     -         -           pull        agent
";
        let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeeze(&render(&sight, at(120))), squeeze(expected));
        let blind = Sight { in_use: None, ..sight };
        assert_eq!(render(&blind, at(120)).matches("unknown").count(), 3);
    }
}
