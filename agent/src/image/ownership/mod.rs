//! Which images the agent itself has pulled, and when a Pod last used each. The agent collects no others.
//!
//! The agent records a pull before it starts, with the digests that are cached before it, and again when its own tart says that it
//! fetches the image. So the result is known to be the agent's own even if that agent has ended by then. A tart that only waits for the
//! pull of another program never says so, and the image is foreign.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::access::{ImageAccess, SecretUid};
use crate::names::{BaseName, ImageDigest, full_name};

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    /// Pulls that run or were cut short, by the image's name.
    pulls: BTreeMap<String, PullRecord>,
    /// The images with a kept partial download, by name. Another program may complete it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    partials: BTreeSet<String>,
    pub(crate) images: Vec<KnownImage>,
    /// Whether an earlier record was lost. An image that is not in this one may be a private one that the agent has pulled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_lost: bool,
    /// Whether the file is of another release, and stays as it is.
    #[serde(skip)]
    pub(super) is_in_memory_only: bool,
}

/// A pull as it was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PullRecord {
    /// The digests of its repository that were cached before. They are foreign, unless the record has them.
    before: BTreeSet<String>,
    /// When it was last started; absent once no tart runs it.
    #[serde(default)]
    begun_at: Option<Timestamp>,
    /// Whether a tart of the agent has fetched it.
    #[serde(default)]
    is_fetched: bool,
}

impl PullRecord {
    /// Whether a digest was not cached before, so that the agent may have pulled it.
    fn is_new(&self, digest: &str) -> bool {
        !self.before.contains(digest)
    }
}

/// An image that the agent has pulled, or whose base VM it has cloned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownImage {
    pub(crate) digest: ImageDigest,
    /// The names by which the agent has pulled it. Without any, the image is foreign, and only its base VM is the agent's own.
    pub(crate) names: BTreeSet<String>,
    /// The inode of the directory that the agent has pulled, or of a foreign one whose registry was asked for access. A directory with
    /// another inode is foreign, whatever its name.
    pub(crate) inode: Option<u64>,
    /// Which Pods may use it, if it is the agent's own or its inode is known.
    #[serde(default = "ImageAccess::no_pod")]
    pub(crate) access: ImageAccess,
    /// The inode of the directory whose content the agent has compared with its manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checked: Option<u64>,
    pub(crate) pulled_at: Timestamp,
    pub(crate) last_used_at: Timestamp,
}

/// An image in the cache, with the inode of its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Present {
    pub(crate) digest: ImageDigest,
    pub(crate) inode: u64,
}

impl KnownImage {
    /// An image of another program, of which only the base VM is the agent's own.
    fn foreign(digest: &ImageDigest, now: Timestamp) -> Self {
        let (names, access) = (BTreeSet::new(), ImageAccess::Everyone);
        let (digest, inode, checked) = (digest.clone(), None, None);
        Self { digest, names, inode, access, checked, pulled_at: now, last_used_at: now }
    }

    /// Whether the directory with this inode in the cache is the one that the agent has pulled.
    pub(crate) fn is_own(&self, inode: Option<u64>) -> bool {
        !self.names.is_empty() && self.inode.is_some() && self.inode == inode
    }

    pub(crate) fn base(&self) -> BaseName {
        BaseName::of(&self.digest)
    }
}

impl ImageRecord {
    /// The record of an agent that cannot read the file of another release. Nothing is known of the images that are here.
    pub(super) fn of_other_format() -> Self {
        Self { is_lost: true, is_in_memory_only: true, ..Self::default() }
    }

    /// Which Pods may use an image that is in the directory with this inode, or of which only the base VM is left.
    pub(crate) fn access(&self, digest: &ImageDigest, inode: Option<u64>) -> ImageAccess {
        let known = self.images.iter().find(|known| known.digest == *digest && known.inode.is_some());
        if let Some(known) = known.filter(|known| inode.is_none() || inode == known.inode) {
            return known.access.clone();
        }
        // It is foreign, unless a pull of the agent has just brought it.
        let is_coming = self.pulls.iter().any(|(name, pull)| {
            digest.is_of_repository(name) && pull.is_fetched && pull.is_new(digest.hex())
        });
        if is_coming || self.is_lost { ImageAccess::no_pod() } else { ImageAccess::Everyone }
    }

    /// The registry has granted an image that is in the directory with this inode; whether that changes the record.
    pub(crate) fn grant(
        &mut self,
        digest: &ImageDigest,
        inode: Option<u64>,
        secret: Option<&SecretUid>,
        now: Timestamp,
    ) -> bool {
        if self.is_lost && inode.is_some() {
            let index = self.images.iter().position(|known| known.digest == *digest);
            let index = index.unwrap_or_else(|| {
                self.images.push(KnownImage::foreign(digest, now));
                self.images.len() - 1
            });
            let known = &mut self.images[index];
            // Its access was lost with the record.
            if !known.is_own(inode) && known.inode != inode {
                known.names.clear();
                (known.inode, known.access) = (inode, ImageAccess::no_pod());
            }
        }
        let known = self.images.iter_mut().find(|known| known.digest == *digest);
        known.is_some_and(|known| known.access.grant(secret))
    }

    /// Whether the content of the directory with this inode was compared with its manifest.
    pub(crate) fn is_checked(&self, digest: &ImageDigest, inode: Option<u64>) -> bool {
        inode.is_some() && self.images.iter().any(|known| known.digest == *digest && known.checked == inode)
    }

    /// The content of the directory with this inode is what its manifest says; whether that changes the record.
    pub(crate) fn mark_checked(&mut self, digest: &ImageDigest, inode: Option<u64>) -> bool {
        let known = self.images.iter_mut().find(|known| known.digest == *digest);
        known.is_some_and(|known| std::mem::replace(&mut known.checked, inode) != inode)
    }

    /// An earlier record was lost; whether that changes this one.
    pub(crate) fn mark_lost(&mut self) -> bool {
        !std::mem::replace(&mut self.is_lost, true)
    }

    /// The names of the pulls that have not ended.
    pub(crate) fn pulls(&self) -> impl Iterator<Item = &str> {
        self.pulls.keys().map(String::as_str)
    }

    /// A pull is about to start. One that was cut short keeps the digests of its first start.
    pub(crate) fn begin(&mut self, image: &str, before: impl IntoIterator<Item = String>, now: Timestamp) {
        let name = full_name(image);
        self.partials.remove(&name);
        let before =
            || PullRecord { before: before.into_iter().collect(), begun_at: None, is_fetched: false };
        self.pulls.entry(name).or_insert_with(before).begun_at = Some(now);
    }

    /// A tart of the agent fetches an image; whether that changes the record.
    pub(crate) fn mark_fetching(&mut self, image: &str) -> bool {
        let pull = self.pulls.get_mut(&full_name(image));
        pull.is_some_and(|pull| !std::mem::replace(&mut pull.is_fetched, true))
    }

    /// No tart of the agent fetches an image any more. What they have brought is among `present`, the cached digests of its repository. What
    /// comes later is foreign, unless a tart of the agent fetches again. Says whether that changes the record.
    pub(crate) fn stop_fetching(&mut self, image: &str, present: impl IntoIterator<Item = String>) -> bool {
        let Some(pull) = self.pulls.get_mut(&full_name(image)) else { return false };
        let is_brought = present.into_iter().any(|digest| pull.is_new(&digest));
        let was_fetched = pull.is_fetched;
        pull.is_fetched &= is_brought;
        was_fetched && !is_brought
    }

    /// No tart runs a pull any more, and none will. Says whether that changes the record.
    pub(crate) fn abandon(&mut self, image: &str, present: impl IntoIterator<Item = String>) -> bool {
        let has_stopped = self.stop_fetching(image, present);
        let pull = self.pulls.get_mut(&full_name(image));
        pull.and_then(|pull| pull.begun_at.take()).is_some() || has_stopped
    }

    /// The agent keeps the partial download of an image.
    pub(crate) fn keep_partial(&mut self, image: &str) {
        self.partials.insert(full_name(image));
    }

    /// Forgets all partial downloads but these; whether that changes the record.
    pub(crate) fn retain_partials(&mut self, is_kept: impl Fn(&str) -> bool) -> bool {
        let before = self.partials.len();
        self.partials.retain(|name| is_kept(name));
        self.partials.len() < before
    }

    /// Whether a pull of another process may still bring an image: what was found is not new, and its deadline has not passed. A tart that
    /// waits for its turn at a registry leaves no trace.
    pub(crate) fn may_come(
        &self,
        image: &str,
        found: Option<&Present>,
        limit: SignedDuration,
        now: Timestamp,
    ) -> bool {
        let Some(pull) = self.pulls.get(&full_name(image)) else { return false };
        let is_new = found.is_some_and(|found| pull.is_new(found.digest.hex()));
        !is_new && pull.begun_at.is_some_and(|begun_at| now.duration_since(begun_at) < limit)
    }

    /// The result of a pull: the image that its name stands for now, if any.
    ///
    /// `is_over` is false while another pull of the same name runs, or may.
    pub(crate) fn settle(&mut self, image: &str, found: Option<&Present>, is_over: bool, now: Timestamp) {
        let name = full_name(image);
        let Some(pull) = self.pulls.get(&name) else { return };
        if let Some(found) = found {
            let is_brought = pull.is_fetched && pull.is_new(found.digest.hex());
            self.add(&name, found, is_brought, now);
        }
        if is_over {
            self.pulls.remove(&name);
        }
    }

    fn add(&mut self, name: &str, found: &Present, is_brought: bool, now: Timestamp) {
        // A name stands for one image.
        for image in self.images.iter_mut().filter(|image| image.digest != found.digest) {
            image.names.remove(name);
        }
        let inode = Some(found.inode);
        match self.images.iter_mut().find(|image| image.digest == found.digest) {
            Some(known) if is_brought || known.is_own(inode) => {
                if known.names.is_empty() {
                    known.access = ImageAccess::no_pod();
                }
                known.names.insert(name.to_owned());
                known.inode = inode;
            }
            // Another program has deleted the agent's image and pulled its own.
            Some(known) => known.names.clear(),
            None if is_brought => {
                let (names, access) = (BTreeSet::from([name.to_owned()]), ImageAccess::no_pod());
                self.images.push(KnownImage {
                    names,
                    inode,
                    access,
                    ..KnownImage::foreign(&found.digest, now)
                });
            }
            None => {}
        }
    }

    /// Sets times in the future to now. The clock was wrong when they were recorded, and such an image must not stay young until then. Says
    /// whether that changes the record.
    pub(crate) fn correct_future_times(&mut self, now: Timestamp) -> bool {
        let times = self.images.iter_mut().flat_map(|image| [&mut image.pulled_at, &mut image.last_used_at]);
        let mut late = times.filter(|time| **time > now).peekable();
        let was_any = late.peek().is_some();
        late.for_each(|time| *time = now);
        was_any
    }

    pub(crate) fn used(&mut self, digest: &ImageDigest, now: Timestamp) {
        match self.images.iter_mut().find(|image| image.digest == *digest) {
            Some(known) => known.last_used_at = known.last_used_at.max(now),
            None => self.images.push(KnownImage::foreign(digest, now)),
        }
    }

    pub(crate) fn forget(&mut self, digest: &ImageDigest) {
        self.images.retain(|image| image.digest != *digest);
    }
}
