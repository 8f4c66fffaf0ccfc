//! The machine's programs, with the options of a Mac: macOS has BSD's, and a script that uses GNU's own options must fail.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use mac_sim::settings::SIMULATOR;

use super::machine;

/// Programs that behave as on a Mac, as far as scripts use them, and the directories in which macOS has them.
const PLAIN: &[(&str, &[&str])] = &[
    (
        "bin",
        &["[", "bash", "cat", "dash", "echo", "expr", "kill", "pwd", "sh", "sleep", "sync", "test", "stty"],
    ),
    (
        "usr/bin",
        &[
            "awk",
            "basename",
            "bc",
            "clear",
            "cmp",
            "comm",
            "curl",
            "cut",
            "dirname",
            "false",
            "fold",
            "getconf",
            "getopt",
            "gunzip",
            "gzip",
            "join",
            "killall",
            "less",
            "logger",
            "nc",
            "nl",
            "nohup",
            "openssl",
            "paste",
            "perl",
            "pgrep",
            "pkill",
            "printf",
            "rev",
            "scp",
            "seq",
            "sftp",
            "ssh",
            "ssh-keygen",
            "split",
            "tar",
            "tput",
            "tr",
            "true",
            "tty",
            "uniq",
            "uptime",
            "uuidgen",
            "vi",
            "which",
            "xxd",
            "yes",
            "zcat",
            "time",
            "bzip2",
            "xz",
        ],
    ),
    ("usr/sbin", &["chroot", "lsof"]),
    ("sbin", &["ifconfig", "mount", "ping", "umount"]),
];

/// Programs that GNU has given more options, and the letters of those that BSD's do not know.
const STRICT: &[(&str, &str, &str)] = &[
    ("bin", "chmod", "c"),
    ("bin", "cp", "bdtuTxZ"),
    ("bin", "date", "dIsR"),
    ("bin", "dd", ""),
    ("bin", "df", "BTx"),
    ("bin", "ln", "bdrtT"),
    ("bin", "ls", "DINQXZ"),
    ("bin", "mkdir", "Z"),
    ("bin", "mv", "btuTZ"),
    ("bin", "ps", ""),
    ("bin", "rm", ""),
    ("bin", "rmdir", ""),
    ("usr/bin", "base64", "w"),
    ("usr/bin", "diff", ""),
    ("usr/bin", "du", "bB"),
    ("usr/bin", "env", ""),
    ("usr/bin", "find", ""),
    ("usr/bin", "grep", "PTzZ"),
    ("usr/bin", "head", "qvz"),
    ("usr/bin", "id", "zZ"),
    ("usr/bin", "readlink", "emqsvz"),
    ("usr/bin", "realpath", "ezms"),
    ("usr/bin", "sort", ""),
    ("usr/bin", "tail", "sz"),
    ("usr/bin", "tee", "p"),
    ("usr/bin", "touch", ""),
    ("usr/bin", "wc", ""),
    ("usr/bin", "whoami", ""),
    ("usr/bin", "xargs", "ad"),
    ("usr/sbin", "chown", "c"),
    ("usr/bin", "chgrp", "c"),
];

/// Words of `find` that only GNU's knows.
const GNU_FIND: &[&str] =
    &["-printf", "-regextype", "-executable", "-readable", "-writable", "-printf0", "-fprintf"];

/// The directory of links to the machine's programs, which may have other names there.
const MACHINE: &str = "/private/var/db/mac-sim/machine";

/// Where the machine's programs are found under their own names.
fn linked(name: &str) -> PathBuf {
    Path::new(MACHINE).join(name)
}

/// Puts the machine's programs into the Mac's root, as far as the machine has them.
pub(super) fn install(root: &Path) -> io::Result<()> {
    for (directory, names) in PLAIN {
        for (name, program) in names.iter().filter_map(|name| Some((name, machine(name)?))) {
            symlink(program, root.join(directory).join(name))?;
        }
    }
    let links = root.join(MACHINE.trim_start_matches('/'));
    fs::create_dir_all(&links)?;
    for (directory, name, _) in STRICT {
        if let Some(program) = machine(name) {
            symlink(program, links.join(name))?;
            symlink(Path::new(SIMULATOR).join("mac-sim"), root.join(directory).join(name))?;
        }
    }
    Ok(())
}

/// Runs one of the machine's programs, unless an option is GNU's own. `None` if it is none of them.
pub(super) fn run(name: &str, words: &[OsString]) -> Option<ExitCode> {
    let (_, _, refused) = STRICT.iter().find(|(_, known, _)| *known == name)?;
    if let Some(option) = gnu_option(name, refused, words) {
        eprintln!("{name}: illegal option -- {option}\nusage: {name} (see `man {name}`)");
        return Some(ExitCode::from(64));
    }
    let error = Command::new(linked(name)).arg0(name).args(words).exec();
    eprintln!("mac-sim: {name}: {error}");
    Some(ExitCode::from(126))
}

/// The first option that a Mac's program does not know.
fn gnu_option(name: &str, refused: &str, words: &[OsString]) -> Option<String> {
    for word in words {
        let Some(word) = word.to_str() else { continue };
        if name == "find" && GNU_FIND.contains(&word) {
            return Some(word.trim_start_matches('-').to_owned());
        }
        // `env` and `xargs` end their own options at the program that they run.
        if matches!(name, "env" | "xargs") && !word.starts_with('-') && !word.contains('=') {
            return None;
        }
        match word.strip_prefix('-') {
            Some("-") => return None,
            Some(long) if long.starts_with('-') => return Some("-".to_owned()),
            Some(letters) => {
                if let Some(letter) = letters
                    .chars()
                    .take_while(char::is_ascii_alphabetic)
                    .find(|letter| refused.contains(*letter))
                {
                    return Some(letter.to_string());
                }
            }
            None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_gnu_are_refused() {
        let option = |name: &str, words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            let (_, _, refused) = STRICT.iter().find(|(_, known, _)| *known == name).unwrap();
            gnu_option(name, refused, &words)
        };
        for (name, words, expected) in [
            ("cp", &["-a", "x", "y"][..], None),
            ("cp", &["-T", "x", "y"], Some("T")),
            ("mkdir", &["-p", "x"], None),
            ("mkdir", &["--parents", "x"], Some("-")),
            ("readlink", &["-f", "x"], None),
            ("readlink", &["-e", "x"], Some("e")),
            ("rm", &["-rf", "--", "--x"], None),
            ("date", &["+%s"], None),
            ("date", &["-d", "now"], Some("d")),
            ("find", &["/", "-name", "x", "-printf", "%p"], Some("printf")),
            ("env", &["A=b", "tart-kubelet", "--version"], None),
            ("base64", &["-w0"], Some("w")),
        ] {
            assert_eq!(option(name, words).as_deref(), expected, "{name} {words:?}");
        }
    }
}
