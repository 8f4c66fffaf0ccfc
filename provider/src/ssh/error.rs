//! Why a Mac could not be reached.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::{Fingerprint, SshAddress};

/// A Mac that could not be reached, or was lost.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SshError {
    /// No connection.
    #[error("cannot connect to {address}")]
    Connect {
        /// The Mac.
        address: SshAddress,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The Mac did not answer in time.
    #[error("{address} did not {what} within {} s", deadline.as_secs())]
    DeadlineExceeded {
        /// The Mac.
        address: SshAddress,
        /// What it did not do.
        what: &'static str,
        /// The deadline.
        deadline: Duration,
    },
    /// The Mac has another host key than the one that is known.
    #[error(
        "{address} has the host key {seen}, but {expected} is expected: another machine answers there, or this one was installed anew; if it \
         was, give the new key with --host-key, or put it into the file of known hosts"
    )]
    HostKey {
        /// The Mac.
        address: SshAddress,
        /// The keys that it may have, and the file that says so.
        expected: String,
        /// The key that it has.
        seen: Fingerprint,
    },
    /// The file of known hosts cannot be used.
    #[error("cannot read the known hosts in {}", path.display())]
    KnownHosts {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<russh::keys::Error>,
    },
    /// The file of known hosts has no key of the Mac.
    #[error(
        "{} has no host key of {address}; `ssh-keyscan -p {} {}` prints it, to be compared with the Mac's own and added",
        path.display(), address.port, address.host
    )]
    UnknownHost {
        /// The Mac.
        address: SshAddress,
        /// The file.
        path: PathBuf,
    },
    /// The Mac does not accept the key.
    #[error("{address} does not accept the SSH key {key}")]
    KeyRefused {
        /// The Mac.
        address: SshAddress,
        /// The public key, as `authorized_keys` has it.
        key: String,
    },
    /// The connection broke, or the Mac does not speak SSH.
    #[error("the connection to {address} failed")]
    Protocol {
        /// The Mac.
        address: SshAddress,
        /// Why.
        #[source]
        source: Box<russh::Error>,
    },
    /// The connection ended in the middle of a command.
    #[error("the connection to {address} was cut")]
    Cut {
        /// The Mac.
        address: SshAddress,
    },
    /// What was to be copied could not be read on this machine.
    #[error("cannot read what is to be copied to {address}")]
    Input {
        /// The Mac.
        address: SshAddress,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The Mac has got less than was announced, and said so: the connection is fine.
    #[error("the file became shorter while it was copied to {address}; run this again when it is complete")]
    Shortened {
        /// The Mac.
        address: SshAddress,
    },
    /// The file of known hosts cannot be written.
    #[error("cannot add the host key of {address} to {}", path.display())]
    Learn {
        /// The Mac.
        address: SshAddress,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<russh::keys::Error>,
    },
    /// sudo wants a password.
    #[error(
        "sudo on {address} wants a password; `tart-provider host prepare --ssh {address}` installs the rule that it needs"
    )]
    SudoPassword {
        /// The Mac.
        address: SshAddress,
    },
    /// The command failed.
    #[error("{message}")]
    Failed {
        /// The last line of its standard error.
        message: String,
    },
}
