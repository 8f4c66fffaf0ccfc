//! Which image a server is installed with.

use std::cmp::Reverse;

use crate::pool::OsFamily;
use crate::scaleway::Image;

/// The newest image of a family. A preview is taken only if there is nothing else.
pub(super) fn newest<'a>(images: &'a [Image], family: &OsFamily) -> Option<&'a Image> {
    let of_family = images.iter().filter(|image| is_of_family(image, family));
    of_family.max_by_key(|image| (Reverse(image.is_beta), Version::of(image)))
}

/// By the image's family, which may be a number, or by its name.
pub(super) fn is_of_family(image: &Image, family: &OsFamily) -> bool {
    [&image.family, &image.name].into_iter().any(|text| OsFamily::of_image(text).as_ref() == Some(family))
}

/// The parts of a version. A part with letters behind its number comes before the bare number: `26.6-rc1` is older than `26.6`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(Vec<(u64, bool, String)>);

impl Version {
    fn of(image: &Image) -> Self {
        let by_name = || image.name.find(|c: char| c.is_ascii_digit()).map_or("", |at| &image.name[at..]);
        let text = if image.version.is_empty() { by_name() } else { &image.version };
        let mut parts: Vec<_> = text.split('.').map(part).collect();
        // 26 and 26.0 are one version.
        while parts.last() == Some(&(0, true, String::new())) {
            parts.pop();
        }
        Self(parts)
    }
}

fn part(text: &str) -> (u64, bool, String) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    (number.parse().unwrap_or(0), rest.is_empty(), rest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, version: &str, is_beta: bool) -> Image {
        Image {
            id: name.to_owned(),
            name: name.to_owned(),
            family: String::new(),
            is_beta,
            version: version.to_owned(),
        }
    }

    #[test]
    fn the_newest_release_of_the_family_is_chosen() {
        let family = OsFamily::pin("Tahoe").unwrap();
        for (images, expected) in [
            (
                vec![image("macos-tahoe-26.9", "", false), image("macos-tahoe-26.10", "", false)],
                Some("macos-tahoe-26.10"),
            ),
            (
                vec![image("macos-tahoe-26.6", "26.6", false), image("macos-tahoe-26.6.1", "26.6.1", false)],
                Some("macos-tahoe-26.6.1"),
            ),
            (
                vec![
                    image("macos-tahoe-26.6-rc1", "26.6-rc1", false),
                    image("macos-tahoe-26.6", "26.6", false),
                ],
                Some("macos-tahoe-26.6"),
            ),
            (
                vec![image("macos-tahoe-26.5", "26.5", false), image("macos-tahoe-27.0", "27.0", true)],
                Some("macos-tahoe-26.5"),
            ),
            (vec![image("macos-tahoe-27.0", "27.0", true)], Some("macos-tahoe-27.0")),
            (
                vec![image("macos-sequoia-15.6", "15.6", false), image("devos-tahoe-26.6", "26.6", false)],
                None,
            ),
            (vec![], None),
        ] {
            assert_eq!(newest(&images, &family).map(|image| image.name.as_str()), expected);
        }
    }

    #[test]
    fn the_family_may_be_a_name() {
        let image = Image { family: "Golden Gate".to_owned(), ..image("27", "27", false) };
        assert!(newest(&[image], &OsFamily::pin("golden-gate").unwrap()).is_some());
    }
}
