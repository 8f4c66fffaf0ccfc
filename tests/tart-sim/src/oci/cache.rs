//! The cache of pulled images: one directory per digest, one symbolic link per tag.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::name::{Reference, RemoteName};
use crate::home::vm_dir::VmDir;
use crate::home::{self, Home, Temporary};

/// The name of the file that keeps an image which no tag points to: it was pulled by its digest.
const EXPLICITLY_PULLED: &str = ".explicitly-pulled";

/// One name in the cache; an image that was pulled by tag has two.
#[derive(Debug)]
pub(crate) struct Cached {
    /// `host/namespace:tag` or `host/namespace@sha256:…`.
    pub(crate) name: String,
    /// Where the name leads.
    pub(crate) vm: VmDir,
    /// Whether this is a tag.
    pub(crate) is_tag: bool,
}

/// The cache of one user.
#[derive(Debug)]
pub(crate) struct Cache {
    path: PathBuf,
}

impl Cache {
    /// The cache under this home.
    pub(crate) fn new(home: &Home) -> Self {
        Self { path: home.oci_cache() }
    }

    /// Where an image of that name is, or would be.
    pub(crate) fn vm_dir(&self, name: &RemoteName) -> VmDir {
        VmDir::new(self.host_dir(name).join(&name.namespace).join(name.reference.value()))
    }

    /// The directory whose lock serialises the pulls from one registry.
    pub(crate) fn host_dir(&self, name: &RemoteName) -> PathBuf {
        self.path.join(name.host.replace(':', "%3A"))
    }

    /// Whether the image is complete.
    pub(crate) fn exists(&self, name: &RemoteName) -> bool {
        self.vm_dir(name).is_initialized()
    }

    /// Whether a tag leads to that digest.
    pub(crate) fn is_linked(&self, tag: &RemoteName, digest: &RemoteName) -> bool {
        fs::read_link(self.vm_dir(tag).path()).is_ok_and(|target| target == self.vm_dir(digest).path())
    }

    /// Moves a complete image to its place.
    pub(crate) fn adopt(&self, digest: &RemoteName, image: &Temporary) -> io::Result<()> {
        fs::create_dir_all(self.host_dir(digest).join(&digest.namespace))?;
        image.replace(self.vm_dir(digest).path())
    }

    /// Makes a tag lead to that digest, and removes images that no name leads to any more.
    pub(crate) fn link(&self, tag: &RemoteName, digest: &RemoteName) -> io::Result<()> {
        let link = self.vm_dir(tag);
        home::remove(link.path())?;
        symlink(self.vm_dir(digest).path(), link.path())?;
        self.collect_garbage()
    }

    /// Keeps an image although no tag leads to it.
    pub(crate) fn mark_explicitly_pulled(&self, digest: &RemoteName) -> io::Result<()> {
        fs::write(self.vm_dir(digest).path().join(EXPLICITLY_PULLED), "")
    }

    /// The digest that a name stands for, if it is in the cache.
    pub(crate) fn digest(&self, name: &RemoteName) -> Option<String> {
        match &name.reference {
            Reference::Digest(digest) => {
                // It leads elsewhere when a registry has answered with another manifest.
                let target = fs::read_link(self.vm_dir(name).path()).ok();
                let other = target.as_ref().and_then(|target| target.file_name()?.to_str());
                Some(other.unwrap_or(digest).to_owned())
            }
            Reference::Tag(_) => {
                let target = fs::read_link(self.vm_dir(name).path()).ok()?;
                Some(target.file_name()?.to_str()?.to_owned())
            }
        }
    }

    /// Removes a name, and the image if this was the last one.
    pub(crate) fn delete(&self, name: &RemoteName) -> io::Result<()> {
        let path = self.vm_dir(name).path().to_owned();
        // Fails when there is nothing, unlike the removal below.
        fs::symlink_metadata(&path)?;
        home::remove(&path)?;
        self.collect_garbage()
    }

    /// All names in the cache that lead to a complete image.
    pub(crate) fn list(&self) -> io::Result<Vec<Cached>> {
        let mut found = Vec::new();
        self.walk(&self.path, &mut found)?;
        found.retain(|cached| cached.vm.is_initialized());
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Removes dangling tags, and the images that no tag leads to unless they were pulled by digest.
    pub(crate) fn collect_garbage(&self) -> io::Result<()> {
        let mut found = Vec::new();
        self.walk(&self.path, &mut found)?;
        let mut references: HashMap<PathBuf, usize> = HashMap::new();
        for cached in &found {
            if !cached.is_tag {
                references.entry(cached.vm.path().to_owned()).or_default();
            } else if cached.vm.path().exists() {
                *references.entry(fs::read_link(cached.vm.path())?).or_default() += 1;
            } else {
                home::remove(cached.vm.path())?;
            }
        }
        for (image, count) in references {
            if count == 0 && !image.join(EXPLICITLY_PULLED).exists() {
                home::remove(&image)?;
            }
        }
        Ok(())
    }

    fn walk(&self, dir: &Path, found: &mut Vec<Cached>) -> io::Result<()> {
        for path in home::entries(dir)? {
            let kind = match path.symlink_metadata() {
                Ok(metadata) => metadata.file_type(),
                // Another command removed it in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let leaf = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let repository =
                dir.strip_prefix(&self.path).unwrap_or(dir).to_string_lossy().replace("%3A", ":");
            if kind.is_symlink() {
                found.push(Cached {
                    name: format!("{repository}:{leaf}"),
                    vm: VmDir::new(path),
                    is_tag: true,
                });
            } else if leaf.starts_with("sha256:") {
                found.push(Cached {
                    name: format!("{repository}@{leaf}"),
                    vm: VmDir::new(path),
                    is_tag: false,
                });
            } else if kind.is_dir() {
                self.walk(&path, found)?;
            }
        }
        Ok(())
    }
}
