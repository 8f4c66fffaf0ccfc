//! What a step is made of: one thing on a Mac that can be looked at, changed, and looked at again.

mod actions_runner;
mod auto_login;
mod binary;
mod bundle;
mod directory;
mod file;
mod job;
mod removed;
mod setting;
mod sudo;
mod tailnet;
mod vm_firewall;

pub(super) use actions_runner::{ActionsRunnerPart, ActionsRunnerRemoved};
pub(super) use auto_login::AutoLogin;
pub(super) use binary::Binary;
pub(super) use bundle::Bundle;
pub(super) use directory::Directory;
pub(super) use file::{Contents, File};
pub(super) use job::JobPart;
pub(super) use removed::Removed;
pub(super) use setting::{Reading, Setting, SettingOf};
pub(super) use sudo::Sudo;
pub(super) use tailnet::{Tailnet, tailnet_note};
pub(super) use vm_firewall::VmFirewall;

use std::time::Duration;

use launchd::{Call, CallOutput, HostError, RollError};
use serde::Serialize;

use super::change::Change;
use super::firewall::FirewallError;
use super::{Remote, Secret};

/// How long a small command may take.
const COMMAND_DEADLINE: Duration = Duration::from_secs(30);

/// Where the provider notes what it has put on a Mac. Only root can change it.
const NOTES: &str = "/var/db/dev.tuist.tart-provider";

/// One thing on a Mac. It is plain data: everything that it puts there is in it, and in the hash.
#[derive(Debug, Clone, Serialize)]
pub(super) enum Part {
    Sudo(Sudo),
    AutoLogin(AutoLogin),
    Setting(Setting),
    Directory(Directory),
    File(File),
    Removed(Removed),
    Binary(Binary),
    Bundle(Bundle),
    Job(JobPart),
    VmFirewall(VmFirewall),
    Tailnet(Tailnet),
    ActionsRunner(ActionsRunnerPart),
    ActionsRunnerRemoved(ActionsRunnerRemoved),
}

/// What a part may need once and does not keep.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inputs {
    /// The password of the user.
    pub(crate) password: Option<Secret>,
    /// The key with which the Mac joins the tailnet.
    pub(crate) tailscale_auth_key: Option<Secret>,
    /// The token with which the runner registers at GitHub.
    pub(crate) runner_token: Option<Secret>,
}

/// A part that could not be looked at or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartError {
    /// The Mac gave no answer.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A command failed.
    #[error("{program} failed ({code}): {message}")]
    Command {
        /// The program.
        program: String,
        /// Its exit code.
        code: i32,
        /// The last line of its standard error.
        message: String,
    },
    /// launchd did not get the job to run.
    #[error(transparent)]
    Roll(#[from] RollError),
    /// The firewall of VMs is not in force.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
    /// The Mac has other bytes than were sent.
    #[error("{path} arrived with SHA-256 {is} instead of {wanted}; the old file is untouched")]
    Damaged { path: String, is: String, wanted: String },
    /// The Mac has no room for the file.
    #[error(
        "{path} has {free} MB of free disk, and {needed} MB are needed for the new file; delete images or VMs, and run this again. The old \
         file is untouched"
    )]
    DiskFull { path: String, free: u64, needed: u64 },
    /// The new program does not run on the Mac.
    #[error("the new {program} does not run: {message}; the old one is untouched")]
    Broken { program: String, message: String },
    /// A password is needed.
    #[error(
        "{what} needs the password of {user}; give it with --password-stdin, or run `tart-provider host prepare`"
    )]
    NoPassword { what: &'static str, user: String },
    /// A key or token is needed.
    #[error("{what} needs {secret}; give it with {flag}")]
    NoSecret { what: &'static str, secret: &'static str, flag: &'static str },
    /// The Mac does not join the tailnet.
    #[error("tailscale does not join the tailnet: {message}")]
    Tailnet { message: String },
    /// The connection would cut itself.
    #[error(
        "{what} would cut this connection, which runs through the tailnet itself; run this by another address of the Mac"
    )]
    OverTailnet { what: String },
    /// The runner does not run.
    #[error("the Actions runner {label} does not run: {message}")]
    Runner { label: String, message: String },
    /// The password is wrong.
    #[error(
        "the password of {user} is wrong; it was tried once, since macOS locks accounts after a few wrong ones"
    )]
    WrongPassword { user: String },
    /// The Mac has no session at its screen.
    #[error(
        "{user} is not logged in at the screen of the Mac, without which no VM starts; restart the Mac, or log in over VNC"
    )]
    NoSession { user: String },
}

impl Part {
    /// How the Mac differs from this part.
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        match self {
            Self::Sudo(part) => part.check(mac).await,
            Self::AutoLogin(part) => part.check(mac).await,
            Self::Setting(part) => part.check(mac).await,
            Self::Directory(part) => part.check(mac).await,
            Self::File(part) => part.check(mac).await,
            Self::Removed(part) => part.check(mac).await,
            Self::Binary(part) => part.check(mac).await,
            Self::Bundle(part) => part.check(mac).await,
            Self::Job(part) => part.check(mac).await,
            Self::VmFirewall(part) => part.check(mac).await,
            Self::Tailnet(part) => part.check(mac).await,
            Self::ActionsRunner(part) => part.check(mac).await,
            Self::ActionsRunnerRemoved(part) => part.check(mac).await,
        }
    }

    /// Makes the Mac like this part. It is safe to repeat.
    pub(super) async fn apply<R: Remote>(&self, mac: &R, inputs: &Inputs) -> Result<(), PartError> {
        match self {
            Self::Sudo(part) => part.apply(mac, inputs).await,
            Self::AutoLogin(part) => part.apply(mac, inputs).await,
            Self::Setting(part) => part.apply(mac).await,
            Self::Directory(part) => part.apply(mac).await,
            Self::File(part) => part.apply(mac).await,
            Self::Removed(part) => part.apply(mac).await,
            Self::Binary(part) => part.apply(mac).await,
            Self::Bundle(part) => part.apply(mac).await,
            Self::Job(part) => part.apply(mac).await,
            Self::VmFirewall(part) => part.apply(mac).await,
            Self::Tailnet(part) => part.apply(mac, inputs).await,
            Self::ActionsRunner(part) => part.apply(mac, inputs).await,
            Self::ActionsRunnerRemoved(part) => part.apply(mac).await,
        }
    }
}

/// Runs a command as root; an exit code other than 0 is an error.
async fn run<R: Remote>(mac: &R, argv: &[&str]) -> Result<CallOutput, PartError> {
    run_within(mac, argv, COMMAND_DEADLINE).await
}

async fn run_within<R: Remote>(mac: &R, argv: &[&str], deadline: Duration) -> Result<CallOutput, PartError> {
    let call = Call::new(argv, deadline);
    succeeded(call, mac.run(call).await?)
}

fn succeeded(call: Call<'_>, output: CallOutput) -> Result<CallOutput, PartError> {
    if output.is_success() {
        return Ok(output);
    }
    let program = call.program().to_owned();
    Err(PartError::Command { program, code: output.code, message: output.message() })
}

/// The SHA-256 hash of a file on the Mac; `None` when there is no such file.
async fn sha256<R: Remote>(mac: &R, path: &str) -> Result<Option<String>, PartError> {
    if !mac.run(Call::new(&["/bin/test", "-f", path], COMMAND_DEADLINE)).await?.is_success() {
        return Ok(None);
    }
    let output = run_within(mac, &["/usr/bin/shasum", "-a", "256", path], Duration::from_mins(2)).await?;
    Ok(output.stdout.split_whitespace().next().map(str::to_owned))
}

/// What the Mac needs beside the files themselves: a disk that is filled to its last block keeps the agent that runs from its records.
const DISK_RESERVE: u64 = 64 << 20;

/// Refuses to copy a file for which the Mac has no room. `bytes` is all that the file will take at a time.
async fn ensure_room<R: Remote>(mac: &R, directory: &str, bytes: u64) -> Result<(), PartError> {
    let output = run(mac, &["/bin/df", "-k", directory]).await?;
    // A Mac whose answer is not understood is no full one: the copy itself fails where there is no room.
    let Some(free) = free_bytes(&output.stdout) else { return Ok(()) };
    let needed = bytes + DISK_RESERVE;
    if free >= needed {
        return Ok(());
    }
    Err(PartError::DiskFull {
        path: directory.to_owned(),
        free: free / 1_000_000,
        needed: needed.div_ceil(1_000_000),
    })
}

/// The free bytes in what `df -k` prints: the fourth word of its last line.
fn free_bytes(printed: &str) -> Option<u64> {
    let kibibytes: u64 = printed.lines().last()?.split_whitespace().nth(3)?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// What the provider has noted under a name.
async fn noted<R: Remote>(mac: &R, name: &str) -> Result<Option<String>, PartError> {
    let note = mac.read_file(&note_path(name)).await?;
    Ok(note.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
}

/// Notes something under a name.
async fn note<R: Remote>(mac: &R, name: &str, text: &str) -> Result<(), PartError> {
    make_directory(mac, NOTES).await?;
    let access = launchd::Access::root(0o644);
    Ok(mac.write_file(&note_path(name), format!("{text}\n").as_bytes(), &access).await?)
}

/// The file of a note.
fn note_path(name: &str) -> String {
    format!("{NOTES}/{name}")
}

/// Makes a directory of root, and those above it.
async fn make_directory<R: Remote>(mac: &R, path: &str) -> Result<(), PartError> {
    run(mac, &["/bin/mkdir", "-p", "-m", "755", path]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_disk_is_read_as_macos_prints_it() {
        let printed = "Filesystem   1024-blocks      Used Available Capacity iused      ifree %iused  Mounted on\n\
                       /dev/disk3s5   971350180 342016812 600214916    37%  3058264 6002149160    0%   /System/Volumes/Data\n";
        assert_eq!(free_bytes(printed), Some(600_214_916 << 10));
        for text in ["", "df: x: No such file or directory\n"] {
            assert_eq!(free_bytes(text), None, "{text}");
        }
    }
}
