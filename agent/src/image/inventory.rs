//! The images on this host as the Node shows them: to the scheduler, which prefers a Node that has a Pod's image, and to people.

use std::collections::BTreeMap;
use std::io;

use k8s_openapi::api::core::v1::ContainerImage;

use super::ownership::KnownImage;
use crate::node::labels::{Labels, value_of};
use crate::tart::{CachedImage, ImageDigest, Tart};

/// As many as the kubelet shows, and as many labels.
pub(crate) const MOST: usize = 50;
/// As many names of one image as the kubelet shows.
const MOST_NAMES: usize = 5;
/// What the labels of images begin with; half of the image's digest follows, as in the name of its base VM.
pub(crate) const LABEL_PREFIX: &str = "image.tuist.dev/";
const LABEL_DIGITS: usize = 32;

/// An image on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resident {
    /// Which one it is.
    pub(crate) digest: ImageDigest,
    /// Its names with a tag.
    pub(crate) tags: Vec<String>,
    /// What it takes on disk.
    pub(crate) bytes: u64,
}

/// Looks at what is there: in tart's cache, and as base VMs of images that have left the cache since. The largest come first.
pub(super) fn residents(tart: &Tart, known: &[KnownImage]) -> io::Result<Vec<Resident>> {
    let bases = known.iter().filter(|image| tart.has_base(&image.base()));
    let bases = bases.map(|image| (image.digest.clone(), tart.base_size(&image.base()))).collect();
    Ok(merge(tart.cached_images()?, bases))
}

fn merge(cached: Vec<CachedImage>, mut bases: BTreeMap<ImageDigest, u64>) -> Vec<Resident> {
    let mut all: Vec<Resident> = cached
        .into_iter()
        .map(|CachedImage { digest, tags, bytes }| {
            bases.remove(&digest);
            Resident { digest, tags, bytes }
        })
        .collect();
    all.extend(bases.into_iter().map(|(digest, bytes)| Resident { digest, tags: Vec::new(), bytes }));
    all.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.digest.cmp(&other.digest)));
    all.truncate(MOST);
    all
}

/// What the Node's status says of images.
pub(crate) fn status(residents: &[Resident]) -> Vec<ContainerImage> {
    let image = |image: &Resident| ContainerImage {
        names: Some(
            std::iter::once(image.digest.to_string())
                .chain(image.tags.iter().cloned())
                .take(MOST_NAMES)
                .collect(),
        ),
        size_bytes: Some(i64::try_from(image.bytes).unwrap_or(i64::MAX)),
    };
    residents.iter().map(image).collect()
}

/// A label for each image. Its value is for people: what comes last in the image's name.
pub(crate) fn labels(residents: &[Resident]) -> Labels {
    let label = |image: &Resident| {
        let digits: String = image.digest.hex().chars().take(LABEL_DIGITS).collect();
        let name = image.tags.first().cloned().unwrap_or_else(|| repository(&image.digest));
        let last = name.rsplit('/').next().unwrap_or_default();
        (format!("{LABEL_PREFIX}{digits}"), value_of(last).unwrap_or_default())
    };
    residents.iter().map(label).collect()
}

fn repository(digest: &ImageDigest) -> String {
    let name = digest.to_string();
    name.split_once('@').map_or(String::new(), |(repository, _)| repository.to_owned())
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
    fn every_image_is_there_once_and_the_largest_first() {
        let bases = BTreeMap::from([(digest(1), 9), (digest(3), 7)]);
        let all = merge(vec![cached(1, &["1"], 5), cached(2, &[], 8)], bases);
        let order: Vec<_> = all.iter().map(|image| (image.digest.clone(), image.bytes)).collect();
        assert_eq!(order, [(digest(2), 8), (digest(3), 7), (digest(1), 5)]);
    }

    #[test]
    fn there_are_never_more_than_the_kubelet_shows() {
        let all = merge(
            (0..60).map(|number| cached(number, &["a", "b", "c", "d", "e", "f"], 1)).collect(),
            BTreeMap::new(),
        );
        assert_eq!((all.len(), labels(&all).len()), (MOST, MOST));
        let shown = status(&all);
        let names = shown[0].names.as_ref().unwrap();
        assert_eq!((names.len(), names[0].as_str()), (MOST_NAMES, digest(0).to_string().as_str()));
    }

    #[test]
    fn a_label_has_the_digits_of_the_base_and_a_name_for_people() {
        let mut long = cached(2, &[], 1);
        long.tags = vec![format!("r.test/{}:1", "x".repeat(100))];
        for (image, value) in [
            (cached(1, &["15", "latest"], 1), "macos-15".to_owned()),
            (cached(1, &[], 1), "macos".to_owned()),
            (long, "x".repeat(63)),
        ] {
            let all = merge(vec![image], BTreeMap::new());
            let found = labels(&all);
            let base = crate::names::vm::BaseName::of(&all[0].digest).to_string();
            let key = format!("{LABEL_PREFIX}{}", base.strip_prefix("tk-base-").unwrap());
            assert_eq!(found, Labels::from([(key, value)]));
        }
    }
}
