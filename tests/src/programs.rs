//! Finds the programs that tests start, and writes those that they make up.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::sandbox::Sandbox;

/// A cold build of everything takes 8 minutes on two idle cores.
const BUILD_DEADLINE: Duration = Duration::from_hours(1);

/// Finds a program of this workspace next to the running one.
pub fn find(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    let mut directory = this.parent().context("this program is in no directory")?;
    // Cargo puts test executables one level below the programs.
    if directory.ends_with("deps") || directory.ends_with("examples") {
        directory = directory.parent().unwrap_or(directory);
    }
    let program = directory.join(name);
    ensure!(
        program.is_file(),
        "{} is not built: run `make test`, or `cargo build --workspace`",
        program.display()
    );
    Ok(program)
}

/// Finds the agent: the one that `TART_KUBELET_BINARY` names, or the one next to the running program.
pub fn agent() -> Result<PathBuf> {
    named_or_near("TART_KUBELET_BINARY", "tart-kubelet")
}

/// Finds the simulated tart: the one that `TART_SIM_BINARY` names, or the one next to the running program.
pub fn simulated_tart() -> Result<PathBuf> {
    named_or_near("TART_SIM_BINARY", "tart")
}

/// Finds the provider: the one that `TART_PROVIDER_BINARY` names, or the one next to the running program.
pub fn provider() -> Result<PathBuf> {
    named_or_near("TART_PROVIDER_BINARY", "tart-provider")
}

fn named_or_near(variable: &str, name: &str) -> Result<PathBuf> {
    match std::env::var_os(variable) {
        Some(program) => std::path::absolute(&program).with_context(|| format!("{variable} is empty")),
        None => find(name),
    }
}

/// Writes a script that can be started at once.
///
/// A child writes it: while another thread starts a program, that has whatever this process has open for writing, and nothing starts a
/// file that a process may still write to.
pub fn write(path: &Path, script: &str) -> Result<()> {
    let mut child = Command::new("sh")
        .args(["-c", r#"cat >"$0" && chmod 755 "$0""#])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot start sh")?;
    child.stdin.take().context("its stdin is not a pipe")?.write_all(script.as_bytes())?;
    ensure!(child.wait()?.success(), "cannot write {}", path.display());
    Ok(())
}

/// Whether the agent knows a variable that only builds for tests read.
pub fn agent_knows(variable: &str) -> Result<bool> {
    let program = agent()?;
    let bytes = std::fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    Ok(String::from_utf8_lossy(&bytes).contains(variable))
}

/// Finds a file of a Debian package, from the machine or unpacked from the package.
pub fn debian(package: &str, pattern: &str) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("debian/unpack");
    let output = Command::new(&script)
        .args([package, pattern])
        .output()
        .with_context(|| format!("cannot start {}", script.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{package} is needed: {said}");
    let path = String::from_utf8(output.stdout).context("a path that is not UTF-8")?;
    Ok(PathBuf::from(path.trim_end()))
}

/// Finds programs of the control plane, building what is missing, and returns the directory that holds them.
///
/// What takes minutes is told on stderr.
pub async fn control_plane(sandbox: &Sandbox, names: &[&str]) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("control-plane/build");
    let mut command = tokio::process::Command::from(sandbox.command(&script));
    let run = command.args(names).stderr(Stdio::inherit()).kill_on_drop(true).output();
    let output = tokio::time::timeout(BUILD_DEADLINE, run)
        .await
        .with_context(|| format!("{} did not end within {BUILD_DEADLINE:?}", script.display()))?
        .with_context(|| format!("cannot start {}", script.display()))?;
    ensure!(output.status.success(), "cannot get {}: see above ({})", names.join(", "), output.status);
    let directory = String::from_utf8(output.stdout).context("a cache directory that is not UTF-8")?;
    Ok(PathBuf::from(directory.trim_end()))
}
