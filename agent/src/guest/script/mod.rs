//! Shell scripts that prepare a guest for a container. The shim sends them as standard input, so that no secret is in a list of
//! arguments. They need `/bin/sh` in the guest and, where its user is not root, `sudo` without a password.

mod container_scripts;

pub(crate) use container_scripts::{ContainerScripts, incomplete_set_up, read_set_up};

use std::fmt::Write as _;

use crate::state::{ContainerSpec, GuestCommand, GuestIdentity, GuestUser, Missing};

/// Where a macOS guest sees the host's shares.
const SHARES: &str = "/Volumes/My Shared Files";
/// Where the guest has volumes in its memory.
const MEMORY: &str = "/private/var/tart-kubelet";
/// Variables that the guest's shell ends for when a script sets them, or overwrites.
const SHELL_VARIABLES: [&str; 23] = [
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

/// The script that prepares a container: its volumes, variables, directory and user. With an `identity` it also sets the guest's names
/// and DNS, once before the first container.
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
        let root = if mount.in_memory.is_some() { MEMORY } else { SHARES };
        let source = match mount.sub_path.as_str() {
            "" => format!("{root}/{}", mount.share),
            sub_path => format!("{root}/{}/{sub_path}", mount.share),
        };
        let (share, source) = (quote(&format!("{root}/{}", mount.share)), quote(&source));
        let path = quote(&mount.path);
        let _ = match (mount.in_memory, &mount.missing) {
            (Some(bytes), _) if mount.is_alone => {
                writeln!(script, "in_memory_at {share} {bytes} {path}")
            }
            (Some(bytes), _) => {
                writeln!(script, "in_memory {share} {bytes} {source} {path}\nmount_at {source} {path}")
            }
            (None, Missing::Awaited | Missing::Newer(_)) => writeln!(script, "mount_at {source} {path}"),
            (None, Missing::Made { share, mode }) => {
                let writable = format!("{root}/{share}");
                let part = quote(&format!("{writable}/{}", mount.sub_path));
                let (writable, mask) = (quote(&writable), 0o777 & !mode);
                writeln!(
                    script,
                    "make_sub_path {writable} {mask:03o} {part} {path}\nmount_at {source} {path}"
                )
            }
            (None, Missing::Empty) => writeln!(script, "mount_or_empty {share} {source} {path}"),
        };
    }
    let _ = writeln!(script, "termination_message {}", quote(&container.termination.path));
    let directory = command.working_dir.as_deref().unwrap_or_default();
    let _ = writeln!(script, "working_dir {}", quote(directory));
    let enter = environment(&mut script, command);
    // `start` writes its process ID, then becomes the command.
    let _ = writeln!(script, "put start {}", quote(&format!("echo $$ >\"${{0%/*}}/pid\"\n{enter}")));
    let _ = writeln!(script, "put run {}", quote(RUN));
    script.push_str("pipe over\nhand_over\n");
    let program = command.argv.first().map_or("", String::as_str);
    let _ = writeln!(script, "find_program {}", quote(program));
    script.push_str("ready\n");
    script
}

/// The script for the hooks and probes of a guest that only boots: they get the container's user and variables.
pub(crate) fn set_up_boot_only(command: &GuestCommand) -> String {
    let mut script = PRELUDE.to_owned();
    user(&mut script, &command.user);
    environment(&mut script, command);
    script.push_str("hand_over\nready\n");
    script
}

/// Adds the scripts that run commands in the container's environment, and returns the one that enters it.
fn environment(script: &mut String, command: &GuestCommand) -> String {
    let variables: String = command.env.iter().filter(|(name, _)| is_shell_name(name)).fold(
        String::new(),
        |mut all, (name, value)| {
            let _ = writeln!(all, "export {name}={}", quote(value));
            all
        },
    );
    let _ = writeln!(script, "put env \"$first\"{}", quote(&variables));
    let odd = odd_variables(script, &command.env);
    let directory = command.working_dir.as_deref().unwrap_or_default();
    // `enter` uses no variable of its own: it could be one of the container's. No shell may start after it: macOS removes some variables
    // (`DYLD_…`) from every shell that it starts.
    let enter = format!(". \"${{0%/*}}/env\"\n{}{odd}exec \"$@\"\n", change_to(directory));
    let scripts = [
        ("enter", enter.as_str()),
        ("within", WITHIN),
        ("probe", PROBE),
        ("hook", HOOK),
        ("exec", EXEC),
        ("kill", KILL),
    ];
    for (name, text) in scripts {
        let _ = writeln!(script, "put {name} {}", quote(text));
    }
    enter
}

/// The line that prints the container's termination message, as much of it as Kubernetes takes.
pub(crate) fn termination_message(path: &str) -> Vec<String> {
    let script = "head -c 4096 \"$0\" 2>/dev/null || sudo -n head -c 4096 \"$0\"";
    ["/bin/sh", "-c", script, path].map(str::to_owned).to_vec()
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
    if !dns.is_empty() {
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
        "run_as '{}' '{}' {} '{}' {}",
        number(user.uid),
        number(user.gid),
        user.not_root,
        groups.join(" "),
        user.only_groups
    );
}

/// Has perl set the variables that no shell can set. Variables that perl itself reads, or that macOS would remove from it, are set by
/// perl, too, right before it becomes the command.
fn odd_variables(script: &mut String, variables: &[(String, String)]) -> String {
    let odd: Vec<&str> =
        variables.iter().map(|(name, _)| name.as_str()).filter(|name| !is_shell_name(name)).collect();
    if odd.is_empty() {
        return String::new();
    }
    let read_by_perl = |name: &str| ["DYLD_", "LANG", "LC_", "PERL"].iter().any(|it| name.starts_with(it));
    let word = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let (mut lines, mut unset) = (String::new(), String::new());
    for (name, value) in variables {
        let is_odd = !is_shell_name(name);
        if is_odd || read_by_perl(name) {
            let _ = writeln!(lines, "$ENV{{{}}} = {};", word(name), word(value));
        }
        if !is_odd && read_by_perl(name) {
            let _ = writeln!(unset, "unset {name}");
        }
    }
    let _ = writeln!(script, "odd_names {}\nput names {}", quote(&odd.join(", ")), quote(&lines));
    format!("if [ -x /usr/bin/perl ]; then\n{unset}{PERL_EXEC} \"${{0%/*}}/names\" \"$@\"\nfi\n")
}

fn change_to(directory: &str) -> String {
    if directory.is_empty() { String::new() } else { format!("cd {} || exit 126\n", quote(directory)) }
}

/// A word that the shell does not expand.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Whether the shell can set a variable of this name.
pub(crate) fn is_shell_name(name: &str) -> bool {
    !SHELL_VARIABLES.contains(&name)
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

const RUN: &str = include_str!("run.sh");
const WITHIN: &str = include_str!("within.sh");
const EXEC: &str = include_str!("exec.sh");
const KILL: &str = include_str!("kill.sh");
/// A command in the container's environment. Its exit code is kept under a name: the guest agent may lose it.
const HOOK: &str = r#"d=${0%/*} name=$1
shift
/bin/sh "$d/enter" "$@"
code=$?
echo $code >"$d/$name.code"
exit $code
"#;
/// A command in the container's environment, with a limit in seconds.
const PROBE: &str = r#"d=${0%/*} limit=$1
shift
exec /bin/sh "$d/within" "$limit" /bin/sh "$d/enter" "$@"
"#;
/// Sets variables and becomes the command. Neither is in a list of arguments.
const PERL_EXEC: &str =
    "exec /usr/bin/perl -e 'do shift; exec { $ARGV[0] } @ARGV; exit($! == 2 ? 127 : 126)'";
const PRELUDE: &str = include_str!("set_up.sh");

#[cfg(test)]
mod tests;
