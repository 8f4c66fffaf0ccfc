//! What is kept of a fleet that did not do as it should: the logs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tart_kubelet_tests::sandbox::Sandbox;

/// Logs below the sandbox: those of programs, and those of the agents on the Macs.
const DEPTH: usize = 6;
/// A log that is longer is cut at its beginning.
const LONGEST: usize = 32 << 20;

/// Copies the logs to a directory beside the programs, and returns it.
pub(crate) fn keep(sandbox: &Sandbox) -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let target = program.parent().and_then(Path::parent).context("this program is in no directory")?;
    let directory = target.join("fleet-demo");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    copy_logs(sandbox.path(), "", &directory, DEPTH)?;
    Ok(directory)
}

fn copy_logs(from: &Path, prefix: &str, to: &Path, depth: usize) -> Result<()> {
    for entry in fs::read_dir(from)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        if kind.is_dir() && depth > 0 {
            // What is not to be read is not the fleet's.
            let _ = copy_logs(&entry.path(), &path, to, depth - 1);
        } else if kind.is_file()
            && (name == "log" || entry.path().extension().is_some_and(|extension| extension == "log"))
        {
            let bytes = fs::read(entry.path())?;
            fs::write(to.join(path), &bytes[bytes.len().saturating_sub(LONGEST)..])?;
        }
    }
    Ok(())
}
