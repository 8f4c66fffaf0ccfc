//! What a step is made of: one thing on a Mac that can be looked at, changed, and looked at again.

mod auto_login;
mod binary;
mod bundle;
mod directory;
mod file;
mod job;
mod removed;
mod setting;
mod sudo;

pub(super) use auto_login::AutoLogin;
pub(super) use binary::Binary;
pub(super) use bundle::Bundle;
pub(super) use directory::Directory;
pub(super) use file::{Contents, File};
pub(super) use job::JobPart;
pub(super) use removed::Removed;
pub(super) use setting::{Reading, Setting, SettingOf};
pub(super) use sudo::Sudo;

use std::time::Duration;

use launchd::{Call, CallOutput, HostError, RollError};
use serde::Serialize;

use super::change::Change;
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
}

/// What a part may need once and does not keep.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inputs {
    /// The password of the user.
    pub(crate) password: Option<Secret>,
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
    /// The Mac has other bytes than were sent.
    #[error("{path} arrived with SHA-256 {is} instead of {wanted}; the old file is untouched")]
    Damaged { path: String, is: String, wanted: String },
    /// The new program does not run on the Mac.
    #[error("the new {program} does not run: {message}; the old one is untouched")]
    Broken { program: String, message: String },
    /// A password is needed.
    #[error(
        "{what} needs the password of {user}; give it with --password-stdin, or run `tart-provider host prepare`"
    )]
    NoPassword { what: &'static str, user: String },
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

/// What the provider has noted under a name.
async fn noted<R: Remote>(mac: &R, name: &str) -> Result<Option<String>, PartError> {
    let note = mac.read_file(&format!("{NOTES}/{name}")).await?;
    Ok(note.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
}

/// Notes something under a name.
async fn note<R: Remote>(mac: &R, name: &str, text: &str) -> Result<(), PartError> {
    make_directory(mac, NOTES).await?;
    let access = launchd::Access::root(0o644);
    Ok(mac.write_file(&format!("{NOTES}/{name}"), format!("{text}\n").as_bytes(), &access).await?)
}

/// Makes a directory of root, and those above it.
async fn make_directory<R: Remote>(mac: &R, path: &str) -> Result<(), PartError> {
    run(mac, &["/bin/mkdir", "-p", "-m", "755", path]).await.map(drop)
}
