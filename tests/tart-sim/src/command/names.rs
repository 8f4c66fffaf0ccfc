//! Commands about a VM's name: `tart rename`, `tart delete`, `tart fqn`.

use std::fs;
use std::io;

use crate::command::validation::local_name;
use crate::error::{Error, Result};
use crate::home::{self, Home};
use crate::oci::{Cache, RemoteName};
use crate::output::stdout;

/// Renames a local VM.
pub(crate) fn rename(home: &Home, name: &str, new_name: &str) -> Result<()> {
    local_name("<new-name>", new_name)?;
    let (old, new) = (home.vm_dir(name), home.vm_dir(new_name));
    if !old.is_initialized() {
        return Err(Error::usage(format!("failed to rename a non-existent local VM: {name}")));
    }
    if new.is_initialized() {
        return Err(Error::usage(format!(
            "failed to rename VM {name}, target VM {new_name} already exists, delete it first!"
        )));
    }
    fs::rename(old.path(), new.path()).map_err(Error::other)
}

/// Deletes VMs and cached images one after the other, up to the first that it cannot delete.
pub(crate) fn delete(home: &Home, names: &[String]) -> Result<()> {
    names.iter().try_for_each(|name| match RemoteName::parse(name) {
        Ok(remote) => Cache::new(home).delete(&remote).map_err(|error| missing(name, &error)),
        Err(_) => delete_local(home, name),
    })
}

/// Deletes a local VM. A directory without `config.json` cannot be locked, so it counts as missing and stays.
fn delete_local(home: &Home, name: &str) -> Result<()> {
    let vm = home.vm_dir(name);
    let lock = vm.lock_for_running().map_err(|error| missing(name, &error))?;
    if lock.is_none() {
        return Err(Error::vm_is_running(name));
    }
    home::remove(vm.path()).map_err(Error::other)
}

fn missing(name: &str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Error::vm_does_not_exist(name),
        _ => Error::other(error),
    }
}

/// Prints a cached image's name with its digest, and a local name as it is.
pub(crate) fn fqn(home: &Home, name: &str) -> Result<()> {
    let Ok(remote) = RemoteName::parse(name) else {
        stdout::line(name);
        return Ok(());
    };
    let digest = Cache::new(home).digest(&remote).ok_or_else(|| {
        Error::runtime(format!("OCI storage error: {remote} is not a digest and doesn't point to a digest"))
    })?;
    stdout::line(remote.with_digest(&digest).to_string());
    Ok(())
}
