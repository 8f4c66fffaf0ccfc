//! What has happened on a Mac, by other words than the agent's: the simulator's record of runs, what guests wrote down, and foreign VMs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, UpdateKind};

use super::oracle::Testimony;
use super::pod_kind::FORGED_CPUS;

/// How the names of the agent's VMs begin, and those of its base VMs.
const OWN: &str = "tk-";
const BASE: &str = "tk-base-";

/// Fails if a VM of a Pod has started twice; returns how many have started.
pub(crate) fn no_vm_ran_twice(host: &Path) -> Result<usize> {
    let text = read_or_empty(&host.join("runs"))?;
    let mut seen = BTreeSet::new();
    for vm in text.lines().filter(|vm| vm.starts_with(OWN)) {
        ensure!(seen.insert(vm), "{vm} has run twice");
    }
    Ok(seen.len())
}

/// What the guests of a Pod wrote down.
pub(crate) fn testimony(directory: &Path) -> Result<Testimony> {
    let text = read_or_empty(&directory.join("log"))?;
    let begins = text.lines().filter(|line| *line == "begin").count();
    let ends = text.lines().filter_map(|line| line.strip_prefix("end ")?.parse().ok()).collect();
    Ok(Testimony { begins, ends })
}

fn read_or_empty(path: &Path) -> Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text.with_context(|| format!("cannot read {}", path.display())),
    }
}

/// A VM that a user made with tart, and its files when it was made.
#[derive(Debug, Clone)]
pub(crate) struct ForeignVm {
    directory: PathBuf,
    files: BTreeMap<PathBuf, (u64, u64, i64)>,
}

impl ForeignVm {
    pub(crate) fn new(directory: PathBuf) -> Result<Self> {
        Ok(Self { files: files_of(&directory)?, directory })
    }

    pub(crate) fn ensure_untouched(&self) -> Result<()> {
        let now = files_of(&self.directory).with_context(|| format!("foreign VM {}", self.name()))?;
        ensure!(now == self.files, "the foreign VM {} was {:?} and is {now:?}", self.name(), self.files);
        Ok(())
    }

    fn name(&self) -> String {
        self.directory.display().to_string()
    }
}

/// The files that make the VM, with inode, size and time.
fn files_of(directory: &Path) -> Result<BTreeMap<PathBuf, (u64, u64, i64)>> {
    let of = |name: &str| {
        let path = directory.join(name);
        let metadata = fs::metadata(&path).with_context(|| format!("{} is gone", path.display()))?;
        Ok((path, (metadata.ino(), metadata.len(), metadata.mtime())))
    };
    ["config.json", "disk.img", "nvram.bin"].into_iter().map(of).collect()
}

/// The VMs of Pods that are on a Mac, running or not.
pub(crate) fn vms_of_pods(tart_home: &Path) -> Result<Vec<String>> {
    let names = names_in(&tart_home.join("vms"))?.into_iter();
    // Foreign ones are named so that only a person can tell.
    let is_of_pod = |name: &String| {
        name.starts_with(OWN) && !name.starts_with(BASE) && !name.starts_with(super::world::FOREIGN)
    };
    Ok(names.filter(is_of_pod).collect())
}

/// Fails if a VM has been made of an image that is not what its digest says: neither a base VM nor one of a Pod may be.
pub(crate) fn no_vm_of_forged_image(tart_home: &Path) -> Result<()> {
    let vms = tart_home.join("vms");
    for name in names_in(&vms)? {
        // A VM may be deleted meanwhile, or not be whole yet: the next look sees it.
        let Ok(text) = fs::read_to_string(vms.join(&name).join("guest/image.json")) else { continue };
        let Ok(image) = serde_json::from_str::<serde_json::Value>(&text) else { continue };
        ensure!(image["cpu"] != FORGED_CPUS, "{name} is a VM of an image that is not what its digest says");
    }
    Ok(())
}

/// The names in a directory, which may be absent.
pub(crate) fn names_in(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot list {}", directory.display()))?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Sends a signal to the processes whose arguments a test accepts; returns how many there were.
pub(crate) fn signal_processes(signal: Signal, is_meant: impl Fn(&[String]) -> bool) -> Result<usize> {
    let mut system = System::new().context("cannot read the process table")?;
    let what = ProcessRefreshKind::nothing().without_tasks().with_cmd(UpdateKind::Always);
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, what);
    let mut found = 0;
    for process in system.processes().values() {
        let arguments: Vec<_> =
            process.cmd().iter().map(|word| word.to_string_lossy().into_owned()).collect();
        if is_meant(&arguments) {
            // It may have ended meanwhile.
            let _ = kill(Pid::from_raw(process.pid().as_u32().try_into()?), signal);
            found += 1;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_that_runs_twice_is_found() {
        let host = tempfile::tempdir().unwrap();
        assert_eq!(no_vm_ran_twice(host.path()).unwrap(), 0);
        fs::write(host.path().join("runs"), "tk-a-0\nbuilder\ntk-a-1\nbuilder\n").unwrap();
        assert_eq!(no_vm_ran_twice(host.path()).unwrap(), 2);
        fs::write(host.path().join("runs"), "tk-a-0\ntk-b-0\ntk-a-0\n").unwrap();
        assert_eq!(no_vm_ran_twice(host.path()).unwrap_err().to_string(), "tk-a-0 has run twice");
    }

    #[test]
    fn a_vm_of_a_forged_image_is_found() {
        let home = tempfile::tempdir().unwrap();
        no_vm_of_forged_image(home.path()).unwrap();
        for (name, cpus) in [("tk-base-good", 4), ("tk-base-forged", FORGED_CPUS)] {
            let guest = home.path().join("vms").join(name).join("guest");
            fs::create_dir_all(&guest).unwrap();
            no_vm_of_forged_image(home.path()).unwrap();
            fs::write(guest.join("image.json"), format!("{{\"cpu\": {cpus}}}")).unwrap();
        }
        let found = no_vm_of_forged_image(home.path()).unwrap_err().to_string();
        assert!(found.starts_with("tk-base-forged"), "{found}");
    }

    #[test]
    fn a_foreign_vm_that_is_touched_is_found() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["config.json", "disk.img", "nvram.bin"] {
            fs::write(directory.path().join(name), name).unwrap();
        }
        let vm = ForeignVm::new(directory.path().to_owned()).unwrap();
        vm.ensure_untouched().unwrap();
        fs::write(directory.path().join("config.json"), "another machine").unwrap();
        vm.ensure_untouched().unwrap_err();
        fs::remove_file(directory.path().join("disk.img")).unwrap();
        vm.ensure_untouched().unwrap_err();
    }

    #[test]
    fn what_a_guest_wrote_down_is_read_line_by_line() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(testimony(directory.path()).unwrap(), Testimony::default());
        fs::write(directory.path().join("log"), "begin\nend 7\nbegin\nen").unwrap();
        assert_eq!(testimony(directory.path()).unwrap(), Testimony { begins: 2, ends: vec![7] });
    }
}
