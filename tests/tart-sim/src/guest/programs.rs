//! The programs that scripts expect in a macOS guest, and that a plain machine lacks or must not run for real.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Group, Pid, Uid, User, setgid, setuid};

use super::commands::INIT_PID;

/// The signal by which init is told to power off.
pub(super) const POWER_OFF: Signal = Signal::SIGUSR2;

/// The signal by which init is told to reboot.
pub(super) const REBOOT: Signal = Signal::SIGTERM;

/// A program's body: from its arguments to its exit code.
type Program = fn(&[OsString]) -> ExitCode;

/// Every program, and the directory it lives in.
const PROGRAMS: &[(&str, &str, Program)] = &[
    ("/usr/bin", "sudo", sudo),
    ("/usr/bin", "sw_vers", sw_vers),
    ("/sbin", "shutdown", shutdown),
    ("/sbin", "halt", halt),
    ("/sbin", "reboot", reboot),
    ("/sbin", "mount_virtiofs", mount_virtiofs),
    // What Linux's mount calls for this type of file system.
    ("/sbin", "mount.virtiofs", mount_dot_virtiofs),
];

/// The program of that name.
pub(super) fn find(name: &str) -> Option<Program> {
    PROGRAMS.iter().find(|(_, program, _)| *program == name).map(|(.., body)| *body)
}

/// Puts links to this binary where the programs are expected, over whatever is there.
pub(super) fn install(own_program: &Path, place: impl Fn(&str) -> std::path::PathBuf) -> std::io::Result<()> {
    for (directory, name, _) in PROGRAMS {
        let directory = place(directory);
        let link = directory.join(name);
        if fs::read_link(&link).is_ok_and(|target| target == own_program) {
            continue;
        }
        fs::create_dir_all(&directory)?;
        // Missing is as good as removed.
        let _ = fs::remove_file(&link);
        symlink(own_program, &link)?;
    }
    Ok(())
}

/// Runs the rest as another user: root, who the guest's own user is anyway, unless told otherwise.
fn sudo(words: &[OsString]) -> ExitCode {
    let mut words = words.iter().peekable();
    let mut shell = false;
    let (mut user, mut group) = (None, None);
    while let Some(option) = words.next_if(|word| word.as_encoded_bytes().starts_with(b"-")) {
        match option.to_str() {
            Some("--") => break,
            Some("-u" | "--user") => user = words.next(),
            Some("-g" | "--group") => group = words.next(),
            Some("-p" | "--prompt" | "-C" | "-h" | "--host") => {
                words.next();
            }
            Some("-i" | "--login" | "-s" | "--shell") => shell = true,
            // -n, -E, -H, -S, -k, -v and their like change nothing here.
            _ => {}
        }
    }
    if let Err(message) = become_other(user, group) {
        eprintln!("sudo: {message}");
        return ExitCode::FAILURE;
    }
    let mut variables = Vec::new();
    while let Some(assignment) = words.next_if(|word| word.to_str().is_some_and(is_assignment)) {
        let (name, value) = assignment.to_str().and_then(|word| word.split_once('=')).unwrap_or_default();
        variables.push((name, value));
    }
    let shell = shell.then(|| env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
    let Some(program) = shell.as_ref().or_else(|| words.next()) else {
        // `sudo -v` asks whether the user may: yes.
        return ExitCode::SUCCESS;
    };
    let mut command = Command::new(program);
    command.envs(variables);
    match (&shell, words.len()) {
        (Some(_), 0) | (None, _) => command.args(words),
        (Some(_), _) => command.arg("-c").arg(words.cloned().collect::<Vec<_>>().join(OsStr::new(" "))),
    };
    let _ = command.exec();
    eprintln!("sudo: {}: command not found", program.display());
    ExitCode::FAILURE
}

/// Becomes the user and the group that `-u` and `-g` name, by name or as `#` and a number; they must be the guest's.
fn become_other(user: Option<&OsString>, group: Option<&OsString>) -> Result<(), String> {
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    let found = user.map(|user| {
        let name = text(user);
        let known = match name.strip_prefix('#') {
            Some(number) => {
                number.parse().ok().and_then(|id| User::from_uid(Uid::from_raw(id)).ok().flatten())
            }
            None => User::from_name(&name).ok().flatten(),
        };
        known.ok_or_else(|| format!("unknown user {name}"))
    });
    let user = found.transpose()?;
    let found = group.map(|group| {
        let name = text(group);
        let known = match name.strip_prefix('#') {
            Some(number) => {
                number.parse().ok().and_then(|id| Group::from_gid(Gid::from_raw(id)).ok().flatten())
            }
            None => Group::from_name(&name).ok().flatten(),
        };
        known.ok_or_else(|| format!("unknown group {name}"))
    });
    let group = found.transpose()?;
    let refused = |error: nix::Error| format!("unable to change to runas uid: {}", error.desc());
    if let Some(gid) = group.map(|group| group.gid).or_else(|| user.as_ref().map(|user| user.gid)) {
        setgid(gid).map_err(refused)?;
    }
    user.map_or(Ok(()), |user| setuid(user.uid).map_err(refused))
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

/// Says which macOS this pretends to be.
fn sw_vers(words: &[OsString]) -> ExitCode {
    const FACTS: [(&str, &str, &str); 3] = [
        ("ProductName", "productName", "macOS"),
        ("ProductVersion", "productVersion", "26.3.1"),
        ("BuildVersion", "buildVersion", "25D2128"),
    ];
    let Some(wanted) = words.first().and_then(|word| word.to_str()) else {
        for (name, _, value) in FACTS {
            println!("{name}:\t\t{value}");
        }
        return ExitCode::SUCCESS;
    };
    match FACTS.iter().find(|(_, option, _)| wanted.trim_start_matches('-') == *option) {
        Some((.., value)) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        None => usage("sw_vers [--help|--productName|--productVersion|--productVersionExtra|--buildVersion]"),
    }
}

/// `shutdown -h now` and `shutdown -r now`.
fn shutdown(words: &[OsString]) -> ExitCode {
    let words: Vec<_> = words.iter().filter_map(|word| word.to_str()).collect();
    match words.as_slice() {
        ["-h" | "-P", "now" | "+0", ..] => tell_init(POWER_OFF),
        ["-r", "now" | "+0", ..] => tell_init(REBOOT),
        _ => usage("shutdown [-] [-h [-u] [-n] | -r [-n] | -s | -k] time [warning-message ...]"),
    }
}

fn halt(_: &[OsString]) -> ExitCode {
    tell_init(POWER_OFF)
}

fn reboot(_: &[OsString]) -> ExitCode {
    tell_init(REBOOT)
}

fn tell_init(signal: Signal) -> ExitCode {
    let told = match env::var(INIT_PID).ok().and_then(|id| id.parse().ok()) {
        Some(id) => kill(Pid::from_raw(id), signal).is_ok(),
        // Whoever runs this outside of a guest must not hit the init of the real machine.
        None => is_own_binary("/proc/1/exe") && kill(Pid::from_raw(1), signal).is_ok(),
    };
    if told {
        ExitCode::SUCCESS
    } else {
        eprintln!("shutdown: NOT super-user");
        ExitCode::FAILURE
    }
}

fn is_own_binary(path: &str) -> bool {
    let identity = |path: &str| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    identity(path).is_some_and(|theirs| identity("/proc/self/exe") == Some(theirs))
}

/// `mount_virtiofs TAG DIRECTORY`.
fn mount_virtiofs(words: &[OsString]) -> ExitCode {
    let words: Vec<_> = words.iter().filter(|word| !word.as_encoded_bytes().starts_with(b"-")).collect();
    let [tag, directory] = words.as_slice() else {
        return usage("mount_virtiofs [-o options] fs_tag directory");
    };
    match mount_share(&tag.to_string_lossy(), Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("mount_virtiofs: {message}");
            ExitCode::FAILURE
        }
    }
}

/// `mount -t virtiofs TAG DIRECTORY`, in Linux.
fn mount_dot_virtiofs(words: &[OsString]) -> ExitCode {
    let [tag, directory, ..] = words else { return usage("mount.virtiofs tag directory [-o options]") };
    if mount_share(&tag.to_string_lossy(), Path::new(directory)).is_ok() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "mount: {}: wrong fs type, bad option, bad superblock on {}, missing codepage or helper program, or other error.",
        directory.display(),
        tag.display()
    );
    ExitCode::from(32)
}

#[cfg(target_os = "linux")]
fn mount_share(tag: &str, directory: &Path) -> Result<(), String> {
    super::linux::mount_share(tag, directory)
}

#[cfg(not(target_os = "linux"))]
fn mount_share(_: &str, directory: &Path) -> Result<(), String> {
    Err(format!("{}: Operation not supported", directory.display()))
}

fn usage(text: &str) -> ExitCode {
    eprintln!("usage: {text}");
    ExitCode::from(64)
}
