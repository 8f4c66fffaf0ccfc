//! `tart export` and `tart import`: a VM as one file.
//!
//! The real tart writes an Apple Archive. The simulator calls `tar`, which keeps holes, links and all else that a guest's files
//! consist of.

use std::io::{self, BufRead as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use tart_sim::Fault;

use crate::command::clone::avoid_mac_collision;
use crate::command::validation::local_name;
use crate::error::{Error, Result};
use crate::home::Home;
use crate::home::vm_dir::VmDir;
use crate::host::faults;
use crate::output::{file_error, stdout};

/// What a VM consists of while it does not run.
const PARTS: [&str; 6] =
    ["config.json", "disk.img", "nvram.bin", "guest/image.json", "guest/lower", "guest/upper"];

/// Writes a VM to a file. Without a path on the command line it asks before it overwrites the default file.
pub(crate) fn export(home: &Home, name: &str, path: Option<&str>) -> Result<()> {
    let file = path.map_or_else(|| PathBuf::from(format!("{name}.tvm")), PathBuf::from);
    if path.is_none() && file.exists() && !overwrite(&file)? {
        return Ok(());
    }
    stdout::line("exporting...");
    let vm = home.open_vm(name)?;
    let parts = PARTS.into_iter().filter(|part| vm.path().join(part).exists());
    tar(&vm, Command::new("tar").arg("--create").args(SPARSE).arg("--file").arg(absolute(&file)?).args(parts))
        .map_err(|problem| Error::runtime(format!("VM export failed: {problem}")))
}

/// Makes a VM from a file. Like a clone, it silently replaces a VM of that name.
pub(crate) fn import(home: &Home, path: &str, name: &str) -> Result<()> {
    local_name("<name>", name)?;
    let failed = |problem: String| Error::runtime(format!("VM import failed: {problem}"));
    let tmp = home.temporary()?;
    stdout::line("importing...");
    if faults::is_on_for(Fault::NoSpace, "import") {
        return Err(failed(file_error::out_of_space(&tmp.vm().disk_path())));
    }
    tar(
        tmp.vm(),
        Command::new("tar").arg("--extract").args(SPARSE).arg("--file").arg(absolute(Path::new(path))?),
    )
    .map_err(failed)?;
    tmp.vm().validate(name)?;
    let _lock = home.lock()?;
    avoid_mac_collision(home, tmp.vm())?;
    tmp.replace(home.vm_dir(name).path()).map_err(Error::other)
}

#[cfg(target_os = "linux")]
const SPARSE: [&str; 3] = ["--sparse", "--xattrs", "--xattrs-include=*"];
#[cfg(not(target_os = "linux"))]
const SPARSE: [&str; 0] = [];

fn tar(vm: &VmDir, command: &mut Command) -> Result<(), String> {
    let output = command.current_dir(vm.path()).output().map_err(|error| format!("tar: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("tar failed").into())
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(Error::other)
}

fn overwrite(path: &Path) -> Result<bool> {
    stdout::write(&format!(
        "file {} already exists, are you sure you want to overwrite it? (y/N) ",
        path.display()
    ));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(Error::other)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
