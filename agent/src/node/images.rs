//! The images of this host in the Node's status and labels. The scheduler prefers a Node that has a Pod's image.

use k8s_openapi::api::core::v1::ContainerImage;

use super::labels::{Labels, value_of};
use crate::tart::CachedImage;

/// The kubelet's limit of names of one image.
const MAX_NAMES: usize = 5;
/// The prefix of a label; half of the image's digest follows.
const LABEL_PREFIX: &str = "image.tuist.dev/";
const LABEL_DIGITS: usize = 32;

/// For `status.images`.
pub(super) fn status(images: &[CachedImage]) -> Vec<ContainerImage> {
    let image = |image: &CachedImage| ContainerImage {
        names: Some(
            std::iter::once(image.digest.to_string())
                .chain(image.tags.iter().cloned())
                .take(MAX_NAMES)
                .collect(),
        ),
        size_bytes: Some(i64::try_from(image.bytes).unwrap_or(i64::MAX)),
    };
    images.iter().map(image).collect()
}

/// A label for each image. Its value is for users: the last part of the image's name.
pub(super) fn labels(images: &[CachedImage]) -> Labels {
    let label = |image: &CachedImage| {
        let digits: String = image.digest.hex().chars().take(LABEL_DIGITS).collect();
        let name = image.tags.first().map_or_else(|| image.digest.parts().0, String::as_str);
        let last = name.rsplit('/').next().unwrap_or_default();
        (format!("{LABEL_PREFIX}{digits}"), value_of(last).unwrap_or_default())
    };
    images.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::ImageDigest;

    fn image(number: usize, tags: &[&str]) -> CachedImage {
        let digest =
            ImageDigest::parse(&format!("r.test/team/macos@sha256:{number:032x}{:032x}", 0)).unwrap();
        let tags = tags.iter().map(|tag| format!("r.test/team/macos:{tag}")).collect();
        CachedImage { digest, tags, bytes: 1 }
    }

    #[test]
    fn an_image_has_as_many_names_as_with_the_kubelet_and_its_digest_first() {
        let all = [image(0, &["a", "b", "c", "d", "e", "f"])];
        let shown = status(&all);
        let names = shown[0].names.as_ref().unwrap();
        assert_eq!((names.len(), names[0].as_str()), (MAX_NAMES, all[0].digest.to_string().as_str()));
    }

    #[test]
    fn each_image_has_a_label() {
        let all: Vec<_> = (0..50).map(|number| image(number, &["a"])).collect();
        assert_eq!(labels(&all).len(), 50);
    }

    #[test]
    fn a_label_has_digits_of_the_digest_and_a_name_for_users() {
        let mut long = image(2, &[]);
        long.tags = vec![format!("r.test/{}:1", "x".repeat(100))];
        for (image, value) in [
            (image(1, &["15", "latest"]), "macos-15".to_owned()),
            (image(1, &[]), "macos".to_owned()),
            (long, "x".repeat(63)),
        ] {
            let key = format!("{LABEL_PREFIX}{}", &image.digest.hex()[..LABEL_DIGITS]);
            assert_eq!(labels(&[image]), Labels::from([(key, value)]));
        }
    }
}
