//! tart's cache of images on the disk: one directory per digest, one link per tag.
//!
//! The agent reads the disk, which is cheaper than `tart list`. That reads every VM, and fails while one is being deleted.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::image_content::OVERLAY;
use crate::names::ImageDigest;
use crate::names::image::repository;

/// A host and a repository; no repository has more parts.
const MAX_LEVELS: usize = 16;

/// An image in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CachedImage {
    pub(crate) digest: ImageDigest,
    /// The names with a tag that lead to it.
    pub(crate) tags: Vec<String>,
    /// The size of its files on disk, with blocks that they share with VMs.
    pub(crate) bytes: u64,
}

/// All complete images, in the order of their names.
pub(super) fn images(cache: &Path) -> io::Result<Vec<CachedImage>> {
    let mut found = Found::default();
    walk(cache, "", MAX_LEVELS, &mut found)?;
    for (tag, digest) in found.tags {
        if let Some(image) = found.images.iter_mut().find(|image| image.digest == digest) {
            image.tags.push(tag);
        }
    }
    for image in &mut found.images {
        image.tags.sort();
    }
    found.images.sort_by_key(|image| image.digest.to_string());
    Ok(found.images)
}

/// Whether the cache has all of an image.
pub(super) fn has(cache: &Path, image: &ImageDigest) -> bool {
    is_complete(&dir(cache, image))
}

/// The directory of an image, whether or not it exists.
pub(super) fn dir(cache: &Path, image: &ImageDigest) -> PathBuf {
    let (repository, digest) = image.parts();
    cache.join(directory(repository)).join(digest)
}

/// Whether a directory has all files of an image or a VM.
pub(super) fn is_complete(dir: &Path) -> bool {
    let has = |files: &[&str]| files.iter().all(|file| dir.join(file).is_file());
    // tarts after 2.35 can have an image as the difference to another one.
    has(&["config.json", "nvram.bin"]) && (has(&["disk.img"]) || has(&["manifest.json", OVERLAY]))
}

/// The inode of an image's directory.
pub(super) fn inode(cache: &Path, image: &ImageDigest) -> Option<u64> {
    fs::symlink_metadata(dir(cache, image)).ok().map(|metadata| metadata.ino())
}

/// Whether an image was pulled by its digest.
pub(super) fn is_explicitly_pulled(cache: &Path, image: &ImageDigest) -> bool {
    // If the disk does not answer, it may have been.
    dir(cache, image).join(".explicitly-pulled").try_exists().unwrap_or(true)
}

/// The cached digests of an image's repository.
pub(super) fn siblings(cache: &Path, image: &str) -> io::Result<Vec<String>> {
    let names = match fs::read_dir(cache.join(directory(repository(image)))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let names = names.map(|entry| Ok(entry?.file_name().into_string().ok()));
    let digests = names.filter_map(io::Result::transpose);
    Ok(digests
        .collect::<io::Result<Vec<_>>>()?
        .into_iter()
        .filter_map(|name| name.strip_prefix("sha256:").map(str::to_owned))
        .collect())
}

/// A repository as a path. tart writes a colon as `%3A`.
fn directory(repository: &str) -> String {
    repository.replace(':', "%3A")
}

#[derive(Default)]
struct Found {
    images: Vec<CachedImage>,
    tags: Vec<(String, ImageDigest)>,
}

fn walk(path: &Path, repository: &str, levels: usize, found: &mut Found) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        // It was deleted meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok(kind) = entry.file_type() else { continue };
        let digest_of = |digest: &str| ImageDigest::parse(&format!("{repository}@{digest}"));
        if kind.is_symlink() {
            let target = fs::read_link(entry.path()).ok();
            let digest = target.as_ref().and_then(|target| target.file_name()?.to_str());
            if let Some(digest) = digest.and_then(digest_of) {
                found.tags.push((format!("{repository}:{name}"), digest));
            }
        } else if let (true, Some(digest)) = (kind.is_dir(), digest_of(&name)) {
            if is_complete(&entry.path()) {
                found.images.push(CachedImage { digest, tags: Vec::new(), bytes: size(&entry.path()) });
            }
        } else if kind.is_dir() && levels > 0 && !name.starts_with('.') {
            let name = name.replace("%3A", ":");
            let inner = if repository.is_empty() { name } else { format!("{repository}/{name}") };
            walk(&entry.path(), &inner, levels - 1, found)?;
        }
    }
    Ok(())
}

/// The size of the files of a VM or of an image on disk.
pub(super) fn size(path: &Path) -> u64 {
    let files = fs::read_dir(path).into_iter().flatten().flatten();
    let sizes = files.filter_map(|file| file.metadata().ok()).filter(fs::Metadata::is_file);
    sizes.map(|metadata| metadata.blocks() * 512).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Restart, VmName};
    use crate::tart::{Tart, TartError};
    use crate::testing;
    use std::os::unix::fs::symlink;

    fn hex(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    #[test]
    fn complete_images_are_found_with_their_tags() {
        let dir = testing::dir();
        let cache = dir.path();
        assert_eq!(images(&cache.join("absent")).unwrap(), []);
        let repository = cache.join("registry.test%3A5000/team/macos");
        for (digit, files) in [
            ('a', vec!["config.json", "disk.img", "nvram.bin"]),
            ('b', vec!["config.json", "disk.img", "nvram.bin"]),
            ('c', vec!["config.json", "disk.img"]),
            ('e', vec!["config.json", "manifest.json", "overlay.asif", "nvram.bin"]),
        ] {
            let image = repository.join(format!("sha256:{}", hex(digit)));
            fs::create_dir_all(&image).unwrap();
            for file in files {
                fs::write(image.join(file), vec![1; 10_000]).unwrap();
            }
        }
        for (tag, digit) in [("2", 'b'), ("1", 'b'), ("gone", 'd')] {
            symlink(repository.join(format!("sha256:{}", hex(digit))), repository.join(tag)).unwrap();
        }
        let found = images(cache).unwrap();
        let names: Vec<_> =
            found.iter().map(|image| (image.digest.to_string(), image.tags.clone())).collect();
        let name = "registry.test:5000/team/macos";
        let expected = [
            (format!("{name}@sha256:{}", hex('a')), vec![]),
            (format!("{name}@sha256:{}", hex('b')), vec![format!("{name}:1"), format!("{name}:2")]),
            (format!("{name}@sha256:{}", hex('e')), vec![]),
        ];
        assert_eq!(names, expected);
        assert!(found[0].bytes >= 10_000, "{found:?}");
        assert!(has(cache, &found[0].digest));
        let partial = ImageDigest::parse(&format!("{name}@sha256:{}", hex('c'))).unwrap();
        assert!(!has(cache, &partial));
        let mut known = siblings(cache, &format!("{name}:1")).unwrap();
        known.sort();
        assert_eq!(known, ['a', 'b', 'c', 'e'].map(hex));
        assert_eq!(siblings(cache, "registry.test/other:1").unwrap(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn an_image_that_is_not_cached_is_not_cloned() {
        let home = testing::dir();
        let tart = Tart::in_home(Path::new("/nowhere/tart"), home.path());
        let image = format!("registry.test/macos@sha256:{}", hex('a'));
        let vm = VmName::new("0b1c".parse().unwrap(), Restart(0));
        let refused = tart.clone_image(&image, &vm).await.unwrap_err();
        assert!(matches!(refused, TartError::NotCached(_)), "{refused}");
        let dir = home.path().join("cache/OCIs/registry.test/macos").join(format!("sha256:{}", hex('a')));
        fs::create_dir_all(&dir).unwrap();
        for file in ["config.json", "disk.img", "nvram.bin"] {
            fs::write(dir.join(file), "").unwrap();
        }
        let failed = tart.clone_image(&image, &vm).await.unwrap_err();
        assert!(matches!(failed, TartError::Spawn { .. }), "the agent calls tart: {failed}");
    }
}
