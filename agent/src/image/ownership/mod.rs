//! Which images the agent itself has brought to this host, and when each was last of use. Nothing else is ever collected.
//!
//! A pull is written down before it begins, with what was there before it, and again when our own tart says that it fetches the image:
//! so its result is known to be ours even when the agent that began it is gone by then. A tart that only waits until somebody else has
//! pulled the image never says so, and the image is theirs.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::access::{ImageAccess, SecretUid};
use crate::names::BaseName;
use crate::names::{ImageDigest, full_name};

/// All that is known of this host's images.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    /// Pulls that are under way or were cut short, by the image's name.
    pulls: BTreeMap<String, PullRecord>,
    /// The images of which something was kept for the next pull, by name. Whoever makes one of them whole, it may be somebody else.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    partials: BTreeSet<String>,
    images: Vec<KnownImage>,
}

/// A pull as it was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PullRecord {
    /// The digests of its repository that were in the cache before: others have put them there, or the record says more.
    before: BTreeSet<String>,
    /// When it was last begun; absent once nobody is at it.
    #[serde(default)]
    begun_at: Option<Timestamp>,
    /// Whether a tart of ours was heard to fetch it.
    #[serde(default)]
    is_fetched: bool,
}

impl PullRecord {
    /// Whether an image is one that was not there before, and that we may have brought.
    fn is_new(&self, digest: &str) -> bool {
        !self.before.contains(digest)
    }
}

/// An image that the agent has made a base VM of, or that it has pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownImage {
    /// Which one it is.
    pub(crate) digest: ImageDigest,
    /// The names that the agent has pulled it by. Without any it is somebody else's, and only its base VM is ours.
    pub(crate) names: BTreeSet<String>,
    /// The directory that it came into: another one is not what we have pulled, whatever its name.
    pub(crate) inode: Option<u64>,
    /// Who may use it, if it is ours.
    #[serde(default)]
    pub(crate) access: ImageAccess,
    /// When it came.
    pub(crate) pulled_at: Timestamp,
    /// When a Pod last needed it.
    pub(crate) last_used_at: Timestamp,
}

/// An image that is in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Present {
    /// Which one it is.
    pub(crate) digest: ImageDigest,
    /// The directory that it is in.
    pub(crate) inode: u64,
}

impl KnownImage {
    /// Whether what is in the cache, in this directory, is what the agent has pulled.
    pub(crate) fn is_ours(&self, inode: Option<u64>) -> bool {
        !self.names.is_empty() && self.inode.is_some() && self.inode == inode
    }

    /// Its base VM, whether or not it was made.
    pub(crate) fn base(&self) -> BaseName {
        BaseName::of(&self.digest)
    }
}

impl ImageRecord {
    /// The images, in no order.
    pub(crate) fn images(&self) -> &[KnownImage] {
        &self.images
    }

    /// Who may use an image that is in this directory, or of which only the base VM is left.
    pub(crate) fn access(&self, digest: &ImageDigest, inode: Option<u64>) -> ImageAccess {
        let known = self.images.iter().find(|known| known.digest == *digest && known.inode.is_some());
        if let Some(known) = known.filter(|known| inode.is_none() || inode == known.inode) {
            return known.access.clone();
        }
        // Somebody else has put it here, unless it is one that a pull of ours has just brought.
        let is_coming = self.pulls.iter().any(|(name, pull)| {
            digest.is_of_repository(name) && pull.is_fetched && pull.is_new(digest.hex())
        });
        if is_coming { ImageAccess::nobody() } else { ImageAccess::Everyone }
    }

    /// Its registry has let somebody have an image; whether that is news.
    pub(crate) fn grant(&mut self, digest: &ImageDigest, secret: Option<&SecretUid>) -> bool {
        let known = self.images.iter_mut().find(|known| known.digest == *digest);
        known.is_some_and(|known| known.access.grant(secret))
    }

    /// The names whose pulls have no end yet.
    pub(crate) fn pulls(&self) -> impl Iterator<Item = &str> {
        self.pulls.keys().map(String::as_str)
    }

    /// A pull is about to begin. One that was cut short counts from its own beginning.
    pub(crate) fn begin(&mut self, image: &str, before: impl IntoIterator<Item = String>, now: Timestamp) {
        let name = full_name(image);
        self.partials.remove(&name);
        let before =
            || PullRecord { before: before.into_iter().collect(), begun_at: None, is_fetched: false };
        self.pulls.entry(name).or_insert_with(before).begun_at = Some(now);
    }

    /// Our own tart fetches an image now; whether that is news.
    pub(crate) fn fetch(&mut self, image: &str) -> bool {
        let pull = self.pulls.get_mut(&full_name(image));
        pull.is_some_and(|pull| !std::mem::replace(&mut pull.is_fetched, true))
    }

    /// None of our tarts fetches an image any more: what they may have brought is there by now, among these digests of its repository.
    /// Whatever comes later somebody else has brought, unless one of ours is heard again. Says whether that is news.
    pub(crate) fn fall_silent(&mut self, image: &str, present: impl IntoIterator<Item = String>) -> bool {
        let Some(pull) = self.pulls.get_mut(&full_name(image)) else { return false };
        let is_brought = present.into_iter().any(|digest| pull.is_new(&digest));
        let was_fetched = pull.is_fetched;
        pull.is_fetched &= is_brought;
        was_fetched && !is_brought
    }

    /// Nobody is at a pull any more, and nobody will be. Says whether that is news.
    pub(crate) fn abandon(&mut self, image: &str, present: impl IntoIterator<Item = String>) -> bool {
        let is_silent = self.fall_silent(image, present);
        let pull = self.pulls.get_mut(&full_name(image));
        pull.and_then(|pull| pull.begun_at.take()).is_some() || is_silent
    }

    /// Something of an image is kept for the next pull.
    pub(crate) fn keep_partial(&mut self, image: &str) {
        self.partials.insert(full_name(image));
    }

    /// Forgets what was kept of images, but for these; whether there was any.
    pub(crate) fn retain_partials(&mut self, is_kept: impl Fn(&str) -> bool) -> bool {
        let before = self.partials.len();
        self.partials.retain(|name| is_kept(name));
        self.partials.len() < before
    }

    /// Whether a pull that somebody else has begun may still bring an image: what was found is not new, and its time is not over.
    /// Who waits in line for a registry leaves no trace.
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

    /// What became of a pull: the image that its name stands for now, if any.
    ///
    /// `is_over` is false while another pull of the same name goes on, or may.
    pub(crate) fn settle(&mut self, image: &str, found: Option<&Present>, is_over: bool, now: Timestamp) {
        let name = full_name(image);
        let Some(pull) = self.pulls.get(&name) else { return };
        if let Some(found) = found {
            let is_brought = pull.is_fetched && pull.is_new(found.digest.hex());
            self.note(&name, found, is_brought, now);
        }
        if is_over {
            self.pulls.remove(&name);
        }
    }

    fn note(&mut self, name: &str, found: &Present, is_brought: bool, now: Timestamp) {
        // A name that has moved on is no longer the other image's.
        for image in self.images.iter_mut().filter(|image| image.digest != found.digest) {
            image.names.remove(name);
        }
        let inode = Some(found.inode);
        match self.images.iter_mut().find(|image| image.digest == found.digest) {
            Some(known) if is_brought || known.is_ours(inode) => {
                if known.names.is_empty() {
                    known.access = ImageAccess::nobody();
                }
                known.names.insert(name.to_owned());
                known.inode = inode;
            }
            // Somebody has deleted ours, and then pulled it.
            Some(known) => known.names.clear(),
            None if is_brought => self.images.push(KnownImage {
                digest: found.digest.clone(),
                names: BTreeSet::from([name.to_owned()]),
                inode,
                access: ImageAccess::nobody(),
                pulled_at: now,
                last_used_at: now,
            }),
            None => {}
        }
    }

    /// The time is this. What is said to have happened later has happened now, as far as anybody can tell: the clock was wrong then, and
    /// nothing is to stay young until it is right again. Says whether there was any.
    pub(crate) fn set_clock_right(&mut self, now: Timestamp) -> bool {
        let times = self.images.iter_mut().flat_map(|image| [&mut image.pulled_at, &mut image.last_used_at]);
        let mut late = times.filter(|time| **time > now).peekable();
        let was_any = late.peek().is_some();
        late.for_each(|time| *time = now);
        was_any
    }

    /// A Pod needs an image now.
    pub(crate) fn used(&mut self, digest: &ImageDigest, now: Timestamp) {
        match self.images.iter_mut().find(|image| image.digest == *digest) {
            Some(known) => known.last_used_at = known.last_used_at.max(now),
            None => self.images.push(KnownImage {
                digest: digest.clone(),
                names: BTreeSet::new(),
                inode: None,
                access: ImageAccess::Everyone,
                pulled_at: now,
                last_used_at: now,
            }),
        }
    }

    /// An image is gone, and its base VM with it.
    pub(crate) fn forget(&mut self, digest: &ImageDigest) {
        self.images.retain(|image| image.digest != *digest);
    }
}
