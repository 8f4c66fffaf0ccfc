//! `sudo` and `chroot`: how a guest's user becomes another one.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use nix::unistd::{Gid, Group, Uid, User, chdir, geteuid, gethostname, getuid, setgid, setuid};

use super::usage;
use crate::guest::commands::INIT_PID;

/// The variables that `sudo` keeps on macOS. It also keeps the simulator's own, which stand for hardware.
const KEPT: &[&str] = &["HOME", "LANG", "MAIL", "PATH", "SHELL", "TERM", "TMPDIR", "TZ"];
const OWN: &str = "TART_SIM_";

/// Runs a command as another user: root by default, or the same user if only a group is given.
///
/// The rule is that of the real images, `ALL=(ALL) NOPASSWD: ALL`. The rule names no groups, so `sudo` refuses a
/// group that the user is not in. It also refuses a number that is no user's.
pub(super) fn sudo(words: &[OsString]) -> ExitCode {
    let mut words = words.iter().peekable();
    let (mut shell, mut new_home) = (false, false);
    let (mut user, mut group) = (None, None);
    while let Some(option) = words.next_if(|word| word.as_encoded_bytes().starts_with(b"-")) {
        match option.to_str() {
            Some("--") => break,
            Some("-u" | "--user") => user = words.next(),
            Some("-g" | "--group") => group = words.next(),
            Some("-p" | "--prompt" | "-C" | "-h" | "--host") => {
                words.next();
            }
            Some("-i" | "--login") => (shell, new_home) = (true, true),
            Some("-s" | "--shell") => shell = true,
            Some("-H" | "--set-home") => new_home = true,
            // -n, -E, -S, -k, -v and their like change nothing here.
            _ => {}
        }
    }
    if !geteuid().is_root() && env::var_os(INIT_PID).is_none() {
        eprintln!("sudo: a password is required");
        return ExitCode::FAILURE;
    }
    let assignments: Vec<_> =
        std::iter::from_fn(|| words.next_if(|word| word.to_str().is_some_and(is_assignment))).collect();
    let shell = shell.then(|| env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
    let program = shell.as_ref().or_else(|| words.next());
    let target = match target(user, group, program.map_or_else(|| "list".as_ref(), OsString::as_os_str)) {
        Ok(target) => target,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    // `sudo -v` asks whether the user may use sudo.
    let Some(program) = program else { return ExitCode::SUCCESS };
    if let Err(error) = become_user(target.user.uid, target.gid, &[target.gid]) {
        eprintln!("sudo: unable to change to runas uid: {}", error.desc());
        return ExitCode::FAILURE;
    }
    let mut command = Command::new(program);
    let kept = |name: &OsStr| {
        KEPT.iter().any(|kept| name == *kept) || name.as_encoded_bytes().starts_with(OWN.as_bytes())
    };
    command.env_clear().envs(env::vars_os().filter(|(name, _)| kept(name)));
    command.env("USER", &target.user.name).env("LOGNAME", &target.user.name);
    if new_home {
        command.env("HOME", &target.user.dir);
    }
    command.envs(assignments.iter().filter_map(|word| word.to_str()?.split_once('=')));
    match (&shell, words.len()) {
        (Some(_), 0) | (None, _) => command.args(words),
        (Some(_), _) => command.arg("-c").arg(words.cloned().collect::<Vec<_>>().join(OsStr::new(" "))),
    };
    let _ = command.exec();
    eprintln!("sudo: {}: command not found", program.display());
    ExitCode::FAILURE
}

/// The user and group that `sudo` changes to.
struct Target {
    user: User,
    gid: Gid,
}

fn target(user: Option<&OsString>, group: Option<&OsString>, program: &OsStr) -> Result<Target, String> {
    let this = User::from_uid(getuid()).ok().flatten();
    let found = match user.map(|name| name.to_string_lossy()) {
        None if group.is_some() => this.clone(),
        None => User::from_uid(Uid::from_raw(0)).ok().flatten(),
        Some(name) => {
            let found = match name.strip_prefix('#') {
                Some(number) => {
                    number.parse().ok().and_then(|id| User::from_uid(Uid::from_raw(id)).ok().flatten())
                }
                None => User::from_name(&name).ok().flatten(),
            };
            Some(found.ok_or_else(|| format!("sudo: unknown user {name}"))?)
        }
    };
    let user = found.ok_or("sudo: you do not exist in the passwd database")?;
    let Some(name) = group.map(|name| name.to_string_lossy()) else {
        return Ok(Target { gid: user.gid, user });
    };
    let group = match name.strip_prefix('#') {
        Some(number) => number.parse().ok().and_then(|id| Group::from_gid(Gid::from_raw(id)).ok().flatten()),
        None => Group::from_name(&name).ok().flatten(),
    };
    let group = group.ok_or_else(|| format!("sudo: unknown group {name}"))?;
    if group.gid != user.gid && !group.mem.contains(&user.name) {
        let host = gethostname().unwrap_or_default();
        return Err(format!(
            "Sorry, user {} is not allowed to execute '{}' as {}:{} on {}.",
            this.map(|user| user.name).unwrap_or_default(),
            program.display(),
            user.name,
            group.name,
            host.display()
        ));
    }
    Ok(Target { gid: group.gid, user })
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

/// `chroot [-G GROUPS] [-g GROUP] [-u USER] DIRECTORY COMMAND`, with the grammar of BSD. Unlike `sudo`, it accepts any number.
pub(super) fn chroot(words: &[OsString]) -> ExitCode {
    const USAGE: &str = "chroot [-g group] [-G group,group,...] [-u user] newroot [command]";
    let mut words = words.iter().peekable();
    let (mut user, mut group, mut groups) = (None, None, None);
    while let Some(option) = words.next_if(|word| word.as_encoded_bytes().starts_with(b"-")) {
        let value = words.next().and_then(|word| word.to_str());
        match (option.to_str(), value) {
            (Some("-u"), Some(value)) => user = Some(value),
            (Some("-g"), Some(value)) => group = Some(value),
            (Some("-G"), Some(value)) => groups = Some(value),
            _ => return usage(USAGE),
        }
    }
    let (Some(root), Some(program)) = (words.next(), words.next()) else { return usage(USAGE) };
    let fail = |subject: &OsStr, error: nix::Error| {
        eprintln!("chroot: {}: {}", subject.display(), error.desc());
        ExitCode::FAILURE
    };
    let number = |name: &str| name.parse::<u32>().ok();
    let user =
        user.map(|name| number(name).or_else(|| Some(User::from_name(name).ok()??.uid.as_raw())).ok_or(name));
    let gid = |name| number(name).or_else(|| Some(Group::from_name(name).ok()??.gid.as_raw())).ok_or(name);
    let groups = groups.map(|names| names.split(',').map(gid).collect::<Result<Vec<_>, _>>()).transpose();
    let (user, group, groups) = match (user.transpose(), group.map(gid).transpose(), groups) {
        (Ok(user), Ok(group), Ok(groups)) => (user, group, groups),
        (Err(name), ..) => {
            eprintln!("chroot: no such user `{name}'");
            return ExitCode::FAILURE;
        }
        (_, Err(name), _) | (.., Err(name)) => {
            eprintln!("chroot: no such group `{name}'");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = chdir(root.as_os_str()).and_then(|()| nix::unistd::chroot(".")) {
        return fail(root, error);
    }
    let uid = user.map_or_else(geteuid, Uid::from_raw);
    let gid = group.map_or_else(nix::unistd::getegid, Gid::from_raw);
    let groups: Vec<Gid> = groups.into_iter().flatten().map(Gid::from_raw).collect();
    if let Err(error) = become_user(uid, gid, &groups) {
        return fail(OsStr::new("setuid"), error);
    }
    let error = Command::new(program).args(words).exec();
    eprintln!("chroot: {}: {error}", program.display());
    ExitCode::FAILURE
}

/// Takes on a user, a group, and further groups.
fn become_user(uid: Uid, gid: Gid, groups: &[Gid]) -> nix::Result<()> {
    // On a machine where the simulator is not root, the guest's root is its own user.
    if !geteuid().is_root() && (uid.is_root() || uid == geteuid()) {
        return Ok(());
    }
    #[cfg(target_os = "linux")]
    set_groups(groups)?;
    // A Mac's simulator has no guest with groups of its own.
    #[cfg(not(target_os = "linux"))]
    let _ = groups;
    setgid(gid)?;
    setuid(uid)
}

#[cfg(target_os = "linux")]
fn set_groups(groups: &[Gid]) -> nix::Result<()> {
    match nix::unistd::setgroups(groups) {
        // A user namespace forbids it, which does no harm.
        Err(nix::Error::EPERM) => Ok(()),
        result => result,
    }
}
