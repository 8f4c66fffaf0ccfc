//! Whether tart, and macOS, can use a directory as tart's home.

use std::path::{Path, PathBuf};

/// macOS has room for 104 bytes in the address of a socket, and the last one is the end.
const MAX_SOCKET_PATH: usize = 103;
/// The path of a control socket below the home. Pods have UIDs of 36 characters; five digits are a restart every five minutes for a year.
const CONTROL_SOCKET: &str = "/vms/tk-00000000-0000-0000-0000-000000000000-00000/control.sock";
/// The longest path that a home can have.
const MAX_HOME: usize = MAX_SOCKET_PATH - CONTROL_SOCKET.len();
/// What a URL does not escape in a path, besides letters and digits.
const PLAIN: &str = "/-._~!$&'()*+,=:@";

/// Why a directory cannot be tart's home.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HomeError {
    /// tart would make the control sockets of VMs elsewhere, and the agent would reach no guest.
    #[error(
        "tart cannot work in its home {}: the path has {character:?} in it, and tart loses the control sockets of VMs in such a \
         directory; set TART_HOME to a path of ASCII letters, digits and `{PLAIN}`, e.g. to a link that leads there",
        .home.display()
    )]
    Character {
        /// The directory.
        home: PathBuf,
        /// The first character that cannot be there.
        character: char,
    },
    /// macOS would refuse the paths of control sockets.
    #[error(
        "the path of tart's home {} has {} bytes, and macOS takes no path of a socket in it that is longer than {MAX_SOCKET_PATH}; set \
         TART_HOME to a path of {MAX_HOME} bytes at most, e.g. to a link that leads there",
        .0.display(), .0.as_os_str().len()
    )]
    TooLong(PathBuf),
}

/// Refuses a home whose control sockets the agent could not reach: each Pod would fail after its guest had booted in vain.
pub(crate) fn check(home: &Path) -> Result<(), HomeError> {
    let home = std::path::absolute(home).unwrap_or_else(|_| home.to_owned());
    let is_escaped = |character: &char| !character.is_ascii_alphanumeric() && !PLAIN.contains(*character);
    if let Some(character) = home.to_string_lossy().chars().find(is_escaped) {
        return Err(HomeError::Character { home, character });
    }
    if home.as_os_str().len() > MAX_HOME {
        return Err(HomeError::TooLong(home));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_refused_if_tart_or_macos_loses_its_sockets() {
        let long = format!("/{}", "a".repeat(MAX_HOME));
        let table = [
            ("/Users/admin/.tart", None),
            ("/Volumes/T7_2+(b)/tart@home", None),
            ("/Volumes/My Disk/tart", Some("' '")),
            ("/tart/100%", Some("'%'")),
            ("/tart#1", Some("'#'")),
            ("/Users/zoë/.tart", Some("'ë'")),
            (&long[..MAX_HOME], None),
            (&long, Some("41 bytes")),
        ];
        for (home, words) in table {
            let refused = check(Path::new(home)).err().map(|error| error.to_string());
            assert_eq!(refused.is_some(), words.is_some(), "{home}: {refused:?}");
            if let (Some(refused), Some(words)) = (refused, words) {
                assert!(refused.contains(words) && refused.contains("TART_HOME"), "{refused}");
            }
        }
    }
}
