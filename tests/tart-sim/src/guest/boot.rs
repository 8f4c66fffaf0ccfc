//! What `tart run` tells a guest when it boots.

use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::home::config::Os;

/// The group that the users of a Mac are in.
const STAFF: u32 = 20;

/// Everything that a guest knows of its virtual hardware and of its image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Boot {
    pub(crate) os: Os,
    /// The user that is logged in.
    pub(crate) user: String,
    /// That user's number.
    pub(crate) uid: u32,
    /// Whether that user can use `sudo`.
    pub(crate) sudo: bool,
    /// The program that is `/bin/sh`; the machine's own, if not given.
    pub(crate) shell: Option<PathBuf>,
    /// Whether the system's files are read-only.
    pub(crate) sealed: bool,
    /// The guest's address; `None` if the network had none left.
    pub(crate) address: Option<Ipv4Addr>,
    /// Whether the guest has a network of its own, with that address in it. Else it has the machine's.
    pub(crate) own_network: bool,
    pub(crate) shares: Vec<Share>,
    /// The image's command to run at boot; empty for none.
    pub(crate) command: Vec<String>,
    /// Whether the image has a guest agent.
    pub(crate) agent: bool,
    /// From the boot until the guest agent answers.
    pub(crate) agent_delay: Duration,
    /// Whether the guest agent is older than 0.10, which knows neither `env` nor `workdir` nor `detach`.
    pub(crate) old_agent: bool,
    /// Whether the guest agent knows `ResolveIP`.
    pub(crate) resolves_ip: bool,
    /// The file that stands for the clipboard of the Mac's user, if the guest shares it.
    pub(crate) clipboard: Option<PathBuf>,
    /// Whether the guest agent says that a command has started, as newer ones do.
    pub(crate) says_started: bool,
    /// Whether the guest agent breaks off at the end of a command, without its exit code.
    pub(crate) forgets_exit: bool,
    /// How long a shutdown takes at least.
    pub(crate) shutdown_delay: Duration,
}

/// A directory of the host that the guest can mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) tag: String,
    /// The directory's name below the mount point; a single share may have none and is the mount point itself.
    pub(crate) name: Option<String>,
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
}

impl Boot {
    /// The one line that `tart run` writes to a guest before anything else.
    pub(super) fn to_line(&self) -> io::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Reads that line, and not a byte more: what follows are presses of the power button.
    pub(super) fn read_line(mut from: impl Read) -> io::Result<Self> {
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            from.read_exact(&mut byte)?;
            if byte == *b"\n" {
                return Ok(serde_json::from_slice(&line)?);
            }
            line.push(byte[0]);
        }
    }

    /// The name that the guest has on its network.
    pub(crate) fn host_name(&self) -> String {
        match self.os {
            Os::Darwin => format!("{}s-Virtual-Machine", self.user),
            Os::Linux => "ubuntu".into(),
        }
    }

    /// The group of the logged-in user: `staff`, unless that user is root.
    pub(super) fn gid(&self) -> u32 {
        if self.uid == 0 { 0 } else { STAFF }
    }

    /// The logged-in user's home directory, as the guest names it.
    pub(super) fn home(&self) -> PathBuf {
        match self.os {
            Os::Darwin => PathBuf::from("/Users").join(&self.user),
            Os::Linux => PathBuf::from("/home").join(&self.user),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A macOS guest with nothing special.
    pub(in crate::guest) fn boot() -> Boot {
        Boot {
            os: Os::Darwin,
            user: "admin".into(),
            uid: 0,
            sudo: true,
            shell: None,
            sealed: true,
            address: Some(Ipv4Addr::new(127, 64, 0, 2)),
            own_network: false,
            shares: Vec::new(),
            command: Vec::new(),
            agent: true,
            agent_delay: Duration::ZERO,
            old_agent: false,
            resolves_ip: true,
            clipboard: None,
            says_started: false,
            forgets_exit: false,
            shutdown_delay: Duration::ZERO,
        }
    }

    #[test]
    fn a_boot_is_one_line_and_reading_it_leaves_the_rest() {
        let mut text = boot().to_line().unwrap();
        text.extend_from_slice(b"power-button\n");
        let mut from = text.as_slice();
        assert_eq!(Boot::read_line(&mut from).unwrap(), boot());
        assert_eq!(from, b"power-button\n");
    }

    #[test]
    fn a_power_cut_before_the_line_is_complete_is_an_error() {
        assert!(Boot::read_line(&b"{\"os\":"[..]).is_err());
    }
}
