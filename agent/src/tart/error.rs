//! The failures of `tart`, told apart by its messages.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// A call of `tart` that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TartError {
    /// The agent could not start the program.
    #[error("cannot run {}; install tart there, or name the program with --tart-binary", program.display())]
    Spawn {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    /// tart did not end before its deadline, and the agent killed it.
    #[error("`{command}` did not end within {} s and was killed", deadline.as_secs())]
    DeadlineExceeded { command: String, deadline: Duration },
    /// tart printed something that the agent cannot read.
    #[error("`tart {command}` printed something unexpected: {printed:?}")]
    Garbage {
        command: String,
        /// The start of the output.
        printed: String,
    },
    /// The image is not cached. The agent did not call tart, which would have pulled the image.
    #[error("image {0} is no longer in tart's cache, and neither is its base VM: both were deleted")]
    NotCached(String),
    /// tart failed, and says why in `message`.
    #[error("`{command}` failed ({ended}): {message}")]
    Failed {
        command: String,
        /// The exit code or signal, in words.
        ended: String,
        /// What tart printed to its standard error, in one line.
        message: String,
        fault: Fault,
    },
}

/// The failures of `tart` that the agent tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No VM has that name.
    MissingVm,
    /// The VM does not run.
    NotRunning,
    /// The VM runs already.
    AlreadyRunning,
    /// The image is not in the cache.
    NotCached,
    /// macOS allows no further VM on this host.
    VmLimit,
    /// No VM can start here: no GUI session, or a locked keychain.
    HostSession,
    /// The disk is full.
    NoSpace,
    /// The registry has no such image.
    ImageNotFound,
    /// The registry refused the credentials, or their absence.
    AccessDenied,
    /// The registry could not be reached.
    Network,
    /// The VM cannot be as small as asked for.
    BadSize,
    /// The host does not have what was asked for.
    TooLarge,
    /// tart read half a configuration, or one that was gone: another tart may be writing or deleting it.
    TornConfig,
    Other,
}

impl TartError {
    pub(super) fn garbage(command: &str, printed: &str) -> Self {
        Self::Garbage { command: command.to_owned(), printed: printed.chars().take(80).collect() }
    }

    pub(super) fn failed(command: String, status: ExitStatus, stderr: &str) -> Self {
        let ended = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no exit code".to_owned(),
        };
        Self::Failed { command, ended, message: one_line(stderr), fault: Fault::of(stderr) }
    }

    /// The kind of failure, if tart said it.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match self {
            Self::Failed { fault, .. } => Some(*fault),
            Self::NotCached(_) => Some(Fault::NotCached),
            Self::Spawn { .. } | Self::DeadlineExceeded { .. } | Self::Garbage { .. } => None,
        }
    }
}

impl Fault {
    /// What a user can do about it, to follow tart's message.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::VmLimit => {
                "; macOS runs two VMs at most on one host: stop VMs that are not Pods, or restart the host"
            }
            Self::HostSession => {
                "; the image may be broken, or the host has no GUI session: log the host's user in at its screen"
            }
            Self::NoSpace => "; free some disk space on the host",
            Self::TooLarge => {
                "; lower the container's resource limits: the VM is as large as they are, and the host is smaller"
            }
            Self::ImageNotFound => "; check the image's name",
            Self::AccessDenied => "; check the image's name and the credentials for its registry",
            Self::Network => "; check that the host reaches the registry",
            _ => "",
        }
    }

    /// Reads tart's message. Its exit codes do not tell failures apart: most have 1, three have 2.
    ///
    /// What follows `why: "` and `details: "` are words of a registry, which could have the agent delete the images of others.
    pub(crate) fn of(stderr: &str) -> Self {
        let own = |text, mark| str::split_once(text, mark).map_or(text, |(own, _)| own);
        let stderr = own(own(stderr, "why: \""), "details: \"");
        let says = |part: &str| stderr.contains(part);
        if says("the specified VM \"") && says("does not exist") {
            Self::MissingVm
        } else if says("is already running!") {
            Self::AlreadyRunning
        } else if says("\" is not running") {
            Self::NotRunning
        } else if says("doesn't point to a digest") {
            Self::NotCached
        } else if says("exceeds the system limit")
            || says("VZErrorDomain Code=6")
            || says("number of virtual machines exceeds the limit")
        {
            Self::VmLimit
        } else if says("VZErrorDomain Code=1 ")
            || says("VZErrorDomain Code=-9")
            || says("HostKey")
            || says("host key")
        {
            Self::HostSession
        } else if says("there isn’t enough space")
            || says("there isn't enough space")
            || says("No space left on device")
            || says("database or disk is full")
            || says("is out of space")
            || says("VZErrorDomain Code=8")
        {
            Self::NoSpace
        } else if says("LessThanMinimalResourcesError") {
            Self::BadSize
        } else if says("greater than the maximum allowed") {
            Self::TooLarge
        } else if ["not valid JSON", "dataCorrupted", "DecodingError"].iter().any(|words| says(words))
            || (says("config.json") && says("there is no such file"))
        {
            Self::TornConfig
        } else if says("code: 404") {
            Self::ImageNotFound
        } else if says("AuthFailed") || says("code: 401") || says("code: 403") {
            Self::AccessDenied
        } else if says("timed out")
            || says("connection was lost")
            || says("appears to be offline")
            || says("hostname could not be found")
            || says("Could not connect to the server")
        {
            Self::Network
        } else {
            Self::Other
        }
    }
}

/// The running VMs that tart names when macOS allows no further one.
pub(crate) fn running_vms(stderr: &str) -> Vec<&str> {
    let listed = stderr.split_once("(other running VMs: ").and_then(|(_, rest)| rest.split_once(')'));
    listed.map_or_else(Vec::new, |(names, _)| names.split(", ").collect())
}

/// The line of tart's output that says why it failed: the last one that begins with `Error`, or with something that the agent knows.
/// How to use tart, or a line of macOS' own log, may follow it.
pub(crate) fn reason(output: &str) -> Option<&str> {
    let lines = || output.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    lines()
        .find(|line| line.starts_with("Error"))
        .or_else(|| lines().find(|line| Fault::of(line) != Fault::Other))
        .or_else(|| lines().find(|line| !is_usage(line)))
}

/// Whether a line says how to use tart, as follows every error about its arguments.
fn is_usage(line: &str) -> bool {
    line.starts_with("Usage: tart") || line.starts_with("See 'tart")
}

/// The last lines of a message, joined into one line of bounded length.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !is_usage(line)).collect();
    let tail = lines[lines.len().saturating_sub(4)..].join("; ");
    let tail = tail.strip_prefix("Error: ").unwrap_or(&tail);
    if tail.is_empty() { "it said nothing".to_owned() } else { tail.chars().take(600).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_of_tart_are_told_apart() {
        let table = [
            ("the specified VM \"x\" does not exist", Fault::MissingVm),
            ("Error: the specified VM \"x\" does not exist", Fault::MissingVm),
            ("VM \"x\" is not running", Fault::NotRunning),
            (
                "Error: dataCorrupted(Swift.DecodingError.Context(codingPath: [], debugDescription: \"The given data was not valid JSON.\"))",
                Fault::TornConfig,
            ),
            (
                "Error: DecodingError.dataCorrupted: Data was corrupted. Debug description: The given data was not valid JSON.",
                Fault::TornConfig,
            ),
            (
                "Error: The file “config.json” couldn’t be opened because there is no such file.",
                Fault::TornConfig,
            ),
            ("Error: The file “disk.img” couldn’t be opened because there is no such file.", Fault::Other),
            ("VM \"x\" is already running!", Fault::AlreadyRunning),
            ("OCI storage error: a/b:c is not a digest and doesn't point to a digest", Fault::NotCached),
            ("The number of VMs exceeds the system limit (other running VMs: a, b)", Fault::VmLimit),
            ("The number of VMs exceeds the system limit", Fault::VmLimit),
            (
                "Error Domain=VZErrorDomain Code=6 \"The maximum supported number of active virtual machines has been reached.\"",
                Fault::VmLimit,
            ),
            (
                "Error Domain=VZErrorDomain Code=1 \"The virtual machine failed to start.\"",
                Fault::HostSession,
            ),
            ("Error Domain=VZErrorDomain Code=-9 \"Failed to create new HostKey\"", Fault::HostSession),
            ("Error Domain=VZErrorDomain Code=10 \"unsupported\"", Fault::Other),
            ("Error: “disk.img” couldn’t be copied to “U” because there isn’t enough space.", Fault::NoSpace),
            ("Error: \"disk.img\" couldn't be copied because there isn't enough space.", Fault::NoSpace),
            ("Error: database or disk is full", Fault::NoSpace),
            (
                "You can’t save the file “disk.img” because the volume “Macintosh HD” is out of space.",
                Fault::NoSpace,
            ),
            (
                "Error: LessThanMinimalResourcesError: VM should have 4 CPU cores at minimum (requested 2)",
                Fault::BadSize,
            ),
            (
                "Invalid virtual machine configuration. The memory size is greater than the maximum allowed.",
                Fault::TooLarge,
            ),
            (
                "Error: UnexpectedHTTPStatusCode(when: \"pulling manifest\", code: 404, details: \"\")",
                Fault::ImageNotFound,
            ),
            (
                "Error: AuthFailed(why: \"received unexpected HTTP status code 403\", details: \"\")",
                Fault::AccessDenied,
            ),
            (
                "Error: UnexpectedHTTPStatusCode(when: \"pulling manifest\", code: 404, details: \"No space left on device\")",
                Fault::ImageNotFound,
            ),
            (
                "Error: UnexpectedHTTPStatusCode(when: \"pulling blob\", code: 500, details: \"\nVZErrorDomain Code=6, \
                 the specified VM \\\"x\\\" does not exist\")",
                Fault::Other,
            ),
            ("Error: MalformedHeader(why: \"No space left on device\")", Fault::Other),
            ("Error: The request timed out.", Fault::Network),
            ("Error: Could not connect to the server.", Fault::Network),
            ("something new", Fault::Other),
            ("", Fault::Other),
        ];
        for (words, fault) in table {
            assert_eq!(Fault::of(words), fault, "{words}");
        }
    }

    #[test]
    fn the_running_vms_are_read_from_the_message() {
        let words = "The number of VMs exceeds the system limit (other running VMs: a, tk-0b1c-0)";
        assert_eq!(running_vms(words), ["a", "tk-0b1c-0"]);
        assert_eq!(running_vms("The number of VMs exceeds the system limit"), Vec::<&str>::new());
    }

    #[test]
    fn the_reason_is_found_among_usage_and_noise() {
        let noise = "2026-11-18 03:40:19.123 tart[812:4711] [default] CGSConnection: no window server";
        let usage =
            "Usage: tart run <name> [--dir <name:path>]\n  See 'tart run --help' for more information.";
        let table = [
            (format!("Error: no such flag\n{usage}\n"), "Error: no such flag"),
            (format!("Error: no such flag\n{usage}\n{noise}\n"), "Error: no such flag"),
            (format!("VM \"x\" is already running!\n{noise}"), "VM \"x\" is already running!"),
            (format!("Softnet failed\n{usage}"), "Softnet failed"),
            ("Error: one\nError: two\n\n".to_owned(), "Error: two"),
        ];
        for (output, expected) in table {
            assert_eq!(reason(&output), Some(expected), "{output}");
        }
        assert_eq!(reason(" \n"), None);
        assert_eq!(one_line(&format!("Error: no such flag\n{usage}\n")), "no such flag");
    }

    #[test]
    fn the_message_is_one_bounded_line() {
        assert_eq!(one_line("Error: a\n\n  b \n"), "a; b");
        assert_eq!(one_line(" \n"), "it said nothing");
        assert_eq!(one_line(&"x".repeat(10_000)).len(), 600);
    }
}
