//! What is said on launchd's socket: by `launchctl`, by the Mac's other programs, and by tests.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A part of launchd's name space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Domain {
    /// The Mac's.
    System,
    /// A user's, with or without a session at the screen.
    User(u32),
    /// That of a session at the screen.
    Gui(u32),
}

/// A request to launchd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Describes a job.
    Print(Domain, String),
    /// Describes a domain.
    PrintDomain(Domain),
    /// Which labels of a domain are disabled.
    PrintDisabled(Domain),
    /// Lists the jobs of a domain.
    List(Domain),
    /// Describes a job in the words of `launchctl list`.
    ListJob(Domain, String),
    /// Enables or disables a label, for ever.
    SetEnabled(Domain, String, bool),
    /// Loads the job of a property list.
    Bootstrap(Domain, PathBuf),
    /// Unloads a job.
    Bootout(Domain, String),
    /// Unloads the job that was loaded from a property list.
    BootoutPath(Domain, PathBuf),
    /// Starts a job.
    Kickstart {
        /// The job's domain.
        domain: Domain,
        /// The job's label.
        label: String,
        /// Whether a running instance is ended first.
        kill: bool,
    },
    /// Sends a signal to a job's process.
    Kill(Domain, String, i32),
    /// A user has logged in at the screen.
    OpenSession(u32),
    /// A simulated program was called.
    Called(Vec<String>),
    /// Restarts the Mac.
    Reboot,
    /// Switches the Mac off.
    PowerOff,
    /// Ends all SSH connections.
    CutConnections,
    /// Sets the host name.
    SetHostName(String),
}

/// What launchd answers to a request that it carries out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Nothing more to say.
    Done,
    /// Text to be printed.
    Text(String),
    /// A process was started, or was running already.
    Pid(i32),
}

/// Why launchd does not carry out a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("launchd refuses: {code}{}", if .detail.is_empty() { String::new() } else { format!(" ({})", .detail) })]
pub struct Refusal {
    /// The error number of launchd, which is `launchctl`'s exit code.
    pub code: u8,
    /// What launchd says of the property list, or which fault of the simulator is wrong (code 78).
    pub detail: String,
}

impl Refusal {
    /// A refusal without further words.
    pub fn new(code: u8) -> Self {
        Self { code, detail: String::new() }
    }

    /// A refusal with words about its subject.
    pub fn with(code: u8, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

/// Asks the launchd behind a socket. `None` for the time limit waits for ever, as `launchctl` does.
pub fn ask(socket: &Path, request: &Request, limit: Option<Duration>) -> io::Result<Result<Reply, Refusal>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(limit)?;
    stream.set_write_timeout(limit)?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&answer)?)
}
