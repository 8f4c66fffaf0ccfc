//! `--dir`: directories of the host that the guest can mount.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};
use crate::guest::{AUTOMOUNT_TAG, Share};
use crate::home::file_lock::FileLock;
use crate::home::{self, Home};
use crate::host;
use crate::output::stdout;

/// The shares of a VM, and the locks that keep downloaded ones from being taken for garbage.
#[derive(Debug, Default)]
pub(super) struct Shares {
    pub(super) shares: Vec<Share>,
    /// Held, never read: the locks of downloads.
    downloads: Vec<FileLock>,
}

/// One `--dir`, as its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Argument {
    name: Option<String>,
    path: String,
    read_only: bool,
    tag: String,
}

/// Reads every `--dir` and refuses combinations that have no meaning.
pub(super) fn collect(arguments: &[String], home: &Home) -> Result<Shares> {
    let arguments: Vec<_> = arguments.iter().map(|argument| parse(argument)).collect();
    for argument in &arguments {
        let alone = arguments.iter().filter(|other| other.tag == argument.tag).count() == 1;
        if argument.name.is_none() && !alone {
            return Err(Error::usage(
                "invalid --dir syntax: for multiple directory shares each one of them should be named",
            ));
        }
    }
    let mut shares = Shares::default();
    for Argument { name, path, read_only, tag } in arguments {
        let path = if path.starts_with("http://") || path.starts_with("https://") {
            let (path, lock) = download(&path, home)?;
            shares.downloads.push(lock);
            path
        } else {
            expand(&path)?
        };
        // The last of two shares with the same name wins.
        shares.shares.retain(|share| (&share.tag, &share.name) != (&tag, &name));
        shares.shares.push(Share { tag, name, path, read_only });
    }
    Ok(shares)
}

/// Reads `[name:]path[:options]`. The last part is options if it has at least one known option; the unknown ones in it are
/// ignored.
fn parse(argument: &str) -> Argument {
    let mut parts: Vec<_> = argument.split(':').filter(|part| !part.is_empty()).collect();
    let mut read_only = false;
    let mut tag = None;
    for option in parts.last().unwrap_or(&"").split(',') {
        match option.strip_prefix("tag=") {
            Some(given) => tag = Some(given.to_owned()),
            None => read_only |= option == "ro",
        }
    }
    if read_only || tag.is_some() {
        parts.pop();
    }
    let rest = parts.join(":");
    let (name, path) = match rest.split_once(':') {
        // A URL has a colon of its own.
        Some(("http" | "https", _)) | None => (None, rest.as_str()),
        Some((name, path)) => (Some(name.to_owned()), path),
    };
    Argument { name, path: path.to_owned(), read_only, tag: tag.unwrap_or_else(|| AUTOMOUNT_TAG.into()) }
}

/// The absolute path of a local directory.
pub(super) fn expand(path: &str) -> Result<PathBuf> {
    let path = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            env::home_dir().unwrap_or_default().join(rest.trim_start_matches('/'))
        }
        _ => PathBuf::from(path),
    };
    std::path::absolute(path).map_err(Error::other)
}

/// What the framework finds wrong with a share when the VM starts: the error number and its text.
pub(super) fn problem(share: &Share) -> Option<(i32, &'static str)> {
    match fs::read_dir(&share.path).map_err(|error| error.kind()) {
        Ok(_) => None,
        Err(io::ErrorKind::NotADirectory) => Some((20, "Not a directory")),
        Err(io::ErrorKind::PermissionDenied) => Some((13, "Permission denied")),
        Err(_) => Some((2, "No such file or directory")),
    }
}

/// Downloads an archive: the directory `TART_SIM_HOST/downloads` stands for the Internet.
fn download(url: &str, home: &Home) -> Result<(PathBuf, FileLock)> {
    stdout::line(format!("Downloading {url}..."));
    let (_, place) = url.split_once("://").unwrap_or_default();
    let archive = host::dir().join("downloads").join(place);
    if !archive.is_file() {
        stdout::line("Download failed: Error Domain=NSURLErrorDomain Code=-1011 \"(null)\"");
        return Err(Error::usage("Failed to fetch a remote archive!"));
    }
    stdout::line("Cached for future invocations!");
    let directory = home.tmp().join(format!("{}.volume", home::uuid()));
    fs::create_dir_all(&directory).map_err(Error::other)?;
    let lock = FileLock::wait(&directory).map_err(Error::other)?;
    if !unpack(&archive, &directory).map_err(Error::other)? {
        return Err(Error::usage("Unarchiving failed!"));
    }
    stdout::line("Unarchived into a temporary directory!");
    Ok((directory, lock))
}

fn unpack(archive: &Path, directory: &Path) -> io::Result<bool> {
    let input = Stdio::from(fs::File::open(archive)?);
    Ok(Command::new("tar").arg("-xz").current_dir(directory).stdin(input).status()?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(name: Option<&str>, path: &str, read_only: bool, tag: &str) -> Argument {
        Argument { name: name.map(Into::into), path: path.into(), read_only, tag: tag.into() }
    }

    #[test]
    fn arguments_have_a_name_a_path_and_options() {
        for (text, expected) in [
            ("/src", argument(None, "/src", false, AUTOMOUNT_TAG)),
            ("/src:ro", argument(None, "/src", true, AUTOMOUNT_TAG)),
            ("src:/src", argument(Some("src"), "/src", false, AUTOMOUNT_TAG)),
            ("src:/src:ro", argument(Some("src"), "/src", true, AUTOMOUNT_TAG)),
            ("src:/src:ro,tag=build", argument(Some("src"), "/src", true, "build")),
            ("/src:tag=build", argument(None, "/src", false, "build")),
            // The last segment of a path is only an option after a colon.
            ("/src/ro", argument(None, "/src/ro", false, AUTOMOUNT_TAG)),
            ("ro:/src", argument(Some("ro"), "/src", false, AUTOMOUNT_TAG)),
            // A path with a colon cannot be expressed.
            ("/a:b", argument(Some("/a"), "b", false, AUTOMOUNT_TAG)),
            ("https://host/a.tar.gz:ro", argument(None, "https://host/a.tar.gz", true, AUTOMOUNT_TAG)),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
