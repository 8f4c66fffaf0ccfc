//! Why a call gave no answer.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use crate::Output;

/// A call that gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program could not be started, or not be waited for.
    #[error("cannot run {}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The program did not end before its deadline, and was killed.
    #[error("{} did not answer within {} s", program.display(), deadline.as_secs())]
    DeadlineExceeded {
        /// The program.
        program: PathBuf,
        /// The deadline.
        deadline: Duration,
    },
    /// The program ended with an exit status other than 0.
    #[error("{} failed ({status}): {message}", program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// The last line of its standard error.
        message: String,
    },
}

impl CommandError {
    pub(crate) fn run(program: &OsStr, source: io::Error) -> Self {
        Self::Run { program: program.into(), source }
    }

    pub(crate) fn failed(program: &Path, output: &Output) -> Self {
        let last = output.stderr.lines().rev().map(str::trim).find(|line| !line.is_empty());
        let message = last.unwrap_or("it said nothing").chars().take(300).collect();
        Self::Failed { program: program.to_owned(), status: output.status, message }
    }
}
