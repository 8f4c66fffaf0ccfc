use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::*;
use crate::names::{Restart, VmName};
use crate::state::{Missing, Mount, NotStarted, NotStartedReason, ShimSpec, Termination};
use crate::testing::dir;
use proptest::prelude::*;

fn container() -> ContainerSpec {
    ShimSpec::example(VmName::new("0b1c".parse().unwrap(), Restart(0))).main.unwrap()
}

/// Runs the set-up with this machine's shell.
fn prepare(container: &ContainerSpec, command: &GuestCommand) -> Result<ContainerScripts, NotStarted> {
    prepare_by(&set_up(container, command, None), command)
}

fn prepare_by(script: &str, command: &GuestCommand) -> Result<ContainerScripts, NotStarted> {
    // The sandbox removes the directories of a test that is killed.
    let place = tart_kubelet_tests::sandbox::Sandbox::shared().unwrap();
    let script = script.replace("/var/tmp", &place.path().display().to_string());
    let mut shell = Command::new("/bin/sh")
        .arg("-s")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let said = shell.wait_with_output().unwrap().stdout;
    read_set_up(&said, &command.user).unwrap_or_else(|| Err(incomplete_set_up(&said)))
}

fn run(scripts: &ContainerScripts, argv: &[String]) -> (Option<i32>, String, String) {
    let (line, wait) = (scripts.run(argv), scripts.wait(Duration::from_mins(1)));
    let waiter = Command::new(&wait[0]).args(&wait[1..]).stdout(Stdio::piped()).spawn().unwrap();
    let output = Command::new(&line[0]).args(&line[1..]).stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8(waiter.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(told.trim().parse().ok(), output.status.code());
    assert_eq!(exit_code(scripts).trim().parse().ok(), output.status.code());
    std::fs::rename(format!("{}/code", scripts.dir), format!("{}/code.tmp", scripts.dir)).unwrap();
    assert_eq!(exit_code(scripts).trim().parse().ok(), output.status.code());
    std::fs::remove_dir_all(&scripts.dir).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn exit_code(scripts: &ContainerScripts) -> String {
    let line = scripts.exit_code();
    let said = Command::new(&line[0]).args(&line[1..]).stderr(Stdio::null()).output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}

fn result_of(command: &GuestCommand) -> (Option<i32>, String, String) {
    let mut container = container();
    container.termination.path = "/dev/null".to_owned();
    let scripts = prepare(&container, command).unwrap();
    assert_eq!(exit_code(&scripts), "", "the command has not started");
    run(&scripts, &command.argv)
}

#[test]
fn the_exit_code_is_the_commands_own_also_after_a_signal() {
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
fn the_set_up_does_nothing_that_ends_the_shell_of_macos() {
    let mut command = GuestCommand::example(&["true"]);
    command.env = vec![("UID".into(), "0b1c".into()), ("POD_UID".into(), "0b1c".into())];
    let script = set_up(&container(), &command, None);
    assert!(script.contains("export POD_UID=") && !script.contains("export UID="), "{script}");
    // bash 3.2; see the script.
    let substitutions = PRELUDE.split("$(\n").skip(1).filter_map(|rest| rest.split("\n\t)\n").next());
    let cases =
        substitutions.flat_map(|inside| inside.lines().filter(|line| line.trim_end().ends_with(";;")));
    let cases: Vec<&str> = cases.collect();
    assert!(cases.iter().all(|line| line.trim_start().starts_with('(')), "{cases:?}");
    assert!(!PRELUDE.contains(": >"), "a special command with a file");
}

#[test]
fn the_exit_code_is_kept_whatever_the_containers_variables() {
    let mut command = GuestCommand::example(&["/bin/sh", "-c", "echo $d $PATH; exit 3"]);
    command.env = vec![("PATH".into(), "/no/where".into()), ("d".into(), "/no/such".into())];
    assert_eq!(result_of(&command), (Some(3), "/no/such /no/where\n".to_owned(), String::new()));
}

#[test]
fn variables_that_no_shell_can_set_reach_the_command_hooks_and_probes() {
    let mut command = GuestCommand::example(&["/usr/bin/env"]);
    let variables = [
        ("my.key", "it's \\ $HOME\nand more"),
        ("UID", "0b1c"),
        ("a b'c\\", "x"),
        // Perl would complain about LC_ALL, and obey PERL5OPT.
        ("LC_ALL", "no-such-language"),
        ("PERL5OPT", "-d"),
        ("DYLD_LIBRARY_PATH", "/lib"),
        ("PLAIN", "y"),
    ];
    command.env = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let scripts =
        prepare(&ContainerSpec { termination: Termination::default(), ..container() }, &command).unwrap();
    let mut hook = scripts.enter();
    hook.push("/usr/bin/env".to_owned());
    let hook = Command::new(&hook[0]).args(&hook[1..]).output().unwrap();
    let (code, said, complaints) = run(&scripts, &command.argv);
    assert_eq!((code, complaints.as_str()), (Some(0), ""));
    for said in [said, String::from_utf8_lossy(&hook.stdout).into_owned()] {
        for (name, value) in variables {
            assert!(said.contains(&format!("{name}={value}\n")), "{name}: {said}");
        }
    }
    let script = set_up(&container(), &command, None);
    let started: Vec<&str> = script.lines().filter(|line| line.starts_with("exec ")).collect();
    assert!(started.iter().all(|line| !line.contains("0b1c") && !line.contains("my.key")), "{started:?}");
}

#[test]
fn hooks_and_probes_of_a_guest_that_only_boots_have_its_variables() {
    let env = [("WHO", "it's me"), ("my.key", "odd")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let command = GuestCommand { env, ..GuestCommand::default() };
    let scripts = prepare_by(&set_up_boot_only(&command), &command).unwrap();
    let mut lines = [scripts.enter(), scripts.hook("post-start"), scripts.probe()];
    lines[2].push("60".to_owned());
    for mut line in lines {
        line.push("/usr/bin/env".to_owned());
        let done = Command::new(&line[0]).args(&line[1..]).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(done.stdout).unwrap();
        for expected in ["WHO=it's me", "my.key=odd"] {
            assert!(said.lines().any(|line| line == expected), "{line:?}: {said}");
        }
    }
    std::fs::remove_dir_all(&scripts.dir).unwrap();
}

#[test]
fn a_function_of_the_set_up_is_no_program_of_the_container() {
    assert_eq!(
        prepare(&container(), &GuestCommand::example(&["ready"])).unwrap_err().reason,
        NotStartedReason::StartError
    );
}

/// Calls functions of the set-up, with /etc and the shares below `place`.
fn call(place: &std::path::Path, calls: &str) -> std::process::Output {
    let place = place.display().to_string();
    let script = format!("{PRELUDE}{calls}\nrm -r \"$dir\"")
        .replace("/var/tmp", &place)
        .replace("/etc/hosts", &format!("{place}/hosts"))
        .replace(SHARES, &format!("{place}/shares"));
    Command::new("/bin/sh").arg("-c").arg(script).output().unwrap()
}

#[test]
fn each_container_mounts_over_a_link_of_the_image() {
    let dir = dir();
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
fn a_share_that_appears_late_is_waited_for_and_one_that_never_does_is_told() {
    let dir = dir();
    let (share, path) = (dir.path().join("shares/data"), dir.path().join("data"));
    let mount =
        format!("mount_at {} {}", quote(&share.display().to_string()), quote(&path.display().to_string()));
    let never = call(dir.path(), &format!("sleep() {{ :; }}\n{mount}"));
    let said = String::from_utf8(never.stdout).unwrap();
    assert!(said.contains("failed CreateContainerError the guest does not see the share"), "{said}");
    assert!(!path.exists());
    // The share is there after the first pause.
    let late = call(
        dir.path(),
        &format!("sleep() {{ mkdir -p {}; }}\n{mount}", quote(&share.display().to_string())),
    );
    assert!(late.status.success(), "{}", String::from_utf8_lossy(&late.stdout));
    assert_eq!(path.canonicalize().unwrap(), share.canonicalize().unwrap());
}

#[test]
fn host_aliases_are_added_once_and_on_lines_of_their_own() {
    let dir = dir();
    std::fs::write(dir.path().join("hosts"), "127.0.0.1\tlocalhost").unwrap();
    for calls in ["hosts '10.0.0.1\ta\n'", "hosts '10.0.0.1\ta\n10.0.0.2\tb\n'"] {
        assert!(call(dir.path(), calls).status.success());
    }
    let hosts = std::fs::read_to_string(dir.path().join("hosts")).unwrap();
    assert_eq!(hosts, "127.0.0.1\tlocalhost\n10.0.0.1\ta\n10.0.0.2\tb\n");
}

#[test]
fn the_working_directory_is_made_and_entered() {
    let dir = dir();
    let wanted = dir.path().join("it's new/inside");
    let mut command = GuestCommand::example(&["pwd"]);
    command.working_dir = Some(wanted.display().to_string());
    assert_eq!(result_of(&command).1.trim(), wanted.display().to_string());
}

#[test]
fn the_set_up_fails_for_a_missing_program_and_an_unknown_user() {
    let failure = prepare(&container(), &GuestCommand::example(&["/no/such/program"])).unwrap_err();
    assert_eq!(failure.reason, NotStartedReason::StartError);
    assert!(failure.message.contains("`/no/such/program`"), "{failure:?}");
    let nobody = GuestUser { uid: Some(3_999_999), ..GuestUser::default() };
    let failure = prepare(&container(), &GuestCommand { user: nobody, ..GuestCommand::example(&["true"]) })
        .unwrap_err();
    assert_eq!(failure.reason, NotStartedReason::CreateContainerConfigError);
    assert!(failure.message.contains("user 3999999"), "{failure:?}");
}

#[test]
fn the_last_line_of_the_set_up_is_parsed_and_unknown_reasons_are_replaced() {
    let said = |text: &str| read_set_up(text.as_bytes(), &GuestUser::default());
    assert_eq!(
        said("failed Evil words here\n").unwrap().unwrap_err().reason,
        NotStartedReason::CreateContainerError
    );
    for unfinished in ["", "noise\n", "ready self /var/tm", "failed StartError a"] {
        assert_eq!(said(unfinished), None, "{unfinished}");
    }
    let scripts = said("noise\nnotice careful\nready self /var/tmp/x y\nnoise").unwrap().unwrap();
    assert_eq!(
        (scripts.dir.as_str(), scripts.notices.as_slice()),
        ("/var/tmp/x y", ["careful".to_owned()].as_slice())
    );
    let user = GuestUser { uid: Some(1), gid: Some(2), ..GuestUser::default() };
    let scripts = |said: &str| read_set_up(said.as_bytes(), &user).unwrap().unwrap();
    let enter = |said: &str| scripts(said).enter().join(" ");
    assert_eq!(enter("ready self /d\n"), "/bin/sh /d/enter");
    assert_eq!(enter("ready sudo /d\n"), "sudo -n -H -u #1 -g #2 -- /bin/sh /d/enter");
    let chroot = "chroot -u 1 -g 2 -G 2,5 / /bin/sh /d/enter";
    assert_eq!(enter("ready chroot:1:2:2,5 /d\n"), chroot);
    assert_eq!(enter("ready sudo-chroot:1:2:2,5 /d\n"), format!("sudo -n {chroot}"));
    assert_eq!(scripts("ready sudo /d\n").probe().join(" "), "sudo -n -H -u #1 -g #2 -- /bin/sh /d/probe");
    // The guest agent cannot kill another user's process, so that its line has a limit.
    let limit = Duration::from_secs(7);
    let lines =
        |said: &str| [scripts(said).wait(limit), scripts(said).terminate(limit)].map(|line| line.join(" "));
    assert!(lines("ready self /d\n").iter().all(|line| line.starts_with("/bin/sh -c ")));
    let limited = "sudo -n -H -u #1 -g #2 -- /bin/sh /d/within 7 /bin/sh -c ";
    assert!(lines("ready sudo /d\n").iter().all(|line| line.starts_with(limited)));
}

#[test]
fn a_probe_that_hangs_is_killed_with_all_that_it_has_started() {
    assert!(std::path::Path::new("/usr/bin/perl").exists(), "without /usr/bin/perl there is no timer");
    let mut command = GuestCommand::example(&["true"]);
    command.env = vec![("V".into(), "known".into())];
    let scripts = prepare(&container(), &command).unwrap();
    let probe = |script: &str| {
        let mut line = scripts.probe();
        line.extend(["1", "/bin/sh", "-c", script].map(str::to_owned));
        let done = Command::new(&line[0]).args(&line[1..]).stdin(Stdio::null()).output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    assert_eq!(probe("echo $V; exit 3"), (Some(3), "known\n".to_owned()));
    assert_eq!(probe("kill -TERM $$"), (Some(143), String::new()));
    // Both processes would hold the output open.
    assert_eq!(probe("trap '' TERM ALRM; sleep 20 & sleep 20; echo never").0, Some(137));
    std::fs::remove_dir_all(&scripts.dir).unwrap();
}

#[test]
fn a_command_gets_sigterm_once_and_never_after_its_end() {
    let scripts = prepare(&container(), &GuestCommand::example(&["true"])).unwrap();
    let file = |name: &str| format!("{}/{name}", scripts.dir);
    let terminate = || {
        let line = scripts.terminate(Duration::from_secs(7));
        Command::new(&line[0]).args(&line[1..]).stderr(Stdio::null()).status().unwrap().code()
    };
    let mut asked = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    std::fs::write(file("pid"), asked.id().to_string()).unwrap();
    assert_eq!(terminate(), Some(0));
    assert_eq!(asked.wait().unwrap().signal(), Some(15));
    // Another process has the process ID now.
    let mut other = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    std::fs::write(file("pid"), other.id().to_string()).unwrap();
    assert_eq!(terminate(), Some(0));
    std::fs::remove_file(file("asked")).unwrap();
    std::fs::write(file("code"), "0\n").unwrap();
    assert_eq!(terminate(), Some(0));
    assert_eq!(other.try_wait().unwrap(), None);
    other.kill().unwrap();
    other.wait().unwrap();
    // A command that is gone without an exit code takes no signal.
    std::fs::remove_file(file("code")).unwrap();
    assert_eq!(terminate(), Some(1));
    std::fs::remove_dir_all(&scripts.dir).unwrap();
}

#[test]
fn the_exit_code_of_a_hook_is_kept() {
    let mut command = GuestCommand::example(&["true"]);
    command.env = vec![("V".into(), "known".into())];
    let scripts = prepare(&container(), &command).unwrap();
    let said = |line: Vec<String>| Command::new(&line[0]).args(&line[1..]).output().unwrap();
    for (script, code) in [("exit 5", 5), ("[ $V = known ]", 0)] {
        let mut line = scripts.hook("post-start");
        line.extend(["/bin/sh", "-c", script].map(str::to_owned));
        assert_eq!(said(line).status.code(), Some(code), "{script}");
        let kept = said(scripts.hook_code("post-start", Duration::from_secs(5))).stdout;
        assert_eq!(String::from_utf8(kept).unwrap(), format!("{code}\n"));
    }
    std::fs::remove_dir_all(&scripts.dir).unwrap();
}

#[test]
fn a_mount_hides_the_images_files_and_each_kind_has_its_call() {
    let dir = dir();
    let (path, script) = (dir.path().join("a/data"), dir.path().join("share"));
    std::fs::create_dir_all(path.join("old")).unwrap();
    std::fs::create_dir(&script).unwrap();
    std::fs::write(script.join("file"), "new").unwrap();
    let call =
        format!("mount_at {} {}\n", quote(&script.display().to_string()), quote(&path.display().to_string()));
    let link = Command::new("/bin/sh")
        .arg("-c")
        .arg(format!("{PRELUDE}{call}rm -r \"$dir\"").replace("/var/tmp", &dir.path().display().to_string()))
        .output()
        .unwrap();
    assert!(link.status.success(), "{}", String::from_utf8_lossy(&link.stdout));
    assert_eq!(std::fs::read_to_string(path.join("file")).unwrap(), "new");
    assert!(dir.path().join("a/data.hidden-by-volume/old").exists());
    let script = |in_memory, missing| {
        let mount = Mount {
            share: "v".into(),
            sub_path: "in/side".into(),
            path: "/opt/x".into(),
            in_memory,
            missing,
            ..Mount::default()
        };
        let container = ContainerSpec { mounts: vec![mount], ..container() };
        set_up(&container, &GuestCommand::example(&["true"]), None)
    };
    let share = "/Volumes/My Shared Files/v";
    let mount = format!("mount_at '{share}/in/side' '/opt/x'\n");
    assert!(script(None, Missing::Awaited).contains(&mount));
    let made = Missing::Made { share: "w".into(), mode: 0o755 };
    let part =
        "make_sub_path '/Volumes/My Shared Files/w' 022 '/Volumes/My Shared Files/w/in/side' '/opt/x'\n";
    assert!(script(None, made).contains(&format!("{part}{mount}")));
    let empty = format!("mount_or_empty '{share}' '{share}/in/side' '/opt/x'\n");
    assert!(script(None, Missing::Empty).contains(&empty));
    let place = "/private/var/tart-kubelet/v";
    let lines =
        format!("in_memory '{place}' 7 '{place}/in/side' '/opt/x'\nmount_at '{place}/in/side' '/opt/x'\n");
    assert!(script(Some(7), Missing::Awaited).contains(&lines));
    let mount = Mount { share: "v".into(), path: "/opt/x".into(), in_memory: Some(7), ..Mount::default() };
    let container = ContainerSpec { mounts: vec![Mount { is_alone: true, ..mount }], ..container() };
    let script = set_up(&container, &GuestCommand::example(&["true"]), None);
    assert!(script.contains(&format!("in_memory_at '{place}' 7 '/opt/x'\n")));
    assert!(!script.contains("mount_at '/private"), "{script}");
}

#[test]
fn a_missing_sub_path_is_made_or_mounted_empty() {
    let dir = dir();
    let at = |path: &str| dir.path().join(path);
    let word = |path: &str| quote(&at(path).display().to_string());
    std::fs::create_dir_all(at("shares/v/files")).unwrap();
    std::fs::write(at("shares/v/config.yaml"), "from init").unwrap();
    std::fs::create_dir(at("image")).unwrap();
    std::fs::write(at("image/own"), "").unwrap();
    let calls = [
        format!("make_sub_path {} 000 {} /x", word("shares/v"), word("shares/v/config.yaml")),
        format!("make_sub_path {} 027 {} /x", word("shares/v"), word("shares/v/new/er")),
        format!("mount_or_empty {} {} {}", word("shares/v"), word("shares/v/none"), word("image")),
        format!("mount_or_empty {} {} {}", word("shares/v"), word("shares/v/config.yaml"), word("config")),
    ];
    // A container that is restarted finds the files of its last start.
    for _ in 0..5 {
        let done = call(dir.path(), &calls.join("\n"));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        assert_eq!(std::fs::read_to_string(at("shares/v/config.yaml")).unwrap(), "from init");
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&at("shares/v/new/er").metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o750);
        assert_eq!(at("image").read_dir().unwrap().count(), 0);
        std::fs::write(at("image/of-a-container"), "").unwrap();
        assert_eq!(std::fs::read_to_string(at("config")).unwrap(), "from init");
    }
    std::os::unix::fs::symlink("nowhere", at("shares/v/dangling")).unwrap();
    let done =
        call(dir.path(), &format!("make_sub_path {} 000 {} /x", word("shares/v"), word("shares/v/dangling")));
    let said = String::from_utf8_lossy(&done.stdout);
    assert_eq!(
        said,
        "failed CreateContainerError the subPath of volume mount /x cannot be made in the guest\n"
    );
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

#[test]
fn a_users_command_has_its_exit_code_and_can_be_killed_with_all_that_it_has_started() {
    let mut command = GuestCommand::example(&["true"]);
    command.env = vec![("V".into(), "known".into())];
    let scripts = prepare(&container(), &command).unwrap();
    let line = |script: &str| {
        let mut line = scripts.exec();
        line.extend(["7", "/bin/sh", "-c", script].map(str::to_owned));
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let kill = || {
        let mut line = scripts.kill();
        line.push("7".to_owned());
        let done = Command::new(&line[0]).args(&line[1..]).output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(kill(), "");
    for (script, code, output) in
        [("echo $V; exit 3", 3, "known\n"), ("kill -9 $$", 137, ""), ("true", 0, "")]
    {
        let done = line(script).output().unwrap();
        assert_eq!(done.status.code(), Some(code), "{script}");
        assert_eq!(
            (String::from_utf8(done.stdout).unwrap().as_str(), done.stderr.as_slice()),
            (output, &[][..])
        );
        assert_eq!(kill(), format!("{code}\n"));
    }
    // A command of an earlier agent may still run when its file is another's: it leaves the file alone.
    let file = format!("{}/exec-7", scripts.dir);
    let other = format!("echo '7.other 1' >{file}; exit 4");
    assert_eq!(line(&other).output().unwrap().status.code(), Some(4));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "7.other 1\n");
    assert_eq!(kill(), "", "it is not about this command");
    // Its child would hold the output open. The guest agent may kill its shell, and no more.
    for is_shell_killed in [false, true] {
        let mut child = line("trap '' HUP; echo up; sleep 1000 & sleep 1000; echo never").spawn().unwrap();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        std::io::BufRead::read_line(&mut output, &mut first).unwrap();
        assert_eq!(first, "up\n");
        if is_shell_killed {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(kill(), "");
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut output, &mut rest).unwrap();
        assert_eq!(rest, "");
        child.wait().unwrap();
    }
    std::fs::remove_dir_all(&scripts.dir).unwrap();
}
