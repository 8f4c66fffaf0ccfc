//! How tart prints a failure, and which exit code it has.

use std::fmt::Display;

const CANCELLATION: &str = "CancellationError()";

/// Why a command failed, by the way it is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Error {
    /// tart's own run-time error: the bare description on stderr.
    Runtime {
        /// The whole text on stderr.
        message: String,
        /// 2 for the errors about a VM that is missing or in the wrong state, 1 for all others.
        exit_code: u8,
    },
    /// Any other error: `Error: <description>`, exit code 1.
    Other(String),
    /// A validation error: `Error: <message>` and the command's usage, exit code 64.
    Usage(String),
}

/// The result of anything that can fail the way tart does.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A run-time error with exit code 1.
    pub(crate) fn runtime(message: impl Into<String>) -> Self {
        Self::Runtime { message: message.into(), exit_code: 1 }
    }

    /// An error that is none of tart's own: printed with the prefix `Error: `.
    pub(crate) fn other(message: impl Display) -> Self {
        Self::Other(message.to_string())
    }

    /// A refusal of the command line, printed with the command's usage.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// There is no VM of that name.
    pub(crate) fn vm_does_not_exist(name: &str) -> Self {
        Self::vm_state(format!("the specified VM \"{name}\" does not exist"))
    }

    /// The command needs a running VM.
    pub(crate) fn vm_not_running(name: &str) -> Self {
        Self::vm_state(format!("VM \"{name}\" is not running"))
    }

    /// `run` of a VM that runs.
    pub(crate) fn vm_already_running(name: &str) -> Self {
        Self::vm_state(format!("VM \"{name}\" is already running!"))
    }

    /// The command needs a stopped VM.
    pub(crate) fn vm_is_running(name: &str) -> Self {
        Self::runtime(format!("VM \"{name}\" is running"))
    }

    /// SIGINT arrived.
    pub(crate) fn cancelled() -> Self {
        Self::Other(CANCELLATION.into())
    }

    /// Whether SIGINT was the reason.
    pub(crate) fn is_cancellation(&self) -> bool {
        matches!(self, Self::Other(message) if message == CANCELLATION)
    }

    fn vm_state(message: String) -> Self {
        Self::Runtime { message, exit_code: 2 }
    }

    /// The description alone, as tart shows an error inside another one's text.
    pub(crate) fn description(&self) -> &str {
        match self {
            Self::Runtime { message, .. } | Self::Other(message) | Self::Usage(message) => message,
        }
    }

    /// What a run-time error becomes when it is thrown while the command line is still being
    /// validated, as `run` does: the argument parser prints it, and its exit code is lost.
    pub(crate) fn while_validating(self) -> Self {
        match self {
            Self::Runtime { message, .. } => Self::Other(message),
            other => other,
        }
    }

    /// The process's exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Runtime { exit_code, .. } => *exit_code,
            Self::Other(_) => 1,
            Self::Usage(_) => 64,
        }
    }
}
