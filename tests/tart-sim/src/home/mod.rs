//! `TART_HOME`: one user's VMs, image cache and temporary files.

pub(crate) mod config;
pub(crate) mod copy;
pub(crate) mod disk_space;
pub(crate) mod file_lock;
pub(crate) mod identity;
pub(crate) mod image;
pub(crate) mod prunable;
pub(crate) mod vm_dir;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::home::file_lock::FileLock;
use crate::home::vm_dir::VmDir;
use crate::oci;
use crate::output::file_error;

/// The directory that holds everything of one user.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    path: PathBuf,
}

impl Home {
    /// Finds `TART_HOME` (else `~/.tart`) and makes sure that it exists.
    pub(crate) fn open() -> Result<Self> {
        let path = match env::var_os("TART_HOME") {
            Some(path) => PathBuf::from(path),
            None => env::home_dir().unwrap_or_default().join(".tart"),
        };
        let path = std::path::absolute(&path).map_err(Error::other)?;
        fs::create_dir_all(&path).map_err(|error| {
            let missing = path.ancestors().filter(|p| !p.exists()).last().unwrap_or(&path);
            Error::runtime(format!(
                "TART_HOME is invalid: {} does not exist, yet we can't create it: {}",
                missing.display(),
                file_error::creating(missing, &error)
            ))
        })?;
        // A link stays what it is, as in tart: its target may have characters that tart cannot take.
        let home = Self { path };
        for dir in [home.vms(), home.oci_cache(), home.ipsw_cache(), home.tmp()] {
            fs::create_dir_all(&dir).map_err(|error| Error::other(file_error::creating(&dir, &error)))?;
        }
        Ok(home)
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// One directory per local VM.
    pub(crate) fn vms(&self) -> PathBuf {
        self.path.join("vms")
    }

    /// The images of remote registries, by host, repository and digest.
    pub(crate) fn oci_cache(&self) -> PathBuf {
        self.path.join("cache/OCIs")
    }

    /// Downloaded macOS restore images.
    pub(crate) fn ipsw_cache(&self) -> PathBuf {
        self.path.join("cache/IPSWs")
    }

    /// Unfinished VMs and images. Any command may remove what is not locked in there.
    pub(crate) fn tmp(&self) -> PathBuf {
        self.path.join("tmp")
    }

    /// Takes the global lock, which serialises clones, imports and the start of VMs.
    pub(crate) fn lock(&self) -> Result<FileLock> {
        FileLock::wait(&self.path).map_err(Error::other)
    }

    /// The directory of a local VM, whether or not it exists.
    pub(crate) fn vm_dir(&self, name: &str) -> VmDir {
        VmDir::new(self.vms().join(name))
    }

    /// Opens a local VM, which has to be complete. It counts as used now.
    pub(crate) fn open_local(&self, name: &str) -> Result<VmDir> {
        open(self.vm_dir(name), name)
    }

    /// Opens a VM by local or remote name.
    pub(crate) fn open_vm(&self, name: &str) -> Result<VmDir> {
        match oci::RemoteName::parse(name) {
            Ok(remote) => open(oci::Cache::new(self).vm_dir(&remote), name),
            Err(_) => self.open_local(name),
        }
    }

    /// All complete local VMs, by name.
    pub(crate) fn local_vms(&self) -> Result<Vec<(String, VmDir)>> {
        let mut vms: Vec<_> = entries(&self.vms())
            .map_err(Error::other)?
            .into_iter()
            .filter_map(|path| {
                let name = path.file_name()?.to_str()?.to_owned();
                Some((name, VmDir::new(path)))
            })
            .filter(|(_, vm)| vm.is_initialized())
            .collect();
        vms.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(vms)
    }

    /// Removes what crashed commands left in `tmp`: all that is not locked.
    pub(crate) fn collect_garbage(&self) -> io::Result<()> {
        for path in entries(&self.tmp())? {
            // Another command may remove it at the same time.
            match FileLock::attempt(&path) {
                Ok(Some(lock)) if lock.is_at(&path)? => remove(&path)?,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A fresh directory in `tmp`, locked so that no other command takes it for garbage.
    pub(crate) fn temporary(&self) -> Result<Temporary> {
        Temporary::create(self.tmp().join(uuid())).map_err(Error::other)
    }
}

/// A directory in `tmp`, locked so that no command removes it as garbage. After a failure it stays until another command removes
/// it.
#[derive(Debug)]
pub(crate) struct Temporary {
    vm: VmDir,
    _lock: FileLock,
}

impl Temporary {
    /// Creates (or takes over) and locks a directory. Tries again while other commands remove it as garbage before it is locked.
    pub(crate) fn create(path: PathBuf) -> io::Result<Self> {
        loop {
            fs::create_dir_all(&path)?;
            match FileLock::wait(&path) {
                Ok(lock) if lock.is_at(&path)? => return Ok(Self { vm: VmDir::new(path), _lock: lock }),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The VM that is being put together in there.
    pub(crate) fn vm(&self) -> &VmDir {
        &self.vm
    }

    /// Removes the directory at once if the result is a cancellation.
    pub(crate) fn discard_if_cancelled<T>(&self, result: Result<T>) -> Result<T> {
        if result.as_ref().is_err_and(Error::is_cancellation) {
            remove(self.vm.path()).map_err(Error::other)?;
        }
        result
    }

    /// Moves the directory to its place, silently replacing whatever is there.
    pub(crate) fn replace(&self, target: &Path) -> io::Result<()> {
        // Rename the old directory first: other commands see either of the two, or for an instant none.
        let aside = self.vm.path().with_extension("replaced");
        match fs::rename(target, &aside) {
            Ok(()) => {
                fs::rename(self.vm.path(), target)?;
                remove(&aside)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::rename(self.vm.path(), target),
            Err(error) => Err(error),
        }
    }
}

fn open(vm: VmDir, name: &str) -> Result<VmDir> {
    vm.validate(name)?;
    vm.touch().map_err(Error::other)?;
    Ok(vm)
}

/// The entries of a directory, hidden ones left out.
pub(crate) fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

/// Removes a file or a directory tree; one that is gone already is no error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.symlink_metadata().is_ok_and(|m| m.is_dir()) {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A random identifier for a temporary file.
pub(crate) fn uuid() -> String {
    let bits = fastrand::u128(..) & !(0xf000 << 64) & !(0xc000 << 48) | (0x4000 << 64) | (0x8000 << 48);
    let hex = format!("{bits:032X}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
