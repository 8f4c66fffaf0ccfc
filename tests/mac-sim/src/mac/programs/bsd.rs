//! Programs whose options on a Mac differ from GNU's: `stat`, `shasum`, `mktemp`, `install`, `sed`.

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use mac_sim::settings::LINUX;
use nix::unistd::{Gid, Group, Uid, User};

use super::not_simulated;
use crate::mac::signature::digest;

/// Says what is wrong with the arguments, as BSD's programs do.
fn illegal(program: &str, option: &str, usage: &str, code: u8) -> ExitCode {
    eprintln!(
        "{program}: illegal option -- {}\nusage: {usage}",
        option.trim_start_matches('-').chars().next().unwrap_or('-')
    );
    ExitCode::from(code)
}

/// `stat -f FORMAT [-L] FILE…`; `-f` is a format, and `-c` is nothing.
pub(super) fn stat(words: &[String]) -> ExitCode {
    const USAGE: &str = "stat [-FLnq] [-f format | -l | -r | -s | -x] [-t timefmt] [file|handle ...]";
    let (mut format, mut follows, mut newline) = (None, false, "\n");
    let mut words_left = words.iter().peekable();
    while let Some(word) = words_left.next_if(|word| word.starts_with('-') && word.len() > 1) {
        match word.as_str() {
            "-f" => format = words_left.next().cloned(),
            "-L" => follows = true,
            "-Lf" => {
                follows = true;
                format = words_left.next().cloned();
            }
            "-n" => newline = "",
            "-nf" => {
                newline = "";
                format = words_left.next().cloned();
            }
            joined if joined.starts_with("-f") => format = Some(joined[2..].to_owned()),
            "-l" | "-r" | "-s" | "-x" => return not_simulated("stat", words),
            other => return illegal("stat", other, USAGE, 1),
        }
    }
    let Some(format) = format else { return not_simulated("stat", words) };
    let mut code = ExitCode::SUCCESS;
    for path in words_left {
        let metadata = if follows { fs::metadata(path) } else { fs::symlink_metadata(path) };
        match metadata {
            Ok(metadata) => match expand(&format, &metadata, path) {
                Some(text) => print!("{text}{newline}"),
                None => return not_simulated("stat", words),
            },
            Err(_) => {
                eprintln!("stat: {path}: stat: No such file or directory");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// Expands a format of BSD's `stat`; `None` if it has something that is not simulated.
fn expand(format: &str, metadata: &fs::Metadata, path: &str) -> Option<String> {
    let mut text = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let user = || User::from_uid(Uid::from_raw(metadata.uid())).ok().flatten().map(|user| user.name);
        let group = || Group::from_gid(Gid::from_raw(metadata.gid())).ok().flatten().map(|group| group.name);
        let kind = match metadata {
            _ if metadata.is_dir() => "Directory",
            _ if metadata.is_symlink() => "Symbolic Link",
            _ => "Regular File",
        };
        let values = [
            ("Su", user().unwrap_or_else(|| metadata.uid().to_string())),
            ("Sg", group().unwrap_or_else(|| metadata.gid().to_string())),
            ("HT", kind.to_owned()),
            ("OLp", format!("{:03o}", metadata.mode() & 0o777)),
            ("Lp", format!("{:04o}", metadata.mode() & 0o7777).trim_start_matches('0').to_owned()),
            ("Mp", format!("{:o}", metadata.mode() >> 9 & 7)),
            ("Op", format!("{:o}", metadata.mode())),
            ("p", format!("{:o}", metadata.mode())),
            ("i", metadata.ino().to_string()),
            ("d", metadata.dev().to_string()),
            ("z", metadata.len().to_string()),
            ("u", metadata.uid().to_string()),
            ("g", metadata.gid().to_string()),
            ("l", metadata.nlink().to_string()),
            ("m", metadata.mtime().to_string()),
            ("c", metadata.ctime().to_string()),
            ("a", metadata.atime().to_string()),
            ("N", path.to_owned()),
            ("n", "\n".to_owned()),
            ("t", "\t".to_owned()),
            ("%", "%".to_owned()),
        ];
        let (name, value) = values.into_iter().find(|(name, _)| rest.starts_with(name))?;
        text.push_str(&value);
        rest = &rest[name.len()..];
    }
    text.push_str(rest);
    Some(text)
}

/// `shasum [-a N] [-c] [FILE…]`, with the digests of the machine.
pub(super) fn shasum(words: &[String]) -> ExitCode {
    let (mut algorithm, mut checks, mut files) = ("1", false, Vec::new());
    let mut words_left = words.iter();
    while let Some(word) = words_left.next() {
        match word.as_str() {
            "-a" | "--algorithm" => algorithm = words_left.next().map_or("", String::as_str),
            "-a256" => algorithm = "256",
            "-c" | "--check" => checks = true,
            "-b" | "-t" => {}
            option if option.starts_with('-') && option.len() > 1 => {
                eprintln!("Unknown option: {}\nType shasum -h for help", option.trim_start_matches('-'));
                return ExitCode::FAILURE;
            }
            file => files.push(file),
        }
    }
    if !["1", "224", "256", "384", "512"].contains(&algorithm) {
        eprintln!("shasum: Unrecognized algorithm\nType shasum -h for help");
        return ExitCode::FAILURE;
    }
    let program = format!("sha{algorithm}sum");
    if checks {
        // The words of its verdicts are the same: `FILE: OK`.
        let error = Command::new(Path::new(LINUX).join("usr/bin").join(program)).arg("-c").args(files).exec();
        eprintln!("mac-sim: shasum: {error}");
        return ExitCode::FAILURE;
    }
    if files.is_empty() {
        files.push("-");
    }
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let from = if file == "-" { Path::new("/dev/stdin") } else { Path::new(file) };
        match digest(from, &program) {
            Ok(hash) => println!("{hash}  {file}"),
            Err(error) => {
                let words = if error.kind() == io::ErrorKind::NotFound {
                    "No such file or directory".to_owned()
                } else {
                    error.to_string()
                };
                eprintln!("shasum: {file}: {words}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// `mktemp [-d] [-q] [-t PREFIX] [TEMPLATE]`.
pub(super) fn mktemp(words: &[String]) -> ExitCode {
    const USAGE: &str = "mktemp [-d] [-p tmpdir] [-q] [-t prefix] [-u] template ...\n       mktemp [-d] [-p tmpdir] [-q] [-u] -t prefix";
    let (mut directory, mut prefix, mut template, mut parent) = (false, None, None, None);
    let mut words_left = words.iter();
    while let Some(word) = words_left.next() {
        match word.as_str() {
            "-d" => directory = true,
            "-q" => {}
            "-t" => prefix = words_left.next().cloned(),
            "-dt" => {
                directory = true;
                prefix = words_left.next().cloned();
            }
            "-p" => parent = words_left.next().cloned(),
            option if option.starts_with('-') => return illegal("mktemp", option, USAGE, 1),
            _ if template.is_some() => return not_simulated("mktemp", words),
            path => template = Some(path.to_owned()),
        }
    }
    let folder = parent.or_else(|| std::env::var("TMPDIR").ok()).unwrap_or_else(|| "/tmp".to_owned());
    let template = template.unwrap_or_else(|| {
        format!("{}/{}.XXXXXXXXXX", folder.trim_end_matches('/'), prefix.unwrap_or_else(|| "tmp".to_owned()))
    });
    match make_temporary(&template, directory) {
        Ok(path) => {
            println!("{}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let what = if directory { "mkdtemp" } else { "mkstemp" };
            eprintln!("mktemp: {what} failed on {template}: {}", words_of(&error));
            ExitCode::FAILURE
        }
    }
}

/// The words of an error without Rust's number.
fn words_of(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Only the X at the very end are replaced, unlike with GNU's.
fn make_temporary(template: &str, directory: bool) -> io::Result<PathBuf> {
    let stem = template.trim_end_matches('X');
    let count = template.len() - stem.len();
    loop {
        let letters: String = std::iter::repeat_with(fastrand::alphanumeric).take(count).collect();
        let path = PathBuf::from(format!("{stem}{letters}"));
        let made = if directory {
            fs::create_dir(&path).and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o700)))
        } else {
            File::options()
                .write(true)
                .create_new(true)
                .open(&path)
                .and_then(|file| file.set_permissions(Permissions::from_mode(0o600)))
        };
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && count > 0 => {}
            made => return made.map(|()| path),
        }
    }
}

/// `install [-d] [-m MODE] [-o OWNER] [-g GROUP] SOURCE TARGET`.
pub(super) fn install(words: &[String]) -> ExitCode {
    const USAGE: &str = "install [-bCcpSsUv] [-f flags] [-g group] [-m mode] [-o owner] [-M log] file1 file2";
    let (mut mode, mut owner, mut group, mut directories, mut paths) = (0o755, None, None, false, Vec::new());
    let mut words_left = words.iter();
    while let Some(word) = words_left.next() {
        match word.as_str() {
            "-d" => directories = true,
            "-c" | "-p" | "-S" | "-C" => {}
            "-m" => match words_left.next().and_then(|text| u32::from_str_radix(text, 8).ok()) {
                Some(number) => mode = number,
                None => return not_simulated("install", words),
            },
            "-o" => owner = words_left.next().cloned(),
            "-g" => group = words_left.next().cloned(),
            option if option.starts_with('-') && option.len() > 1 => {
                return illegal("install", option, USAGE, 64);
            }
            path => paths.push(PathBuf::from(path)),
        }
    }
    let uid = match owner.as_deref().map(|name| User::from_name(name).ok().flatten().ok_or(name)) {
        None => None,
        Some(Ok(user)) => Some(user.uid.as_raw()),
        Some(Err(name)) => {
            eprintln!("install: unknown user {name}");
            return ExitCode::from(67);
        }
    };
    let gid = match group.as_deref().map(|name| Group::from_name(name).ok().flatten().ok_or(name)) {
        None => None,
        Some(Ok(group)) => Some(group.gid.as_raw()),
        Some(Err(name)) => {
            eprintln!("install: unknown group {name}");
            return ExitCode::from(67);
        }
    };
    let finish = |path: &Path| {
        chown(path, uid, gid)?;
        fs::set_permissions(path, Permissions::from_mode(mode))
    };
    let done = match paths.as_slice() {
        _ if directories => {
            paths.iter().try_for_each(|path| fs::create_dir_all(path).and_then(|()| finish(path)))
        }
        [source, target] => copy_over(source, target).and_then(|path| finish(&path)),
        _ => return not_simulated("install", words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "install: {}: {}",
                paths.last().map(|path| path.display().to_string()).unwrap_or_default(),
                words_of(&error)
            );
            ExitCode::from(71)
        }
    }
}

/// Without -S the target is removed first, so that it is a new inode.
fn copy_over(source: &Path, target: &Path) -> io::Result<PathBuf> {
    let target =
        if target.is_dir() { target.join(source.file_name().unwrap_or_default()) } else { target.to_owned() };
    let mut content = Vec::new();
    File::open(source)?.read_to_end(&mut content)?;
    if let Err(error) = fs::remove_file(&target)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    fs::write(&target, content)?;
    Ok(target)
}

/// `sed` with BSD's options: `-i` takes the extension as its own argument, also when it is empty.
pub(super) fn sed(words: &[String]) -> ExitCode {
    const USAGE: &str = "sed script [-EHalnru] [-i extension] [file ...]";
    let mut command = Command::new(Path::new(LINUX).join("usr/bin/sed"));
    let mut words_left = words.iter();
    let mut has_script = false;
    while let Some(word) = words_left.next() {
        match word.as_str() {
            "-i" | "-I" => match words_left.next() {
                Some(extension) => {
                    command.arg(format!("-i{extension}"));
                }
                None => return illegal("sed", "-i", USAGE, 1),
            },
            "-e" | "-f" => {
                has_script = true;
                command.arg(word).args(words_left.next());
            }
            "--" => {}
            long if long.starts_with("--") => return illegal("sed", "-", USAGE, 1),
            joined if joined.starts_with("-i") => {
                command.arg(joined);
            }
            letters if letters.starts_with('-') && letters.len() > 1 => {
                if let Some(letter) = letters.chars().skip(1).find(|letter| !"Enalur".contains(*letter)) {
                    return illegal("sed", &letter.to_string(), USAGE, 1);
                }
                command.arg(letters.replace(['a', 'l'], ""));
            }
            script if !has_script => {
                has_script = true;
                command.arg("-e").arg(script);
            }
            file => {
                command.arg(file);
            }
        }
    }
    let error = command.exec();
    eprintln!("mac-sim: sed: {error}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_stat_are_bsds() {
        let metadata = fs::metadata("/").unwrap();
        let expanded = |format: &str| expand(format, &metadata, "/");
        assert_eq!(
            expanded("%u:%g %HT%n"),
            Some(format!("{}:{} Directory\n", metadata.uid(), metadata.gid()))
        );
        assert_eq!(expanded("%i"), Some(metadata.ino().to_string()));
        assert_eq!(expanded("%OLp"), Some(format!("{:03o}", metadata.mode() & 0o777)));
        // GNU's.
        assert_eq!(expanded("%y"), None);
    }
}
