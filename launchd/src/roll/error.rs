//! Why a roll failed, and what runs now.

use std::fmt;

use super::Diagnosis;
use crate::host::HostError;
use crate::job::JobError;
use crate::label::Label;
use crate::launchctl::{LaunchctlError, Registration};

/// A roll that failed.
#[derive(Debug, thiserror::Error)]
pub enum RollError {
    /// The job is none that launchd could run. Nothing was changed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The Mac gave no answer.
    #[error(transparent)]
    Host(#[from] HostError),
    /// `launchctl` failed.
    #[error(transparent)]
    Launchctl(#[from] LaunchctlError),
    /// The program is not there. Nothing was changed.
    #[error("{program} is missing or not executable; nothing was changed")]
    MissingProgram {
        /// The program.
        program: String,
    },
    /// The old program could not be put back.
    #[error("cannot rename {previous} to {program}: {message}")]
    PutBack {
        /// The old program's other name.
        previous: String,
        /// Its own name.
        program: String,
        /// What `mv` said.
        message: String,
    },
    /// launchd did not get the job to run.
    #[error("{label} does not run: {diagnosis} (launchd says: {seen}){fallback}")]
    NotRunning {
        /// The job.
        label: Label,
        /// Why.
        diagnosis: Diagnosis,
        /// What launchd said last.
        seen: Box<Registration>,
        /// What became of the old job.
        fallback: Fallback,
    },
}

/// What became of the old job after a roll that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fallback {
    /// There was no old job to go back to, or it would not help.
    None,
    /// The old job runs again.
    Restored {
        /// Its process.
        pid: u32,
    },
    /// The old job does not run either.
    Failed {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Restored { pid } => write!(f, "; the old one was put back and runs as PID {pid}"),
            Self::Failed { reason } => {
                write!(f, "; the old one was put back and does not run either: {reason}")
            }
        }
    }
}
