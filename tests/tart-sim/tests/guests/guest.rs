//! The guest: its root file system, its shares, its processes, its addresses.

use std::fs;
use std::net::{TcpListener, TcpStream};
#[cfg(target_os = "linux")]
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use tart_sim::Fault;

use crate::mac::{Mac, eventually, processes_with, write_shared};

#[test]
fn a_macos_guest_has_a_read_only_system_and_a_writable_rest() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    for path in ["/x", "/dev/x", "/System/x", "/bin/x", "/sbin/x", "/usr/x", "/usr/bin/x"] {
        let outcome = mac.sh("a", &format!("sudo touch {path}"));
        assert_ne!(outcome.code(), 0, "{path}");
        assert!(outcome.stderr.contains("Read-only file system"), "{path}: {outcome:?}");
    }
    for path in ["/usr/local/x", "/etc/x", "/var/x", "/Library/x", "/Applications/x", "/opt/x"] {
        mac.sh("a", &format!("sudo touch {path}")).ok();
    }
    mac.sh("a", "touch /tmp/x /Users/admin/x").ok();
}

#[test]
fn a_macos_guest_can_make_links_in_dev_and_no_files() {
    let mac = Mac::new();
    mac.create("a");
    mac.set_image("a", r#"{"uid": 501}"#);
    let _a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    let refused = mac.sh("a", "ln -s /tmp/words /dev/words");
    assert_ne!(refused.code(), 0, "{refused:?}");
    mac.sh("a", "sudo ln -s /tmp/words /dev/words && echo DONE >/dev/words").ok();
    assert_eq!(mac.sh("a", "cat /tmp/words").ok(), "DONE\n");
    // `ln` replaces a link only with `-f`.
    assert_ne!(mac.sh("a", "sudo ln -s /tmp/other /dev/words").code(), 0);
    mac.sh("a", "sudo ln -sfn /tmp/other /dev/words && test \"$(readlink /dev/words)\" = /tmp/other").ok();
    let refused = mac.sh("a", "sudo touch /dev/file");
    assert!(refused.stderr.contains("Read-only file system"), "{refused:?}");
    // Elsewhere it is what it always is.
    mac.sh("a", "mkdir d && echo 1 >a && ln -s ../a d && ln a hard && ln -s a b && cat d/a hard b").ok();
    assert_ne!(mac.sh("a", "ln -s a b").code(), 0);
}

#[test]
fn an_image_can_have_a_writable_system() {
    let mac = Mac::new();
    mac.create("a");
    mac.set_image("a", r#"{"sealed": false}"#);
    let _a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    mac.sh("a", "sudo touch /x /usr/x /usr/bin/x /System/x").ok();
    assert!(!fs::exists("/usr/bin/x").unwrap());
}

#[test]
fn a_guest_sees_nothing_of_the_host_and_another_guest_sees_nothing_of_it() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    let _b = mac.boot("b");
    mac.sh("a", "echo secret | sudo tee /tmp/x /etc/x /usr/local/x > x").ok();
    assert_eq!(mac.sh("b", "ls /tmp/x /etc/x /usr/local/x x 2>/dev/null | wc -l").ok(), "0\n");
    assert!(!fs::exists("/usr/local/x").unwrap());
    let here = mac.path().display();
    assert_ne!(
        mac.sh("a", &format!("ls -d {here} /root /home /proc/1/cwd{here} /proc/1/root{here}")).code(),
        0
    );
    assert_eq!(
        mac.sh("a", &format!("ls -d {here} /root /home /proc/1/cwd{here} 2>/dev/null | wc -l")).ok(),
        "0\n"
    );
    // Its own processes only, and a host name of its own.
    let processes = mac.sh("a", "ls -d /proc/[0-9]* | wc -l").ok();
    assert!(matches!(processes.trim(), "3" | "4"), "{processes}");
    assert_eq!(mac.sh("a", "hostname").ok(), "admins-Virtual-Machine\n");
}

#[test]
fn a_guests_writes_survive_a_boot_and_go_to_its_clones() {
    let mac = Mac::new();
    let a = mac.boot("a");
    mac.sh("a", "echo kept > file; echo kept | sudo tee /usr/local/file; sudo rm /etc/passwd").ok();
    a.kill();
    mac.tart(&["clone", "a", "b"]).ok();
    let _a = mac.run(&["a"]);
    let _b = mac.run(&["b"]);
    for vm in ["a", "b"] {
        mac.wait_for_agent(vm);
        assert_eq!(mac.sh(vm, "cat file /usr/local/file").ok(), "kept\nkept\n");
    }
    mac.sh("b", "echo changed > file").ok();
    assert_eq!(mac.sh("a", "cat file").ok(), "kept\n");
}

#[test]
fn a_guest_sees_its_images_files_and_never_changes_them() {
    let mac = Mac::new();
    mac.create("a");
    let lower = mac.vm_dir("a").join("guest/lower");
    fs::create_dir_all(lower.join("Users/admin")).unwrap();
    fs::create_dir_all(lower.join("usr/local/bin")).unwrap();
    fs::write(lower.join("Users/admin/file"), "image\n").unwrap();
    let _a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    assert_eq!(mac.sh("a", "cat file; echo guest > file; cat file").ok(), "image\nguest\n");
    assert_eq!(fs::read_to_string(lower.join("Users/admin/file")).unwrap(), "image\n");
    assert_ne!(mac.sh("a", "touch /x").code(), 0);
}

#[test]
fn an_image_with_programs_gets_none_of_the_machines() {
    let mac = Mac::new();
    mac.create("a");
    let lower = mac.vm_dir("a").join("guest/lower");
    fs::create_dir_all(lower.join("bin")).unwrap();
    fs::write(lower.join("bin/nothing-runs-this"), "").unwrap();
    // Nothing in there can run, so that only the refusal can be seen: the agent looks in the guest's own directories.
    let _a = mac.run(&["a"]);
    mac.wait_until_running("a");
    eventually("the agent refuses", || {
        let outcome = mac.tart(&["exec", "a", "ls"]);
        outcome.stderr.contains("exec: \"ls\": executable file not found in $PATH").then_some(())
    });
}

#[test]
fn named_shares_are_mounted_side_by_side() {
    let mac = Mac::new();
    mac.create("a");
    let (x, y) = (mac.directory("x"), mac.directory("y"));
    write_shared(&x.join("file"), "from the host\n");
    let _a =
        mac.run(&["a", "--dir", &format!("x:{}", x.display()), "--dir", &format!("y:{}:ro", y.display())]);
    mac.wait_for_agent("a");
    assert_eq!(mac.sh("a", "ls '/Volumes/My Shared Files'").ok(), "x\ny\n");
    assert_eq!(
        mac.sh("a", "cd '/Volumes/My Shared Files/x' && cat file && echo from the guest > file").ok(),
        "from the host\n"
    );
    assert_eq!(fs::read_to_string(x.join("file")).unwrap(), "from the guest\n");
    for path in ["y/file", "z"] {
        let outcome = mac.sh("a", &format!("touch '/Volumes/My Shared Files/{path}'"));
        assert!(outcome.stderr.contains("Read-only file system"), "{path}: {outcome:?}");
    }
    fs::write(y.join("later"), "seen\n").unwrap();
    assert_eq!(mac.sh("a", "cat '/Volumes/My Shared Files/y/later'").ok(), "seen\n");
}

/// As with virtiofs: the guest enforces what the host's numbers and modes say.
#[test]
#[cfg(target_os = "linux")]
fn a_share_keeps_the_hosts_numbers_and_modes() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let mac = Mac::new();
    mac.create("a");
    let x = mac.directory("x");
    for (name, mode) in [("closed", 0o700), ("open", 0o755), ("writable", 0o777)] {
        let path = x.join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "content").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let _a = mac.run(&["a", "--dir", &format!("x:{}", x.display())]);
    mac.wait_for_agent("a");
    let say = |script: &str| mac.sh("a", &format!("cd '/Volumes/My Shared Files/x' && {script}"));
    assert_eq!(say("id -u; stat -c '%u %a' . open closed").ok(), "501\n501 755\n0 755\n0 700\n");
    for forbidden in ["ls closed", "cat closed/file", "touch open/new", "echo more >>writable/file"] {
        let refused = say(forbidden);
        assert!(refused.stderr.contains("Permission denied"), "{forbidden}: {refused:?}");
    }
    say("cat open/file && touch writable/new && sudo cat closed/file").ok();
}

#[test]
fn a_single_unnamed_share_is_the_mount_point_itself() {
    let mac = Mac::new();
    mac.create("a");
    let x = mac.directory("x");
    let _a = mac.run(&["a", "--dir", x.to_str().unwrap()]);
    mac.wait_for_agent("a");
    mac.sh("a", "echo hello > '/Volumes/My Shared Files/file'").ok();
    assert_eq!(fs::read_to_string(x.join("file")).unwrap(), "hello\n");
}

#[test]
fn a_guest_mounts_shares_with_another_tag_by_hand() {
    let mac = Mac::new();
    mac.create("a");
    let x = mac.directory("x");
    fs::write(x.join("file"), "content\n").unwrap();
    let _a = mac.run(&["a", "--dir", &format!("{}:tag=build", x.display())]);
    mac.wait_for_agent("a");
    assert_ne!(mac.sh("a", "ls '/Volumes/My Shared Files'").code(), 0);
    let outcome = mac.sh("a", "mkdir build && sudo mount_virtiofs nonsense build");
    outcome.fails(1, "mount_virtiofs: fs_tag nonsense not found\n");
    assert_eq!(mac.sh("a", "sudo mount_virtiofs build build && cat build/file").ok(), "content\n");
    // The mount is the guest's, not only that command's.
    assert_eq!(mac.sh("a", "cat build/file").ok(), "content\n");
}

#[test]
fn no_process_outlives_the_vm() {
    let mac = Mac::new();
    let mark = format!("{}.5", 86_400 + std::process::id());
    for shell in ["exec sleep", "setsid sleep", "nohup sleep"] {
        let a = if mac.vm_dir("a").exists() { mac.run(&["a"]) } else { mac.boot("a") };
        mac.wait_for_agent("a");
        mac.sh("a", &format!("{shell} {mark} > /dev/null 2>&1 < /dev/null &")).ok();
        eventually("the process runs", || (processes_with(&mark) > 0).then_some(()));
        a.kill();
        eventually("the process is gone", || (processes_with(&mark) == 0).then_some(()));
    }
}

#[test]
fn each_vm_has_an_address_that_the_host_can_reach() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    let _b = mac.boot("b");
    let address = |vm: &str| mac.tart(&["ip", vm]).ok().trim().to_owned();
    assert_ne!(address("a"), address("b"));
    for vm in ["a", "b"] {
        assert_eq!(mac.sh(vm, "echo $TART_SIM_ADDRESS").ok().trim(), address(vm));
        assert!(
            mac.sh(vm, "cat /etc/hosts")
                .ok()
                .contains(&format!("{}\tadmins-Virtual-Machine.local ", address(vm)))
        );
    }
    // Both can have the same port, since they have different addresses.
    let listener = TcpListener::bind((address("a").as_str(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let _other = TcpListener::bind((address("b").as_str(), port)).unwrap();
    TcpStream::connect((address("a").as_str(), port)).unwrap();
}

#[test]
fn the_boot_command_runs_in_the_users_home() {
    let mac = Mac::new();
    mac.create("a");
    mac.set_image("a", r#"{"boot": ["sh", "-c", "echo $PWD $USER > booted"], "user": "runner"}"#);
    let _a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    let text = eventually("the boot command ran", || {
        Some(mac.sh("a", "cat booted").stdout).filter(|text| !text.is_empty())
    });
    assert_eq!(text, "/Users/runner runner\n");
}

#[test]
fn a_macos_guest_has_its_programs() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    assert_eq!(mac.sh("a", "whoami; sudo -n -u root FOO=bar sh -c 'echo $FOO'").ok(), "admin\nbar\n");
    assert_eq!(mac.sh("a", "sw_vers -productVersion").ok(), "26.3.1\n");
    assert_eq!(mac.sh("a", "shutdown -h").code(), 64);
}

#[test]
fn a_guest_has_the_shell_of_its_image() {
    let mac = Mac::new();
    mac.create("a");
    mac.set_image("a", r#"{"shell": "/bin/bash"}"#);
    let _a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    assert_eq!(mac.sh("a", "readlink /bin/sh; echo ${BASH_VERSION:+bash}").ok(), "/bin/bash\nbash\n");
}

#[test]
fn a_linux_guest_looks_like_linux_and_mounts_by_hand() {
    let mac = Mac::new();
    mac.create_linux("l");
    let x = mac.directory("x");
    fs::write(x.join("file"), "content\n").unwrap();
    let _l = mac.run(&["l", "--dir", &format!("x:{}", x.display())]);
    mac.wait_for_agent("l");
    assert_eq!(
        mac.sh("l", "pwd; ls -d /Users /Volumes 2>/dev/null | wc -l; sudo touch /x").ok(),
        "/home/admin\n0\n"
    );
    assert_eq!(
        mac.sh("l", "sudo mount -t virtiofs com.apple.virtio-fs.automount /mnt && cat /mnt/x/file").ok(),
        "content\n"
    );
}

#[test]
fn boot_and_agent_take_as_long_as_the_image_says() {
    let mac = Mac::new();
    mac.create("a");
    mac.set_image("a", r#"{"bootDelay": 0.3, "agentDelay": 0.4}"#);
    let begun = Instant::now();
    let _a = mac.run(&["a"]);
    eventually("there is an address", || mac.host().join("dhcpd_leases").exists().then_some(()));
    let booted = begun.elapsed();
    mac.wait_for_agent("a");
    let answered = begun.elapsed();
    assert!(booted.as_millis() >= 300 && answered.as_millis() >= 700, "{booted:?} {answered:?}");
}

#[test]
fn a_machine_without_namespaces_runs_commands_in_the_guests_directory() {
    let mac = Mac::new();
    mac.switch_on(Fault::NoNamespaces, "");
    mac.create("a");
    let x = mac.directory("x");
    let mut a = mac.run(&["a", "--dir", &format!("x:{}", x.display())]);
    mac.wait_for_agent("a");
    let root = fs::canonicalize(mac.vm_dir("a").join("guest/upper/root")).unwrap();
    assert_eq!(mac.sh("a", "pwd").ok(), format!("{}\n", root.join("Users/admin").display()));
    mac.sh("a", &format!("echo hello > '{}/Volumes/My Shared Files/x/file'", root.display())).ok();
    assert_eq!(fs::read_to_string(x.join("file")).unwrap(), "hello\n");

    // A reboot and a shutdown are the guest's alone.
    mac.sh("a", "sudo reboot");
    eventually("the guest is back", || mac.sh("a", "echo back").status.success().then_some(()));
    assert!(a.is_alive());
    let mark = format!("{}.75", 86_400 + std::process::id());
    mac.sh("a", &format!("sleep {mark} > /dev/null 2>&1 &")).ok();
    eventually("the process runs", || (processes_with(&format!("sleep\0{mark}")) == 1).then_some(()));
    mac.sh("a", "sudo shutdown -h now");
    let outcome = a.end();
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (0, "guest has stopped the virtual machine\n"));
    eventually("the process is gone", || (processes_with(&format!("sleep\0{mark}")) == 0).then_some(()));
}

#[test]
fn a_user_who_is_not_root_has_guests_too() {
    use std::os::unix::fs::chown;
    use std::os::unix::process::CommandExt as _;

    const OTHER_USER: u32 = 65_534;
    if !nix::unistd::geteuid().is_root() {
        // All the other tests run as another user then.
        return;
    }
    let mac = Mac::new();
    for path in [mac.path().to_owned(), mac.host(), mac.host().join("faults")] {
        chown(path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    }
    let tart = |words: &[&str]| {
        let mut command = mac.command(words);
        command.uid(OTHER_USER).gid(OTHER_USER);
        command
    };
    if tart(&["--version"]).status().is_err() {
        // The binary is in a directory that only root sees.
        return;
    }
    assert!(tart(&["create", "a", "--from-ipsw", "latest"]).status().unwrap().success());
    let _a = mac.run_with(tart(&["run", "a"]));
    let sh = |script: &str| tart(&["exec", "a", "sh", "-c", script]).output().unwrap();
    eventually("the agent answers", || sh("true").status.success().then_some(()));
    assert_eq!(sh("pwd; whoami").stdout, b"/Users/admin\nadmin\n");
    assert!(String::from_utf8_lossy(&sh("touch /usr/x").stderr).contains("Read-only file system"));
    assert!(sh("rm -r /usr/local/bin; mkdir /usr/local/bin; touch /usr/local/bin/x").status.success());
    assert!(tart(&["stop", "a"]).status().unwrap().success());
    assert!(tart(&["clone", "a", "b"]).status().unwrap().success());
    assert!(tart(&["delete", "a", "b"]).status().unwrap().success());
}
