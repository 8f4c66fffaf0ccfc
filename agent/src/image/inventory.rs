//! The images on this host.

use std::collections::BTreeMap;
use std::io;

use super::ownership::KnownImage;
use crate::names::ImageDigest;
use crate::tart::{CachedImage, Tart};

/// As many as the kubelet shows, and as many labels.
pub(crate) const MOST: usize = 50;

/// The images in tart's cache, and those of which only the base VM is left. The largest come first.
pub(super) fn local_images(tart: &Tart, known: &[KnownImage]) -> io::Result<Vec<CachedImage>> {
    let bases = known.iter().filter(|image| tart.has_base(&image.base()));
    let bases = bases.map(|image| (image.digest.clone(), tart.base_size(&image.base()))).collect();
    Ok(merge(tart.cached_images()?, bases))
}

fn merge(cached: Vec<CachedImage>, mut bases: BTreeMap<ImageDigest, u64>) -> Vec<CachedImage> {
    bases.retain(|digest, _| cached.iter().all(|image| image.digest != *digest));
    let mut all = cached;
    all.extend(bases.into_iter().map(|(digest, bytes)| CachedImage { digest, tags: Vec::new(), bytes }));
    all.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.digest.cmp(&other.digest)));
    all.truncate(MOST);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: usize) -> ImageDigest {
        ImageDigest::parse(&format!("r.test/team/macos@sha256:{number:032x}{:032x}", 0)).unwrap()
    }

    fn cached(number: usize, tags: &[&str], bytes: u64) -> CachedImage {
        let tags = tags.iter().map(|tag| format!("r.test/team/macos:{tag}")).collect();
        CachedImage { digest: digest(number), tags, bytes }
    }

    #[test]
    fn each_image_is_listed_once_and_the_largest_first() {
        let bases = BTreeMap::from([(digest(1), 9), (digest(3), 7)]);
        let all = merge(vec![cached(1, &["1"], 5), cached(2, &[], 8)], bases);
        let order: Vec<_> = all.iter().map(|image| (image.digest.clone(), image.bytes)).collect();
        assert_eq!(order, [(digest(2), 8), (digest(3), 7), (digest(1), 5)]);
    }

    #[test]
    fn no_more_images_are_listed_than_the_kubelet_shows() {
        let all = merge(
            (0..60).map(|number| cached(number, &["a", "b", "c", "d", "e", "f"], 1)).collect(),
            BTreeMap::new(),
        );
        assert_eq!(all.len(), MOST);
    }
}
