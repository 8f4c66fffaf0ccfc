//! `ln`, as BSD has it. The simulator needs its own because macOS allows links in `/dev`, but no files.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::usage;

const USAGE: &str = "ln [-s [-F] | -L | -P] [-f | -i] [-hnv] source_file [target_file]";

/// Makes links; understands BSD's options, each on its own or together.
pub(super) fn ln(words: &[OsString]) -> ExitCode {
    let mut options = Options::default();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next_if(|word| word.len() > 1 && word.as_encoded_bytes()[0] == b'-') {
        if word == "--" {
            break;
        }
        if !options.read(word) {
            return usage(USAGE);
        }
    }
    let paths: Vec<PathBuf> = words.map(PathBuf::from).collect();
    let (sources, target) = match paths.as_slice() {
        [] => return usage(USAGE),
        [source] => (std::slice::from_ref(source), PathBuf::from(".")),
        [sources @ .., target] => (sources, target.clone()),
    };
    let is_directory = target.is_dir() && !(options.keeps_links && target.is_symlink());
    if sources.len() > 1 && !is_directory {
        return usage(USAGE);
    }
    let mut code = ExitCode::SUCCESS;
    for source in sources {
        let link = match source.file_name() {
            Some(name) if is_directory => target.join(name),
            _ => target.clone(),
        };
        if let Err(error) = options.link(source, &link) {
            let words = error.to_string();
            let words = words.split(" (os error").next().unwrap_or_default();
            eprintln!("ln: {}: {words}", link.display());
            code = ExitCode::FAILURE;
        }
    }
    code
}

#[derive(Debug, Clone, Copy, Default)]
struct Options {
    symbolic: bool,
    replaces: bool,
    keeps_links: bool,
}

impl Options {
    /// False for an unknown option.
    fn read(&mut self, word: &OsString) -> bool {
        word.as_encoded_bytes()[1..].iter().all(|letter| {
            match letter {
                b's' => self.symbolic = true,
                b'f' => self.replaces = true,
                b'h' | b'n' => self.keeps_links = true,
                b'F' | b'L' | b'P' | b'i' | b'v' => {}
                _ => return false,
            }
            true
        })
    }

    fn link(self, source: &Path, link: &Path) -> io::Result<()> {
        let make = || {
            if self.replaces && link.symlink_metadata().is_ok() {
                fs::remove_file(link)?;
            }
            if self.symbolic { symlink(source, link) } else { fs::hard_link(source, link) }
        };
        if self.symbolic && link.parent() == Some("/dev".as_ref()) { among_devices(make) } else { make() }
    }
}

#[cfg(target_os = "linux")]
fn among_devices(make: impl Fn() -> io::Result<()>) -> io::Result<()> {
    match make() {
        Err(error)
            if error.kind() == io::ErrorKind::ReadOnlyFilesystem
                && nix::unistd::geteuid().is_root()
                && super::is_in_own_root() =>
        {
            crate::guest::namespaces::with_open_devices(make)
        }
        result => result,
    }
}

#[cfg(not(target_os = "linux"))]
fn among_devices(make: impl Fn() -> io::Result<()>) -> io::Result<()> {
    make()
}
