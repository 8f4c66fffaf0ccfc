//! `sudo`: a setuid copy of this binary.

use std::env;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime};

use mac_sim::settings::Settings;
use nix::unistd::{Gid, Group, Uid, User, getgroups, getuid, initgroups, setgid, setuid};

use super::sudoers;

/// The variables that `sudo` keeps on macOS. It also keeps the simulator's own, which stand for hardware.
const KEPT: &[&str] = &["HOME", "LANG", "LC_ALL", "MAIL", "PATH", "SHELL", "TERM", "TMPDIR", "TZ"];
const OWN: &str = "TART_SIM_";

/// Where wrong passwords are counted.
const FAILURES: &str = "/private/var/db/mac-sim/wrong-passwords";
/// After that many wrong passwords the account is locked, until no attempt was made for [`UNLOCKED_AFTER`].
const LOCKED_AFTER: usize = 10;
const UNLOCKED_AFTER: Duration = Duration::from_mins(10);
/// How often `sudo` asks.
const TRIES: usize = 3;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Options {
    never_asks: bool,
    from_stdin: bool,
    forgets: bool,
    validates: bool,
    sets_home: bool,
    shell: bool,
    prompt: Option<String>,
    user: Option<String>,
    assignments: Vec<(String, String)>,
    command: Vec<String>,
}

fn parse(words: &[String]) -> Option<Options> {
    let mut options = Options::default();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next_if(|word| word.starts_with('-') && word.len() > 1) {
        match word.as_str() {
            "--" => break,
            "-u" | "--user" => options.user = Some(words.next()?.clone()),
            "-p" | "--prompt" => options.prompt = Some(words.next()?.clone()),
            "--non-interactive" => options.never_asks = true,
            "--stdin" => options.from_stdin = true,
            "--validate" => options.validates = true,
            letters if !letters.starts_with("--") => {
                for letter in letters.chars().skip(1) {
                    match letter {
                        'n' => options.never_asks = true,
                        'S' => options.from_stdin = true,
                        'k' | 'K' => options.forgets = true,
                        'v' => options.validates = true,
                        'H' => options.sets_home = true,
                        'i' => (options.shell, options.sets_home) = (true, true),
                        's' => options.shell = true,
                        'E' => {}
                        _ => return None,
                    }
                }
            }
            _ => return None,
        }
    }
    while let Some((name, value)) =
        words.peek().and_then(|word| word.split_once('=')).filter(|(name, _)| is_name(name))
    {
        options.assignments.push((name.to_owned(), value.to_owned()));
        words.next();
    }
    options.command = words.cloned().collect();
    let does_something = options.validates || options.forgets || options.shell || !options.command.is_empty();
    does_something.then_some(options)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

pub(super) fn main(words: &[String]) -> ExitCode {
    let Some(options) = parse(words) else {
        eprintln!(
            "usage: sudo -h | -K | -k | -V\nusage: sudo -v [-AknS] [-p prompt] [-u user]\nusage: sudo [-AbEHknPS] [-p prompt] [-u user] [VAR=value] [-i | -s] [command [arg ...]]"
        );
        return ExitCode::FAILURE;
    };
    if !nix::unistd::geteuid().is_root() {
        eprintln!("sudo: /usr/bin/sudo must be owned by uid 0 and have the setuid bit set");
        return ExitCode::FAILURE;
    }
    match authenticate(&options) {
        Ok(()) => run(&options),
        Err(words) => {
            eprintln!("{words}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the user may do what is asked; the error is what `sudo` says.
fn authenticate(options: &Options) -> Result<(), String> {
    if getuid().is_root() {
        return Ok(());
    }
    let user =
        User::from_uid(getuid()).ok().flatten().ok_or("sudo: you do not exist in the passwd database")?;
    let groups = getgroups().unwrap_or_default();
    let groups: Vec<_> = groups
        .into_iter()
        .filter_map(|gid| Group::from_gid(gid).ok().flatten())
        .map(|group| group.name)
        .collect();
    let (needs_password, broken) = sudoers::needs_password(&user.name, &groups);
    for file in &broken {
        match file.words.split_once(": ") {
            Some((line, words)) => eprintln!("{}:{line}: {words}", file.path.display()),
            None => eprintln!("sudo: {} {}", file.path.display(), file.words),
        }
    }
    match needs_password {
        None => Err(format!("{} is not in the sudoers file.\nThis incident has been reported to the administrator.", user.name)),
        Some(false) => Ok(()),
        Some(true) if options.never_asks => Err("sudo: a password is required".to_owned()),
        Some(true) if options.from_stdin => ask(options),
        // A session without a terminal: nothing could be typed.
        Some(true) => Err("sudo: a terminal is required to read the password; either use the -S option to read from standard input or configure an askpass helper\nsudo: a password is required".to_owned()),
    }
}

/// Asks for the password on stdin.
fn ask(options: &Options) -> Result<(), String> {
    let settings = Settings::of_this_mac().map_err(|error| format!("mac-sim: {error}"))?;
    let mut wrong = 0;
    while wrong < TRIES {
        eprint!("{}", options.prompt.as_deref().unwrap_or("Password:"));
        let Some(line) = read_line() else {
            eprintln!();
            return Err(match wrong {
                0 => "sudo: no password was provided\nsudo: a password is required".to_owned(),
                1 => "sudo: 1 incorrect password attempt".to_owned(),
                _ => format!("sudo: {wrong} incorrect password attempts"),
            });
        };
        if line == settings.password.as_bytes() && !is_locked() {
            // The right password ends the count.
            let _ = fs::remove_file(FAILURES);
            return Ok(());
        }
        wrong += 1;
        count_failure();
        if wrong < TRIES {
            eprintln!("Sorry, try again.");
        }
    }
    Err(format!("sudo: {TRIES} incorrect password attempts"))
}

/// Reads one line, and not a byte of what follows it: that is for the command. A line without an end is none.
fn read_line() -> Option<Vec<u8>> {
    // Rust's own stdin reads ahead.
    let mut stdin = fs::File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match stdin.read(&mut byte) {
            Ok(1) if byte == *b"\n" => return Some(line),
            Ok(1) => line.push(byte[0]),
            _ => return None,
        }
    }
}

/// One byte for each wrong password since the last right one.
fn count_failure() {
    let _ = fs::File::options()
        .create(true)
        .append(true)
        .open(FAILURES)
        .and_then(|mut file| file.write_all(b"x"));
}

fn is_locked() -> bool {
    let Ok(metadata) = fs::metadata(FAILURES) else { return false };
    let idle = metadata.modified().ok().and_then(|last| SystemTime::now().duration_since(last).ok());
    let is_idle = idle.is_some_and(|idle| idle >= UNLOCKED_AFTER);
    usize::try_from(metadata.len()).is_ok_and(|wrong| wrong >= LOCKED_AFTER) && !is_idle
}

/// Becomes the command.
fn run(options: &Options) -> ExitCode {
    let name = options.user.as_deref().unwrap_or("root");
    let user = match name.strip_prefix('#').map(str::parse) {
        Some(Ok(uid)) => User::from_uid(Uid::from_raw(uid)),
        _ => User::from_name(name),
    };
    let Some(user) = user.ok().flatten() else {
        eprintln!("sudo: unknown user {name}");
        return ExitCode::FAILURE;
    };
    let shell = options.shell.then(|| user.shell.clone());
    let program = match (&shell, options.command.first()) {
        (Some(shell), _) => shell.display().to_string(),
        (None, Some(program)) => program.clone(),
        (None, None) => return ExitCode::SUCCESS,
    };
    let caller = getuid();
    if let Err(error) = become_user(&user) {
        eprintln!("sudo: unable to change to runas uid: {}", error.desc());
        return ExitCode::FAILURE;
    }
    let mut command = Command::new(&program);
    command
        .env_clear()
        .envs(env::vars().filter(|(name, _)| KEPT.contains(&name.as_str()) || name.starts_with(OWN)));
    command.env("USER", &user.name).env("LOGNAME", &user.name).env("SUDO_UID", caller.to_string());
    if options.sets_home {
        command.env("HOME", &user.dir);
    }
    command.envs(options.assignments.iter().map(|(name, value)| (name, value)));
    match (&shell, options.command.as_slice()) {
        (Some(_), []) => {}
        (Some(_), words) => {
            command.arg("-c").arg(words.join(" "));
        }
        (None, words) => {
            command.args(&words[1..]);
        }
    }
    let error = command.exec();
    match error.kind() {
        io::ErrorKind::NotFound => eprintln!("sudo: {program}: command not found"),
        _ => eprintln!("sudo: unable to execute {}: {error}", Path::new(&program).display()),
    }
    ExitCode::FAILURE
}

fn become_user(user: &User) -> nix::Result<()> {
    let name = std::ffi::CString::new(user.name.clone()).map_err(|_| nix::errno::Errno::EINVAL)?;
    let gid: Gid = user.gid;
    initgroups(&name, gid)?;
    setgid(gid)?;
    setuid(user.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_where_the_command_begins() {
        let options = |line: &str| parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let parsed = options("-n -u m1 A=b launchctl print -n").unwrap();
        assert!(parsed.never_asks);
        assert_eq!(parsed.user.as_deref(), Some("m1"));
        assert_eq!(parsed.assignments, [("A".to_owned(), "b".to_owned())]);
        assert_eq!(parsed.command, ["launchctl", "print", "-n"]);
        assert!(options("-kS -p x tee").unwrap().from_stdin);
        for nonsense in ["-n", "-x true", "--whatever true"] {
            assert_eq!(options(nonsense), None, "{nonsense}");
        }
    }
}
