//! Shell scripts that make a guest a container's place. They are sent as standard input, so that nothing secret is ever in
//! a list of arguments, and need nothing of the guest but `/bin/sh` and, where the user is not root, `sudo` without a password.

use std::fmt::Write as _;
use std::time::Duration;

use crate::state::{ContainerSpec, GuestCommand, GuestIdentity, GuestUser, Missing};

/// Where a macOS guest sees the host's shares.
const SHARES: &str = "/Volumes/My Shared Files";
/// Where it has volumes that are in its memory.
const MEMORY: &str = "/private/var/tart-kubelet";
/// The reasons for which a set-up can fail; a guest that names another one is not believed.
pub(crate) const REASONS: [&str; 3] = ["CreateContainerConfigError", "CreateContainerError", "StartError"];
/// Names that the guest's shell keeps for itself: it ends when somebody sets them, or has values of its own for them.
const KEPT_BY_SHELL: [&str; 23] = [
    "BASH",
    "BASHOPTS",
    "BASH_ARGC",
    "BASH_ARGV",
    "BASH_COMMAND",
    "BASH_LINENO",
    "BASH_SOURCE",
    "BASH_SUBSHELL",
    "BASH_VERSINFO",
    "BASH_VERSION",
    "DIRSTACK",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "HISTCMD",
    "LINENO",
    "PPID",
    "RANDOM",
    "SECONDS",
    "SHELLOPTS",
    "SHLVL",
    "UID",
    "_",
];
/// How much of the guest's words is passed on.
const MAX_WORDS: usize = 500;

/// A guest that is ready to run a container's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ready {
    /// The directory with what belongs to the container.
    dir: String,
    /// What makes a command run as the container's user; empty when the guest's own user is the one.
    become_user: Vec<String>,
    /// What could not be done, and is no reason to give up.
    pub(crate) notices: Vec<String>,
}

/// A guest that cannot be made the container's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotReady {
    /// The kubelet's word for it.
    pub(crate) reason: String,
    /// What is in the way.
    pub(crate) message: String,
}

/// The script that prepares a container: its volumes, variables, directory and user. With an `identity` it also makes the
/// guest the Pod's, once before the first container.
pub(crate) fn set_up(
    container: &ContainerSpec,
    command: &GuestCommand,
    identity: Option<(&GuestIdentity, &str)>,
) -> String {
    let mut script = PRELUDE.to_owned();
    if let Some((identity, address)) = identity {
        identify(&mut script, identity, address);
    }
    user(&mut script, &command.user);
    for mount in &container.mounts {
        let place = if mount.in_memory.is_some() { MEMORY } else { SHARES };
        let source = match mount.sub_path.as_str() {
            "" => format!("{place}/{}", mount.share),
            inside => format!("{place}/{}/{inside}", mount.share),
        };
        let (root, source) = (quote(&format!("{place}/{}", mount.share)), quote(&source));
        let path = quote(&mount.path);
        let _ = match (mount.in_memory, &mount.missing) {
            (Some(bytes), _) => {
                writeln!(script, "in_memory {root} {bytes} {source} {path}\nmount_at {source} {path}")
            }
            (None, Missing::Awaited) => writeln!(script, "mount_at {source} {path}"),
            (None, Missing::Made { share, mode }) => {
                let root = format!("{place}/{share}");
                let part = quote(&format!("{root}/{}", mount.sub_path));
                let (root, mask) = (quote(&root), 0o777 & !mode);
                writeln!(script, "make_part {root} {mask:03o} {part} {path}\nmount_at {source} {path}")
            }
            (None, Missing::Empty) => writeln!(script, "mount_or_empty {root} {source} {path}"),
        };
    }
    let _ = writeln!(script, "last_words {}", quote(&container.termination.path));
    let directory = command.working_dir.as_deref().unwrap_or_default();
    let _ = writeln!(script, "work_in {}", quote(directory));
    let enter = surround(&mut script, command);
    // The process whose number is written down becomes the command.
    let _ = writeln!(script, "put start {}", quote(&format!("echo $$ >\"${{0%/*}}/pid\"\n{enter}")));
    let _ = writeln!(script, "put run {}", quote(RUN));
    script.push_str("pipe over\nhand_over\n");
    let program = command.argv.first().map_or("", String::as_str);
    let _ = writeln!(script, "find_program {}", quote(program));
    script.push_str("ready\n");
    script
}

/// The script that prepares commands beside a guest that only boots: they have the container's user and variables, and nothing
/// else is done.
pub(crate) fn surroundings(command: &GuestCommand) -> String {
    let mut script = PRELUDE.to_owned();
    user(&mut script, &command.user);
    surround(&mut script, command);
    script.push_str("hand_over\nready\n");
    script
}

/// Puts in place what commands of the container need, and says what makes a shell one of them.
fn surround(script: &mut String, command: &GuestCommand) -> String {
    let variables: String = command.env.iter().filter(|(name, _)| is_shell_name(name)).fold(
        String::new(),
        |mut all, (name, value)| {
            let _ = writeln!(all, "export {name}={}", quote(value));
            all
        },
    );
    let _ = writeln!(script, "put env \"$first\"{}", quote(&variables));
    let borne = bear(script, &command.env);
    let directory = command.working_dir.as_deref().unwrap_or_default();
    // No name is taken from the container's variables, and macOS takes some of them (`DYLD_…`) from every shell that is started
    // with them, so that there must be none after this one.
    let enter = format!(". \"${{0%/*}}/env\"\n{}{borne}exec \"$@\"\n", change_to(directory));
    for (name, text) in [("enter", enter.as_str()), ("within", WITHIN), ("probe", PROBE), ("hook", HOOK)] {
        let _ = writeln!(script, "put {name} {}", quote(text));
    }
    enter
}

/// How the set-up ended by the script's own account; `None` when it has said nothing of it, or not all of it.
pub(crate) fn read_set_up(output: &[u8], user: &GuestUser) -> Option<Result<Ready, NotReady>> {
    let text = String::from_utf8_lossy(output);
    let mut notices = Vec::new();
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        match line.split_once(' ') {
            Some(("notice", words)) => notices.push(words.chars().take(MAX_WORDS).collect()),
            Some(("failed", rest)) => {
                let (reason, words) = rest.split_once(' ').unwrap_or(("", rest));
                let reason =
                    REASONS.iter().find(|known| **known == reason).unwrap_or(&"CreateContainerError");
                let message = words.chars().take(MAX_WORDS).collect();
                return Some(Err(NotReady { reason: (*reason).to_owned(), message }));
            }
            Some(("ready", rest)) => {
                let (how, dir) = rest.split_once(' ').unwrap_or((rest, ""));
                let become_user = become_user(how, user);
                return Some(Ok(Ready { dir: dir.to_owned(), become_user, notices }));
            }
            _ => {}
        }
    }
    None
}

/// A script that has ended without a word of how.
pub(crate) fn no_end(output: &[u8]) -> NotReady {
    let words: String = String::from_utf8_lossy(output).trim().chars().take(MAX_WORDS).collect();
    let message = format!("the guest cannot be prepared for the container: {words}");
    NotReady { reason: "CreateContainerError".to_owned(), message }
}

/// The command may only just be starting. Its number may be another's as soon as it is over.
const TERMINATE: &str = r#"
    { [ -e "$0/code" ] || [ -e "$0/asked" ]; } && exit 0
    until [ -s "$0/pid" ]; do sleep 0.1; done
    kill -TERM "$(cat "$0/pid")" || exit
    { echo >"$0/asked"; } 2>/dev/null
    true"#;

impl Ready {
    /// The line that runs the container's command, and ends with its exit code, a signal's included.
    pub(crate) fn run(&self, argv: &[String]) -> Vec<String> {
        self.line("run", argv)
    }

    /// The line that waits for the end of the container's command, for so long, and prints its exit code.
    pub(crate) fn wait(&self, limit: Duration) -> Vec<String> {
        self.limited(limit, "[ -e \"$0/code\" ] || read -r _ <\"$0/over\"; cat \"$0/code\"")
    }

    /// The line that prints the exit code of the container's command, unless it still runs. What the command's own shell was killed over
    /// may lie there under the wrong name.
    pub(crate) fn exit(&self) -> Vec<String> {
        let script = "cat \"$0/code\" 2>/dev/null || cat \"$0/code.tmp\"";
        let words = ["/bin/sh", "-c", script, &self.dir].map(str::to_owned);
        self.become_user.iter().cloned().chain(words).collect()
    }

    /// What goes before a command that is to run beside the container's, in its environment.
    pub(crate) fn enter(&self) -> Vec<String> {
        self.line("enter", &[])
    }

    /// What goes before a hook: a command as [`enter`](Self::enter) has it, whose exit code is kept under a name.
    pub(crate) fn hook(&self, name: &str) -> Vec<String> {
        self.line("hook", &[name.to_owned()])
    }

    /// The line that prints the exit code that was kept under a name, and takes no longer than this.
    pub(crate) fn hook_code(&self, name: &str, limit: Duration) -> Vec<String> {
        self.limited(limit, &format!("cat \"$0/{name}.code\""))
    }

    /// What goes before the seconds that such a command may take, and the command.
    pub(crate) fn probe(&self) -> Vec<String> {
        self.line("probe", &[])
    }

    /// The line that asks the container's command to end, and takes no longer than this. It can be run again: what has ended or was
    /// asked is left alone.
    pub(crate) fn terminate(&self, limit: Duration) -> Vec<String> {
        self.limited(limit, TERMINATE)
    }

    /// A script of the container's user that is over in time.
    fn limited(&self, limit: Duration, script: &str) -> Vec<String> {
        let words = ["/bin/sh", "-c", script, &self.dir].map(str::to_owned);
        // What the guest agent has started as its own user it can end, too.
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

/// The line that prints the container's last words, and no more of them than Kubernetes takes.
pub(crate) fn last_words(path: &str) -> Vec<String> {
    let script = "head -c 4096 \"$0\" 2>/dev/null || sudo -n head -c 4096 \"$0\"";
    ["/bin/sh", "-c", script, path].map(str::to_owned).to_vec()
}

/// The words by which the guest's user becomes the container's: through `sudo`, or through `chroot:UID:GID:GROUPS` for what `sudo`
/// does not take, to which one who is not root still needs it: `sudo-chroot:…`.
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

fn identify(script: &mut String, identity: &GuestIdentity, address: &str) {
    if !identity.hostname.is_empty() {
        let _ = writeln!(script, "host_name {}", quote(&identity.hostname));
    }
    let line = |ip: &str, names: &[String]| format!("{ip}\t{}\n", names.join("\t"));
    if !identity.own_names.is_empty() {
        let _ = writeln!(script, "own_names {}", quote(&line(address, &identity.own_names)));
    }
    let aliases: String = identity.aliases.iter().map(|(ip, names)| line(ip, names)).collect();
    if !aliases.is_empty() {
        let _ = writeln!(script, "hosts {}", quote(&aliases));
    }
    let dns = &identity.dns;
    if dns.asks_for_anything() {
        let how = if dns.replaces { "replace" } else { "add" };
        let _ = writeln!(
            script,
            "dns {} {} {how}",
            quote(&dns.servers.join(" ")),
            quote(&dns.searches.join(" "))
        );
    }
}

fn user(script: &mut String, user: &GuestUser) {
    let number = |id: Option<u32>| id.map(|id| id.to_string()).unwrap_or_default();
    let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
    let _ = writeln!(
        script,
        "be '{}' '{}' {} '{}' {}",
        number(user.uid),
        number(user.gid),
        user.not_root,
        groups.join(" "),
        user.only_groups
    );
}

/// Has perl set the variables that no shell can set; what it is to run with them goes before the command. Those that it would heed
/// itself, or that macOS would take from it, wait until then, too.
fn bear(script: &mut String, variables: &[(String, String)]) -> String {
    let odd: Vec<&str> =
        variables.iter().map(|(name, _)| name.as_str()).filter(|name| !is_shell_name(name)).collect();
    if odd.is_empty() {
        return String::new();
    }
    let is_heeded = |name: &str| ["DYLD_", "LANG", "LC_", "PERL"].iter().any(|it| name.starts_with(it));
    let word = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let (mut lines, mut heeded) = (String::new(), String::new());
    for (name, value) in variables {
        let is_odd = !is_shell_name(name);
        if is_odd || is_heeded(name) {
            let _ = writeln!(lines, "$ENV{{{}}} = {};", word(name), word(value));
        }
        if !is_odd && is_heeded(name) {
            let _ = writeln!(heeded, "unset {name}");
        }
    }
    let _ = writeln!(script, "odd_names {}\nput names {}", quote(&odd.join(", ")), quote(&lines));
    format!("if [ -x /usr/bin/perl ]; then\n{heeded}{BEAR} \"${{0%/*}}/names\" \"$@\"\nfi\n")
}

fn change_to(directory: &str) -> String {
    if directory.is_empty() { String::new() } else { format!("cd {} || exit 126\n", quote(directory)) }
}

/// A word that the shell takes as it is.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Whether the shell can set a variable of that name.
pub(crate) fn is_shell_name(name: &str) -> bool {
    !KEPT_BY_SHELL.contains(&name)
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

const RUN: &str = include_str!("run.sh");
const WITHIN: &str = include_str!("within.sh");
/// A command in the container's environment, with a name for its exit code: the guest agent may fail to tell that.
const HOOK: &str = r#"d=${0%/*} name=$1
shift
/bin/sh "$d/enter" "$@"
code=$?
echo $code >"$d/$name.code"
exit $code
"#;
/// A command in the container's environment, within so many seconds.
const PROBE: &str = r#"d=${0%/*} limit=$1
shift
exec /bin/sh "$d/within" "$limit" /bin/sh "$d/enter" "$@"
"#;
/// What sets variables and becomes the command. Neither is in any list of arguments.
const BEAR: &str = "exec /usr/bin/perl -e 'do shift; exec { $ARGV[0] } @ARGV; exit($! == 2 ? 127 : 126)'";
const PRELUDE: &str = include_str!("set_up.sh");

#[cfg(test)]
mod tests;
