//! `tart-kubelet images list`. It locks and writes nothing, so the agent may run.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::ListArgs;
use super::images_pull::CommandError;
use crate::duration::Approximate;
use crate::image::ownership::ImageRecord;
use crate::install::doctor::Format;
use crate::names::{BaseName, ImageDigest};
use crate::state::StateDir;
use crate::tart::{CachedImage, Tart};
use crate::text_table::columns;

const HEAD: [&str; 6] = ["IMAGE", "DIGEST", "SIZE", "LAST USED", "NEEDED BY", "PULLED BY"];
const NOTHING: &str = "-";
/// The digits of a digest that the table shows.
const DIGITS: usize = 12;

/// The table.
pub(crate) fn table(ListArgs { output, agent: args }: &ListArgs) -> Result<String, CommandError> {
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
    let lines = sight.lines();
    Ok(match output {
        Format::Text => render(&lines, Timestamp::now()),
        Format::Json => serde_json::to_string_pretty(&lines).unwrap_or_default() + "\n",
    })
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

/// One image, or a pull of which nothing is on the disk yet.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    /// What it is called, with tags; without a tag, its repository.
    name: String,
    digest: Option<ImageDigest>,
    size_bytes: Option<u64>,
    /// Known of images that the agent has used.
    last_used_at: Option<Timestamp>,
    /// What needs it: a VM or a pull.
    needed_by: Option<&'static str>,
    pulled_by: &'static str,
}

fn render(lines: &[Line], now: Timestamp) -> String {
    let nothing = || NOTHING.to_owned();
    let row = |line: &Line| {
        [
            line.name.clone(),
            line.digest.as_ref().map_or_else(nothing, short),
            line.size_bytes.map_or_else(nothing, size),
            line.last_used_at.map_or_else(nothing, |at| ago(at, now)),
            line.needed_by.unwrap_or(NOTHING).to_owned(),
            line.pulled_by.to_owned(),
        ]
    };
    let rows: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(lines.iter().map(row)).collect();
    columns(&rows)
}

impl Sight {
    fn lines(&self) -> Vec<Line> {
        let images = self.cached.iter().chain(&self.bases).map(|image| {
            let known = self.record.images.iter().find(|known| known.digest == image.digest);
            let inode =
                self.inodes.iter().find(|(digest, _)| *digest == image.digest).map(|(_, inode)| *inode);
            let is_base = inode.is_none();
            Line {
                name: name(image),
                digest: Some(image.digest.clone()),
                size_bytes: Some(image.bytes),
                last_used_at: known.map(|known| known.last_used_at),
                needed_by: self.needed_by(image),
                pulled_by: if is_base || known.is_some_and(|known| known.is_own(inode)) {
                    "agent"
                } else {
                    "others"
                },
            }
        });
        let tags: HashSet<&String> = self.cached.iter().flat_map(|image| &image.tags).collect();
        let begun =
            self.record.pulls().filter(|name| !tags.contains(&(*name).to_owned())).map(|pulled| Line {
                name: pulled.to_owned(),
                digest: None,
                size_bytes: None,
                last_used_at: None,
                needed_by: Some("pull"),
                pulled_by: "agent",
            });
        images.chain(begun).collect()
    }

    fn needed_by(&self, image: &CachedImage) -> Option<&'static str> {
        let is_pulled =
            |name: &str| image.tags.iter().any(|tag| tag == name) || image.digest.to_string() == name;
        match &self.in_use {
            Some(in_use) if in_use.contains(&BaseName::of(&image.digest)) => Some("VM"),
            _ if self.record.pulls().any(is_pulled) => Some("pull"),
            Some(_) => None,
            None => Some("unknown"),
        }
    }
}

fn name(image: &CachedImage) -> String {
    match image.tags.as_slice() {
        [] => image.digest.to_string().split('@').next().unwrap_or_default().to_owned(),
        tags => tags.join(","),
    }
}

fn short(digest: &ImageDigest) -> String {
    format!("sha256:{}", digest.hex().chars().take(DIGITS).collect::<String>())
}

fn ago(at: Timestamp, now: Timestamp) -> String {
    format!("{} ago", Approximate(Duration::try_from(now.duration_since(at)).unwrap_or_default()))
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
        assert_eq!(squeeze(&render(&sight.lines(), at(120))), squeeze(expected));
        let json = serde_json::to_value(sight.lines()).unwrap();
        assert_eq!(
            json[0],
            serde_json::json!({
                "name": "r.test/macos:1", "digest": digest('a').to_string(), "sizeBytes": 61_234_000_000_u64,
                "lastUsedAt": "1970-01-01T00:00:00Z", "neededBy": "VM", "pulledBy": "agent",
            })
        );
        assert_eq!(
            (&json[1]["lastUsedAt"], &json[3]["digest"]),
            (&serde_json::Value::Null, &serde_json::Value::Null)
        );
        let blind = Sight { in_use: None, ..sight };
        assert_eq!(render(&blind.lines(), at(120)).matches("unknown").count(), 3);
    }
}
