//! Unix sockets at paths of any length: the kernel takes about a hundred bytes, and a state directory may be deeper than that.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The longest path that every system takes; macOS has 104 bytes, with the zero at the end.
const MAX: usize = 100;

/// Listens at a path.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = at_short_path(path, |path| UnixListener::bind(path))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Connects to a path. It does not wait: the listener's queue takes the connection, or refuses it.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = at_short_path(path, |path| UnixStream::connect(path))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Calls `call` with the path, or with a shorter one that leads to the same file through a link.
fn at_short_path<T>(path: &Path, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= MAX {
        return call(path);
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let link = link_to(dir)?;
    let result = call(&link.join(name));
    // A link that is left behind does no harm.
    let _ = std::fs::remove_file(&link);
    result
}

/// A link of a name that no other user can have put there.
fn link_to(dir: &Path) -> io::Result<PathBuf> {
    let temporary = std::env::temp_dir();
    let dirs = if temporary.as_os_str().len() > MAX / 2 {
        [Path::new("/tmp"), &temporary]
    } else {
        [&*temporary, Path::new("/tmp")]
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for parent in dirs {
        let link = parent.join(format!("tk-{:016x}", fastrand::u64(..)));
        match std::os::unix::fs::symlink(dir, &link) {
            Ok(()) => return Ok(link),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;

    #[test]
    fn a_socket_has_a_path_of_any_length() {
        let dir = dir();
        for part in ["short", &"long".repeat(50)] {
            let path = dir.path().join(part);
            std::fs::create_dir(&path).unwrap();
            let path = path.join("attach.sock");
            assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound, "{part}");
            let _listener = bind(&path).unwrap();
            connect(&path).unwrap();
        }
    }
}
