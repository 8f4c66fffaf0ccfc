//! `newsyslog`: rotates logs by size.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::unistd::{Group, User};

use super::{is_root, not_simulated};

/// One line of a configuration: `logfilename [owner:group] mode count size when [flags]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    path: PathBuf,
    owner: Option<(String, String)>,
    mode: u32,
    count: u32,
    /// In units of 1024 bytes; `None` for `*`.
    kilobytes: Option<u64>,
    flags: String,
}

/// Reads one line; `None` if it is no entry.
fn entry(line: &str) -> Option<Entry> {
    let mut words: Vec<_> = line.split_whitespace().collect();
    let path = PathBuf::from(*words.first()?);
    words.remove(0);
    let owner = words.first()?.split_once(':').map(|(owner, group)| (owner.to_owned(), group.to_owned()));
    if owner.is_some() {
        words.remove(0);
    }
    let [mode, count, size, when, rest @ ..] = words.as_slice() else { return None };
    // Times are not simulated: only `*`, and `$D0` and its like, which are never due here.
    if *when != "*" && !when.starts_with('$') && !when.starts_with('@') && when.parse::<u32>().is_err() {
        return None;
    }
    let kilobytes = if *size == "*" { None } else { Some(size.parse().ok()?) };
    let flags = rest.first().copied().unwrap_or_default().to_owned();
    if !flags.chars().all(|flag| "BCDFGJNRUWXZ-".contains(flag.to_ascii_uppercase())) {
        return None;
    }
    let (mode, count) = (u32::from_str_radix(mode, 8).ok()?, count.parse().ok()?);
    path.is_absolute().then_some(Entry { path, owner, mode, count, kilobytes, flags })
}

fn files() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/newsyslog.conf")];
    let entries = fs::read_dir("/etc/newsyslog.d").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut extra: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "conf")).collect();
    extra.sort();
    files.extend(extra);
    files
}

pub(super) fn main(words: &[String]) -> ExitCode {
    let (mut dry, mut forced, mut verbose, mut config) = (false, false, false, None);
    let mut words_left = words.iter();
    while let Some(word) = words_left.next() {
        match word.as_str() {
            "-f" => config = words_left.next().map(PathBuf::from),
            flags if flags.starts_with('-') => {
                for flag in flags.chars().skip(1) {
                    match flag {
                        'n' => dry = true,
                        'F' => forced = true,
                        'v' => verbose = true,
                        'N' => {}
                        _ => return not_simulated("newsyslog", words),
                    }
                }
            }
            _ => return not_simulated("newsyslog", words),
        }
    }
    if !is_root() && !dry {
        eprintln!("newsyslog: must have root privs");
        return ExitCode::FAILURE;
    }
    for file in config.map_or_else(files, |file| vec![file]) {
        let Ok(text) = fs::read_to_string(&file) else {
            eprintln!("newsyslog: {}: No such file or directory", file.display());
            return ExitCode::FAILURE;
        };
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let Some(entry) = entry(line) else {
                eprintln!("newsyslog: malformed line (missing fields):\n{line}");
                return ExitCode::FAILURE;
            };
            let is_due = forced || is_due(&entry);
            if verbose || dry {
                println!(
                    "{} <{}>: {}",
                    entry.path.display(),
                    entry.count,
                    if is_due { "--> trimming log...." } else { "--> skipping" }
                );
            }
            if is_due
                && !dry
                && let Err(error) = rotate(&entry)
            {
                eprintln!("newsyslog: {}: {error}", entry.path.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn is_due(entry: &Entry) -> bool {
    let size = fs::metadata(&entry.path).map(|metadata| metadata.len());
    size.is_ok_and(|size| entry.kilobytes.is_some_and(|limit| size / 1024 >= limit))
}

/// Renames `log` to `log.0`, `log.0` to `log.1` and so on, and makes a new log. A process that holds the old one goes on writing to it.
fn rotate(entry: &Entry) -> io::Result<()> {
    let numbered = |number: u32| PathBuf::from(format!("{}.{number}", entry.path.display()));
    if !entry.path.exists() {
        return Ok(());
    }
    let _ = fs::remove_file(numbered(entry.count));
    for number in (0..entry.count).rev() {
        if numbered(number).exists() {
            fs::rename(numbered(number), numbered(number + 1))?;
        }
    }
    fs::rename(&entry.path, numbered(0))?;
    create(&entry.path, entry)
}

fn create(path: &Path, entry: &Entry) -> io::Result<()> {
    File::create(path)?;
    fs::set_permissions(path, Permissions::from_mode(entry.mode))?;
    if let Some((owner, group)) = &entry.owner {
        let uid = User::from_name(owner)?.map(|user| user.uid.as_raw());
        let gid = Group::from_name(group)?.map(|group| group.gid.as_raw());
        chown(path, uid, gid)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_five_or_more_fields() {
        let good = entry("/var/log/tart-kubelet.log m1:staff 600 5 10240 * NJ").unwrap();
        assert_eq!((good.mode, good.count, good.kilobytes), (0o600, 5, Some(10240)));
        assert_eq!(good.owner, Some(("m1".into(), "staff".into())));
        assert_eq!(entry("/var/log/a.log 640 5 * $D0 J").unwrap().kilobytes, None);
        for bad in ["/var/log/a.log 640 5 100", "a.log 640 5 100 *", "/var/log/a.log rw 5 100 *", ""] {
            assert_eq!(entry(bad), None, "{bad}");
        }
    }
}
