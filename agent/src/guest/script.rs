//! Shell scripts that make a guest a container's place. They are sent as standard input, so that nothing secret is ever in
//! a list of arguments, and need nothing of the guest but `/bin/sh` and, where the user is not root, `sudo` without a password.

use std::fmt::Write as _;
use std::time::Duration;

use crate::state::{ContainerSpec, GuestCommand, GuestIdentity, GuestUser};

/// Where a macOS guest sees the host's shares.
const SHARES: &str = "/Volumes/My Shared Files";
/// Where it has volumes that are in its memory.
const MEMORY: &str = "/private/var/tart-kubelet";
/// The reasons for which a set-up can fail; a guest that names another one is not believed.
pub const REASONS: [&str; 3] = ["CreateContainerConfigError", "CreateContainerError", "StartError"];
/// Names that the guest's shell keeps for itself: it ends when somebody sets them.
const KEPT_BY_SHELL: [&str; 6] = ["BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"];
/// How much of the guest's words is passed on.
const MAX_WORDS: usize = 500;

/// A guest that is ready to run a container's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// The directory with what belongs to the container.
    dir: String,
    /// What makes a command run as the container's user; empty when the guest's own user is the one.
    become_user: Vec<String>,
    /// What could not be done, and is no reason to give up.
    pub notices: Vec<String>,
}

/// A guest that cannot be made the container's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    /// The kubelet's word for it.
    pub reason: String,
    /// What is in the way.
    pub message: String,
}

/// The script that prepares a container: its volumes, variables, directory and user. With an `identity` it also makes the
/// guest the Pod's, once before the first container.
pub fn set_up(
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
        if let Some(bytes) = mount.in_memory {
            let root = format!("{place}/{}", mount.share);
            let _ = writeln!(script, "in_memory {} {bytes} {}", quote(&root), quote(&source));
        }
        let _ = writeln!(script, "mount_at {} {}", quote(&source), quote(&mount.path));
    }
    let _ = writeln!(script, "last_words {}", quote(&container.termination.path));
    let variables: String = command.env.iter().filter(|(name, _)| is_shell_name(name)).fold(
        String::new(),
        |mut all, (name, value)| {
            let _ = writeln!(all, "export {name}={}", quote(value));
            all
        },
    );
    let _ = writeln!(script, "put env \"$first\"{}", quote(&variables));
    let directory = command.working_dir.as_deref().unwrap_or_default();
    let _ = writeln!(script, "work_in {}", quote(directory));
    // No name is taken from the container's variables, and macOS takes some of them (`DYLD_…`) from every shell that is started
    // with them, so that there must be none after this one.
    let enter = format!(". \"${{0%/*}}/env\"\n{}exec \"$@\"\n", change_to(directory));
    let _ = writeln!(script, "put enter {}", quote(&enter));
    // The process whose number is written down becomes the command.
    let _ = writeln!(script, "put start {}", quote(&format!("echo $$ >\"${{0%/*}}/pid\"\n{enter}")));
    let _ = writeln!(script, "put run {}", quote(RUN));
    let _ = writeln!(script, "put within {}", quote(WITHIN));
    let _ = writeln!(script, "put probe {}", quote(PROBE));
    script.push_str("pipe over\nhand_over\n");
    let program = command.argv.first().map_or("", String::as_str);
    let _ = writeln!(script, "find_program {}", quote(program));
    script.push_str("ready\n");
    script
}

/// How the set-up ended by the script's own account; `None` when it has said nothing of it, or not all of it.
pub fn read_set_up(output: &[u8], user: &GuestUser) -> Option<Result<Ready, NotReady>> {
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
pub fn no_end(output: &[u8]) -> NotReady {
    let words: String = String::from_utf8_lossy(output).trim().chars().take(MAX_WORDS).collect();
    let message = format!("the guest cannot be prepared for the container: {words}");
    NotReady { reason: "CreateContainerError".to_owned(), message }
}

impl Ready {
    /// The line that runs the container's command, and ends with its exit code, a signal's included.
    pub fn run(&self, argv: &[String]) -> Vec<String> {
        self.line("run", argv)
    }

    /// The line that waits for the end of the container's command, for so long, and prints its exit code.
    pub fn wait(&self, limit: Duration) -> Vec<String> {
        self.limited(limit, "[ -e \"$0/code\" ] || read -r _ <\"$0/over\"; cat \"$0/code\"")
    }

    /// What goes before a command that is to run beside the container's, in its environment.
    pub fn enter(&self) -> Vec<String> {
        self.line("enter", &[])
    }

    /// What goes before the seconds that such a command may take, and the command.
    pub fn probe(&self) -> Vec<String> {
        self.line("probe", &[])
    }

    /// The line that asks the container's command to end, and takes no longer than this.
    pub fn terminate(&self, limit: Duration) -> Vec<String> {
        // It may only just be starting.
        self.limited(limit, "until [ -s \"$0/pid\" ]; do sleep 0.1; done; kill -TERM \"$(cat \"$0/pid\")\"")
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
pub fn last_words(path: &str) -> Vec<String> {
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

fn change_to(directory: &str) -> String {
    if directory.is_empty() { String::new() } else { format!("cd {} || exit 126\n", quote(directory)) }
}

/// A word that the shell takes as it is.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Whether the shell can set a variable of that name. Others reach the command only through a guest agent that takes
/// variables itself.
pub fn is_shell_name(name: &str) -> bool {
    !KEPT_BY_SHELL.contains(&name)
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

const RUN: &str = include_str!("run.sh");
const WITHIN: &str = include_str!("within.sh");
/// A command in the container's environment, within so many seconds.
const PROBE: &str = r#"d=${0%/*} limit=$1
shift
exec /bin/sh "$d/within" "$limit" /bin/sh "$d/enter" "$@"
"#;
const PRELUDE: &str = include_str!("set_up.sh");

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::state::{Mount, ShimSpec};
    use crate::vm::{Restart, VmName};
    use proptest::prelude::*;

    fn container() -> ContainerSpec {
        ShimSpec::example(VmName::new("0b1c".parse().unwrap(), Restart(0))).main
    }

    /// Has this machine's shell prepare itself for a command.
    fn prepare(container: &ContainerSpec, command: &GuestCommand) -> Result<Ready, NotReady> {
        // A test that is killed leaves its directories where somebody cleans up.
        let place = tart_kubelet_tests::sandbox::Sandbox::shared().unwrap();
        let script =
            set_up(container, command, None).replace("/var/tmp", &place.path().display().to_string());
        let mut shell = Command::new("/bin/sh")
            .arg("-s")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let said = shell.wait_with_output().unwrap().stdout;
        read_set_up(&said, &command.user).unwrap_or_else(|| Err(no_end(&said)))
    }

    fn run(ready: &Ready, argv: &[String]) -> (Option<i32>, String, String) {
        let (line, wait) = (ready.run(argv), ready.wait(Duration::from_mins(1)));
        let waiter = Command::new(&wait[0]).args(&wait[1..]).stdout(Stdio::piped()).spawn().unwrap();
        let output = Command::new(&line[0]).args(&line[1..]).stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8(waiter.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(told.trim().parse().ok(), output.status.code());
        std::fs::remove_dir_all(&ready.dir).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn result_of(command: &GuestCommand) -> (Option<i32>, String, String) {
        let mut container = container();
        container.termination.path = "/dev/null".to_owned();
        run(&prepare(&container, command).unwrap(), &command.argv)
    }

    #[test]
    fn exit_codes_and_signals_are_the_commands_own() {
        let shell = |script: &str| GuestCommand::example(&["/bin/sh", "-c", script]);
        let table = [
            ("exit 0", 0, ""),
            ("exit 7", 7, ""),
            ("kill -9 $$", 137, ""),
            ("kill -TERM $$", 143, ""),
            ("echo oops >&2; exit 1", 1, "oops\n"),
        ];
        for (script, code, said) in table {
            assert_eq!(result_of(&shell(script)), (Some(code), String::new(), said.to_owned()), "{script}");
        }
    }

    #[test]
    fn the_shell_is_asked_for_nothing_that_would_end_it() {
        let mut command = GuestCommand::example(&["true"]);
        command.env = vec![("UID".into(), "0b1c".into()), ("POD_UID".into(), "0b1c".into())];
        let script = set_up(&container(), &command, None);
        assert!(script.contains("export POD_UID=") && !script.contains("export UID="), "{script}");
        // As macOS has it; see the script.
        let substitutions = PRELUDE.split("$(\n").skip(1).filter_map(|rest| rest.split("\n\t)\n").next());
        let cases =
            substitutions.flat_map(|inside| inside.lines().filter(|line| line.trim_end().ends_with(";;")));
        let cases: Vec<&str> = cases.collect();
        assert!(cases.iter().all(|line| line.trim_start().starts_with('(')), "{cases:?}");
        assert!(!PRELUDE.contains(": >"), "a special command with a file");
    }

    #[test]
    fn no_variable_gets_in_the_way_of_the_exit_code() {
        let mut command = GuestCommand::example(&["/bin/sh", "-c", "echo $d $PATH; exit 3"]);
        command.env = vec![("PATH".into(), "/no/where".into()), ("d".into(), "/no/such".into())];
        assert_eq!(result_of(&command), (Some(3), "/no/such /no/where\n".to_owned(), String::new()));
    }

    #[test]
    fn a_function_of_the_script_is_no_program() {
        assert_eq!(
            prepare(&container(), &GuestCommand::example(&["ready"])).unwrap_err().reason,
            "StartError"
        );
    }

    /// What a call of the script's functions leaves, with `/etc` and the shares below `place`.
    fn call(place: &std::path::Path, calls: &str) -> std::process::Output {
        let place = place.display().to_string();
        let script = format!("{PRELUDE}{calls}\nrm -r \"$dir\"")
            .replace("/var/tmp", &place)
            .replace("/etc/hosts", &format!("{place}/hosts"))
            .replace(SHARES, &format!("{place}/shares"));
        Command::new("/bin/sh").arg("-c").arg(script).output().unwrap()
    }

    #[test]
    fn a_link_of_the_image_is_mounted_over_by_one_container_after_the_other() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in ["private/tmp/old", "shares/one", "shares/two"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        std::os::unix::fs::symlink("private/tmp", at("tmp")).unwrap();
        for share in ["one", "two", "two"] {
            let source = quote(&at("shares").join(share).display().to_string());
            let done =
                call(dir.path(), &format!("mount_at {source} {}", quote(&at("tmp").display().to_string())));
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
            assert_eq!(at("tmp").canonicalize().unwrap(), at("shares").join(share).canonicalize().unwrap());
        }
        assert_eq!(at("tmp").read_link().unwrap(), std::path::Path::new("private/tmp"));
        assert!(at("private/tmp.hidden-by-volume/old").exists());
    }

    #[test]
    fn names_are_added_once_and_on_lines_of_their_own() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        std::fs::write(dir.path().join("hosts"), "127.0.0.1\tlocalhost").unwrap();
        for calls in ["hosts '10.0.0.1\ta\n'", "hosts '10.0.0.1\ta\n10.0.0.2\tb\n'"] {
            assert!(call(dir.path(), calls).status.success());
        }
        let hosts = std::fs::read_to_string(dir.path().join("hosts")).unwrap();
        assert_eq!(hosts, "127.0.0.1\tlocalhost\n10.0.0.1\ta\n10.0.0.2\tb\n");
    }

    #[test]
    fn the_directory_is_made_and_entered() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let wanted = dir.path().join("it's new/inside");
        let mut command = GuestCommand::example(&["pwd"]);
        command.working_dir = Some(wanted.display().to_string());
        assert_eq!(result_of(&command).1.trim(), wanted.display().to_string());
    }

    #[test]
    fn what_is_missing_is_told() {
        let failure = prepare(&container(), &GuestCommand::example(&["/no/such/program"])).unwrap_err();
        assert_eq!(failure.reason, "StartError");
        assert!(failure.message.contains("`/no/such/program`"), "{failure:?}");
        let nobody = GuestUser { uid: Some(3_999_999), ..GuestUser::default() };
        let failure =
            prepare(&container(), &GuestCommand { user: nobody, ..GuestCommand::example(&["true"]) })
                .unwrap_err();
        assert_eq!(failure.reason, "CreateContainerConfigError");
        assert!(failure.message.contains("user 3999999"), "{failure:?}");
    }

    #[test]
    fn only_known_reasons_are_believed() {
        let said = |text: &str| read_set_up(text.as_bytes(), &GuestUser::default());
        assert_eq!(said("failed Evil words here\n").unwrap().unwrap_err().reason, "CreateContainerError");
        for unfinished in ["", "noise\n", "ready self /var/tm", "failed StartError a"] {
            assert_eq!(said(unfinished), None, "{unfinished}");
        }
        let ready = said("noise\nnotice careful\nready self /var/tmp/x y\nnoise").unwrap().unwrap();
        assert_eq!(
            (ready.dir.as_str(), ready.notices.as_slice()),
            ("/var/tmp/x y", ["careful".to_owned()].as_slice())
        );
        let user = GuestUser { uid: Some(1), gid: Some(2), ..GuestUser::default() };
        let ready = |said: &str| read_set_up(said.as_bytes(), &user).unwrap().unwrap();
        let enter = |said: &str| ready(said).enter().join(" ");
        assert_eq!(enter("ready self /d\n"), "/bin/sh /d/enter");
        assert_eq!(enter("ready sudo /d\n"), "sudo -n -H -u #1 -g #2 -- /bin/sh /d/enter");
        let chroot = "chroot -u 1 -g 2 -G 2,5 / /bin/sh /d/enter";
        assert_eq!(enter("ready chroot:1:2:2,5 /d\n"), chroot);
        assert_eq!(enter("ready sudo-chroot:1:2:2,5 /d\n"), format!("sudo -n {chroot}"));
        assert_eq!(ready("ready sudo /d\n").probe().join(" "), "sudo -n -H -u #1 -g #2 -- /bin/sh /d/probe");
        // Whom the guest agent cannot kill has a limit of its own.
        let limit = Duration::from_secs(7);
        let lines =
            |said: &str| [ready(said).wait(limit), ready(said).terminate(limit)].map(|line| line.join(" "));
        assert!(lines("ready self /d\n").iter().all(|line| line.starts_with("/bin/sh -c ")));
        let limited = "sudo -n -H -u #1 -g #2 -- /bin/sh /d/within 7 /bin/sh -c ";
        assert!(lines("ready sudo /d\n").iter().all(|line| line.starts_with(limited)));
    }

    #[test]
    fn what_hangs_is_killed_with_all_that_it_has_started() {
        let mut command = GuestCommand::example(&["true"]);
        command.env = vec![("V".into(), "known".into())];
        let ready = prepare(&container(), &command).unwrap();
        let probe = |script: &str| {
            let mut line = ready.probe();
            line.extend(["1", "/bin/sh", "-c", script].map(str::to_owned));
            let done = Command::new(&line[0]).args(&line[1..]).stdin(Stdio::null()).output().unwrap();
            (done.status.code(), String::from_utf8(done.stdout).unwrap())
        };
        assert_eq!(probe("echo $V; exit 3"), (Some(3), "known\n".to_owned()));
        assert_eq!(probe("kill -TERM $$"), (Some(143), String::new()));
        // Both would hold the output open for an hour.
        assert_eq!(probe("trap '' TERM ALRM; sleep 3600 & sleep 3600; echo never").0, Some(137));
        std::fs::remove_dir_all(&ready.dir).unwrap();
    }

    #[test]
    fn a_mount_hides_what_is_there_and_can_be_made_twice() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let (path, script) = (dir.path().join("a/data"), dir.path().join("share"));
        std::fs::create_dir_all(path.join("old")).unwrap();
        std::fs::create_dir(&script).unwrap();
        std::fs::write(script.join("file"), "new").unwrap();
        let call = format!(
            "mount_at {} {}\n",
            quote(&script.display().to_string()),
            quote(&path.display().to_string())
        );
        let link = Command::new("/bin/sh")
            .arg("-c")
            .arg(
                format!("{PRELUDE}{call}rm -r \"$dir\"")
                    .replace("/var/tmp", &dir.path().display().to_string()),
            )
            .output()
            .unwrap();
        assert!(link.status.success(), "{}", String::from_utf8_lossy(&link.stdout));
        assert_eq!(std::fs::read_to_string(path.join("file")).unwrap(), "new");
        assert!(dir.path().join("a/data.hidden-by-volume/old").exists());
        let mount = |in_memory| Mount {
            share: "v".into(),
            sub_path: "in/side".into(),
            path: "/opt/x".into(),
            in_memory,
        };
        let script = |in_memory| {
            let container = ContainerSpec { mounts: vec![mount(in_memory)], ..container() };
            set_up(&container, &GuestCommand::example(&["true"]), None)
        };
        assert!(script(None).contains("mount_at '/Volumes/My Shared Files/v/in/side' '/opt/x'"));
        let place = "/private/var/tart-kubelet/v";
        let lines = format!("in_memory '{place}' 7 '{place}/in/side'\nmount_at '{place}/in/side' '/opt/x'");
        assert!(script(Some(7)).contains(&lines));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn variables_and_arguments_arrive_unchanged(value in "[^\0]{0,40}", argument in "[^\0]{0,40}") {
            let mut command = GuestCommand::example(&["/bin/sh", "-c", "printf '%s|%s' \"$V\" \"$1\"", "sh", &argument]);
            command.env = vec![("V".into(), value.clone()), ("not-for.sh".into(), "x".into())];
            prop_assert_eq!(result_of(&command).1, format!("{value}|{argument}"));
        }
    }
}
