//! The names of shares, and the paths that tart can share.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use k8s_openapi::api::core::v1::VolumeMount;

/// The accesses that the mounts of a volume ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ShareAccess {
    pub(super) writable: bool,
    pub(super) read_only: bool,
}

impl ShareAccess {
    /// The accesses that these mounts ask for. A read-only volume is read-only for all.
    pub(super) fn of<'a>(mounts: impl Iterator<Item = &'a VolumeMount>, volume_is_writable: bool) -> Self {
        mounts.fold(Self::default(), |access, mount| {
            let read_only = is_read_only(mount, volume_is_writable);
            Self { writable: access.writable || !read_only, read_only: access.read_only || read_only }
        })
    }
}

pub(super) fn is_read_only(mount: &VolumeMount, volume_is_writable: bool) -> bool {
    mount.read_only.unwrap_or(false) || !volume_is_writable
}

/// The name of a volume's share in the guest: that of the volume. A volume with both accesses has two shares.
pub(super) fn name(volume: &str, access: ShareAccess, read_only: bool) -> String {
    // No name of a volume has a dot.
    match volume {
        _ if read_only && access.writable => format!("{volume}.ro"),
        // tart takes `http:` and `https:` for a URL.
        "http" | "https" => format!("{volume}.volume"),
        _ => volume.to_owned(),
    }
}

/// Whether tart reads a path in `--dir=name:path` as that path. It takes the part after the last `:` for options with commas between
/// them.
pub(super) fn is_shareable(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let is_option = |part: &[u8]| part == b"ro" || part.starts_with(b"tag=");
    !bytes.contains(&b':') && !bytes.split(|byte| *byte == b',').any(is_option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(read_only: bool) -> VolumeMount {
        VolumeMount { read_only: Some(read_only), ..VolumeMount::default() }
    }

    #[test]
    fn a_volume_is_shared_under_its_own_name() {
        let names = |mounts: &[bool], writable| -> Vec<String> {
            let mounts: Vec<_> = mounts.iter().map(|read_only| mount(*read_only)).collect();
            let access = ShareAccess::of(mounts.iter(), writable);
            mounts.iter().map(|mount| name("data", access, is_read_only(mount, writable))).collect()
        };
        assert_eq!(names(&[false, false], true), ["data", "data"]);
        assert_eq!(names(&[true], true), ["data"]);
        assert_eq!(names(&[true, false], true), ["data.ro", "data"]);
        assert_eq!(names(&[true, false], false), ["data", "data"]);
    }

    #[test]
    fn no_name_is_taken_for_a_url() {
        let writable = ShareAccess { writable: true, read_only: true };
        for volume in ["http", "https"] {
            assert_ne!(name(volume, writable, false), volume);
            assert_ne!(name(volume, writable, true), name(volume, writable, false));
        }
    }

    #[test]
    fn a_path_that_tart_would_misread_is_not_shareable() {
        for good in ["/data", "/data/ro", "/a,b", "/tag=x", "/a, ro"] {
            assert!(is_shareable(Path::new(good)), "{good}");
        }
        for bad in ["/a:b", "/a:ro", "/a,ro", "/a,tag=x", "/a,ro,b"] {
            assert!(!is_shareable(Path::new(bad)), "{bad}");
        }
    }
}
