//! The set-up's result: the container's scripts in the guest, and the command lines that run them.

use std::time::Duration;

use crate::state::{GuestUser, NotStarted, NotStartedReason};

/// How much of the guest's output a message quotes.
const MAX_QUOTE: usize = 500;

/// The scripts that the set-up has left in the guest for one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerScripts {
    /// Their directory in the guest.
    pub(super) dir: String,
    /// The words that make a command run as the container's user; empty when that is the guest's own user.
    become_user: Vec<String>,
    /// The number of the container's user in the guest.
    pub(crate) user: Option<u32>,
    /// What the set-up could not do, and did not fail for.
    pub(crate) notices: Vec<String>,
}

/// The result of the set-up by the script's own account; `None` when the script's last line is missing or incomplete.
pub(crate) fn read_set_up(output: &[u8], user: &GuestUser) -> Option<Result<ContainerScripts, NotStarted>> {
    let text = String::from_utf8_lossy(output);
    let (mut notices, mut number) = (Vec::new(), None);
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        match line.split_once(' ') {
            Some(("notice", words)) => notices.push(words.chars().take(MAX_QUOTE).collect()),
            Some(("user", words)) => number = words.parse().ok(),
            Some(("failed", rest)) => {
                let (reason, words) = rest.split_once(' ').unwrap_or(("", rest));
                let message = words.chars().take(MAX_QUOTE).collect();
                return Some(Err(NotStarted { reason: read_reason(reason), message, fault: None }));
            }
            Some(("ready", rest)) => {
                let (how, dir) = rest.split_once(' ').unwrap_or((rest, ""));
                let become_user = become_user(how, user);
                let dir = dir.to_owned();
                return Some(Ok(ContainerScripts { dir, become_user, user: number, notices }));
            }
            _ => {}
        }
    }
    None
}

/// The guest is not trusted: it can give no other reasons than these.
fn read_reason(word: &str) -> NotStartedReason {
    match word {
        "CreateContainerConfigError" => NotStartedReason::CreateContainerConfigError,
        "StartError" => NotStartedReason::StartError,
        _ => NotStartedReason::CreateContainerError,
    }
}

/// The failure of a set-up that ended without its last line.
pub(crate) fn incomplete_set_up(output: &[u8]) -> NotStarted {
    let words: String = String::from_utf8_lossy(output).trim().chars().take(MAX_QUOTE).collect();
    let message = format!("the guest cannot be prepared for the container: {words}");
    NotStarted { reason: NotStartedReason::CreateContainerError, message, fault: None }
}

/// The command may be about to start. After its end, its process ID may be another process's.
const TERMINATE: &str = r#"
    { [ -e "$0/code" ] || [ -e "$0/asked" ]; } && exit 0
    until [ -s "$0/pid" ]; do sleep 0.1; done
    kill -TERM "$(cat "$0/pid")" || exit
    { echo >"$0/asked"; } 2>/dev/null
    true"#;

impl ContainerScripts {
    /// Runs the container's command, and exits with its exit code, 128 + signal included.
    pub(crate) fn run(&self, argv: &[String]) -> Vec<String> {
        self.line("run", argv)
    }

    /// Waits at most `limit` for the end of the container's command, and prints its exit code.
    pub(crate) fn wait(&self, limit: Duration) -> Vec<String> {
        self.limited(limit, "[ -e \"$0/code\" ] || read -r _ <\"$0/over\"; cat \"$0/code\"")
    }

    /// Prints the exit code of the container's command, unless it still runs. A shell that was killed may have left it half-written.
    pub(crate) fn exit_code(&self) -> Vec<String> {
        let script = "cat \"$0/code\" 2>/dev/null || cat \"$0/code.tmp\"";
        let words = ["/bin/sh", "-c", script, &self.dir].map(str::to_owned);
        self.become_user.iter().cloned().chain(words).collect()
    }

    /// The words in front of a command that runs in the container's environment.
    pub(crate) fn enter(&self) -> Vec<String> {
        self.line("enter", &[])
    }

    /// The words in front of a hook: as [`enter`](Self::enter), and the exit code is kept under `name`.
    pub(crate) fn hook(&self, name: &str) -> Vec<String> {
        self.line("hook", &[name.to_owned()])
    }

    /// Prints the exit code that was kept under `name`, within `limit`.
    pub(crate) fn hook_code(&self, name: &str, limit: Duration) -> Vec<String> {
        self.limited(limit, &format!("cat \"$0/{name}.code\""))
    }

    /// As [`enter`](Self::enter), with a limit: the seconds come between these words and the command.
    pub(crate) fn probe(&self) -> Vec<String> {
        self.line("probe", &[])
    }

    /// Sends SIGTERM to the container's command, within `limit`. It sends none to a command that has ended or has got one.
    pub(crate) fn terminate(&self, limit: Duration) -> Vec<String> {
        self.limited(limit, TERMINATE)
    }

    /// A script that runs as the container's user for at most `limit`.
    fn limited(&self, limit: Duration, script: &str) -> Vec<String> {
        let words = ["/bin/sh", "-c", script, &self.dir].map(str::to_owned);
        // The guest agent can kill the processes of its own user itself.
        if self.become_user.is_empty() {
            return words.to_vec();
        }
        let seconds = limit.as_secs().to_string();
        self.line("within", &[&[seconds], &words[..]].concat())
    }

    fn line(&self, script: &str, argv: &[String]) -> Vec<String> {
        let script = ["/bin/sh".to_owned(), format!("{}/{script}", self.dir)];
        self.become_user.iter().cloned().chain(script).chain(argv.iter().cloned()).collect()
    }
}

/// The words by which the guest's user becomes the container's: `sudo`, or `chroot:UID:GID:GROUPS` for what `sudo` cannot do. A guest's
/// user who is not root needs `sudo` for chroot, too: `sudo-chroot:…`.
fn become_user(how: &str, user: &GuestUser) -> Vec<String> {
    if let Some((before, numbers)) = how.split_once("chroot:") {
        let numbers: Vec<&str> = numbers.splitn(3, ':').collect();
        let [uid, gid, groups] = numbers[..] else { return Vec::new() };
        let sudo: &[&str] = if before.is_empty() { &[] } else { &["sudo", "-n"] };
        let chroot = ["chroot", "-u", uid, "-g", gid, "-G", groups, "/"];
        return sudo.iter().chain(&chroot).map(|&word| word.to_owned()).collect();
    }
    if how != "sudo" {
        return Vec::new();
    }
    let mut words = ["sudo", "-n", "-H"].map(str::to_owned).to_vec();
    if let Some(uid) = user.uid {
        words.extend(["-u".to_owned(), format!("#{uid}")]);
    }
    if let Some(gid) = user.gid {
        words.extend(["-g".to_owned(), format!("#{gid}")]);
    }
    words.push("--".to_owned());
    words
}
