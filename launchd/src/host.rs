//! Where commands run and files lie: this Mac, or one behind SSH.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// A Mac. Its commands run as root, and its files are read and written as root.
pub trait Host: Sync {
    /// Runs a command to its end. A command that ends with an exit code other than 0 is an answer, no error.
    fn run(&self, call: Call<'_>) -> impl Future<Output = Result<CallOutput, HostError>> + Send;

    /// Reads a file; `None` when there is none.
    fn read_file(&self, path: &str) -> impl Future<Output = Result<Option<Vec<u8>>, HostError>> + Send;

    /// Writes a file to a temporary name in the same directory and renames it: the file is either as it was, or new and whole.
    fn write_file(
        &self,
        path: &str,
        contents: &[u8],
        access: &Access,
    ) -> impl Future<Output = Result<(), HostError>> + Send;
}

/// One command. Secrets go into `stdin`, never into `argv`.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The program by its absolute path, and its arguments.
    pub argv: &'a [&'a str],
    /// Its standard input.
    pub stdin: &'a [u8],
    /// How long it may take.
    pub deadline: Duration,
}

impl<'a> Call<'a> {
    /// A command that reads nothing.
    pub fn new(argv: &'a [&'a str], deadline: Duration) -> Self {
        Self { argv, stdin: &[], deadline }
    }

    /// The same command with a standard input.
    #[must_use]
    pub fn with_stdin(self, stdin: &'a [u8]) -> Self {
        Self { stdin, ..self }
    }

    /// The program.
    pub fn program(&self) -> &'a str {
        self.argv.first().copied().unwrap_or_default()
    }
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The standard input may be a secret.
        f.debug_struct("Call")
            .field("argv", &self.argv)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// How a command ended, and what it printed.
#[derive(Clone, PartialEq, Eq)]
pub struct CallOutput {
    /// The exit code; 128 and the number of the signal when a signal ended it.
    pub code: i32,
    /// The first part of its standard output.
    pub stdout: String,
    /// The first part of its standard error.
    pub stderr: String,
}

impl CallOutput {
    /// Whether it ended with 0.
    pub fn is_success(&self) -> bool {
        self.code == 0
    }

    /// The last line of its standard error, cut to a length that people read.
    pub fn message(&self) -> String {
        let last = self.stderr.lines().rev().map(str::trim).find(|line| !line.is_empty());
        last.unwrap_or("it said nothing").chars().take(300).collect()
    }
}

impl fmt::Debug for CallOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The standard output of some programs has secrets, such as the environment of a job.
        f.debug_struct("CallOutput")
            .field("code", &self.code)
            .field("stderr", &self.stderr)
            .finish_non_exhaustive()
    }
}

/// Who may do what with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Whose it is.
    pub owner: Owner,
    /// The permission bits.
    pub mode: u32,
}

impl Access {
    /// A file of root with these permission bits.
    pub fn root(mode: u32) -> Self {
        Self { owner: Owner::Root, mode }
    }

    /// A file of a user with these permission bits.
    pub fn user(name: &str, mode: u32) -> Self {
        Self { owner: Owner::User(name.to_owned()), mode }
    }
}

/// The owner of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// root and its group, wheel.
    Root,
    /// A user and the user's own group.
    User(String),
}

/// Why a host gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The program could not be run, or not be waited for.
    #[error("cannot run {program}")]
    Run {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The program did not end before its deadline.
    #[error("{program} did not answer within {} s", deadline.as_secs())]
    DeadlineExceeded {
        /// The program.
        program: String,
        /// The deadline.
        deadline: Duration,
    },
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A file could not be written. It is as it was.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}
