//! The file in which a guest without a command leaves its exit code, in a directory that only this guest writes to.
//!
//! The guest is not trusted. Only a small, plain file is read.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::fs::absent_is_none;
use crate::state::{Ending, ShimSpec};

const NAME: &str = "status";
/// A line with a number, and the longest message that Kubernetes takes.
const MAX_BYTES: u64 = 4096 + 16;

/// The guest's exit code on the first line, and a message after it; `None` without a valid file.
pub(in crate::shim) fn read_ending(spec: &ShimSpec) -> Option<Ending> {
    spec.status_dir.as_deref().and_then(read)
}

fn read(dir: &Path) -> Option<Ending> {
    match absent_is_none(read_file(&dir.join(NAME))) {
        Ok(text) => parse(&text?),
        Err(error) => {
            tracing::warn!(%error, "cannot read the guest's status file");
            None
        }
    }
}

fn read_file(path: &Path) -> io::Result<String> {
    // Neither follows a link to a file of the host nor blocks on a pipe.
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parse(text: &str) -> Option<Ending> {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let code = first.trim().parse::<u8>().ok()?;
    let message = rest.trim_end().replace('\0', "\u{fffd}");
    Some(Ending::Exited { code: code.into(), message: (!message.is_empty()).then_some(message) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;

    fn exited(code: i32, message: Option<&str>) -> Ending {
        Ending::Exited { code, message: message.map(str::to_owned) }
    }

    #[test]
    fn a_status_is_an_exit_code_and_a_message() {
        let table = [
            ("0", Some(exited(0, None))),
            ("3\n", Some(exited(3, None))),
            (" 255 \ntwo\nlines\n", Some(exited(255, Some("two\nlines")))),
            ("", None),
            ("256", None),
            ("-1", None),
            ("all is well", None),
        ];
        for (text, ending) in table {
            assert_eq!(parse(text), ending, "{text:?}");
        }
    }

    #[test]
    fn only_a_small_plain_file_is_read() {
        let dir = dir();
        let path = dir.path().join(NAME);
        assert_eq!(read(dir.path()), None);
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "7\nthe host's").unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        assert_eq!(read(dir.path()), None);
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read(dir.path()), None);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(read(dir.path()), None);
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, format!("4\n{}", "x".repeat(1 << 20))).unwrap();
        let Some(Ending::Exited { code: 4, message: Some(message) }) = read(dir.path()) else {
            panic!("a long message is cut, not refused")
        };
        assert!(message.len() <= 4200, "{}", message.len());
    }
}
