//! `tart run`: refusals, the limit, signals, faults.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use nix::sys::signal::Signal;
use tart_sim::Fault;

#[cfg(target_os = "linux")]
use crate::mac::write_shared;
use crate::mac::{Mac, eventually};

const LIMIT: &str = "The number of VMs exceeds the system limit";

#[test]
fn run_refuses_a_missing_vm_before_it_does_anything() {
    Mac::new().tart(&["run", "x"]).fails(1, "Error: the specified VM \"x\" does not exist\n");
}

#[test]
fn run_refuses_flags_that_exclude_each_other() {
    let mac = Mac::new();
    mac.create("a");
    mac.create_linux("l");
    let (x, y) = (mac.directory("x"), mac.directory("y"));
    let (x, y) = (x.to_str().unwrap(), y.to_str().unwrap());
    mac.switch_on(Fault::NestedUnsupported, "");
    for (words, message) in [
        (&["a", "--vnc", "--vnc-experimental"][..], "--vnc and --vnc-experimental are mutually exclusive"),
        (
            &["a", "--net-host", "--net-bridged=en0"],
            "--net-bridged, --net-softnet and --net-host are mutually exclusive",
        ),
        (
            &["a", "--net-host", "--net-softnet-allow=0.0.0.0/0"],
            "--net-bridged, --net-softnet and --net-host are mutually exclusive",
        ),
        (&["a", "--nested"], "Nested virtualization is available for Mac with the M3 chip, and later."),
        (&["l", "--suspendable"], "You can only suspend macOS VMs"),
        (&["a", "--suspendable", "--no-keyboard"], "--no-keyboard cannot be used with --suspendable"),
        (&["l", "--no-trackpad"], "--no-trackpad can only be used with macOS VMs"),
        (&["a", "--disk", "ubuntu-amd64.iso"], "Seems you have a disk targeting x86 architecture"),
        (
            &["a", "--dir", x, "--dir", y],
            "invalid --dir syntax: for multiple directory shares each one of them should be named",
        ),
        (&["a", "--dir", "https://example.com/a.tar.gz"], "Failed to fetch a remote archive!"),
        (
            &["a", "--net-bridged=en9"],
            "no bridge interfaces matched \"[\"en9\"]\", available interfaces: [\"en0 (or \\\"Ethernet\\\")\"",
        ),
    ] {
        let outcome = mac.tart(&[&["run"], words].concat());
        outcome.refuses(64, &format!("Error: {message}"));
        assert!(outcome.stderr.contains("\nUsage: tart run "), "{outcome:?}");
    }
}

#[test]
fn run_refuses_configurations_that_the_framework_refuses() {
    let mac = Mac::new();
    mac.create("a");
    let missing = mac.path().join("missing");
    let outcome = mac.tart(&["run", "a", "--dir", &format!("x:{}", missing.display())]);
    outcome.refuses(
        1,
        "Error Domain=VZErrorDomain Code=2 \"A directory sharing device configuration is invalid.\"",
    );
    assert!(
        outcome.stderr.contains("NSPOSIXErrorDomain Code=2 \"No such file or directory\""),
        "{outcome:?}"
    );

    mac.tart(&["run", "a", "--root-disk-opts", "sync=maybe"])
        .fails(1, "unsupported disk image synchronization mode: \"maybe\"\n");

    mac.switch_on(Fault::HostCpus, "2");
    mac.tart(&["run", "a"]).refuses(1, "Error: Invalid virtual machine configuration.");
}

#[test]
fn run_attaches_a_disk_to_one_vm_only() {
    let mac = Mac::new();
    mac.create("a");
    mac.create("b");
    let disk = mac.path().join("disk.img");
    fs::write(&disk, "").unwrap();
    let disk = disk.to_str().unwrap();
    let _a = mac.run(&["a", "--disk", disk]);
    mac.wait_for_agent("a");
    mac.tart(&["run", "b", "--disk", disk])
        .fails(1, &format!("disk {disk} seems to be already in use, unmount it first in Finder\n"));
    let _b = mac.run(&["b", "--disk", &format!("{disk}:ro")]);
    mac.wait_for_agent("b");
}

#[test]
fn run_refuses_a_running_vm() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    mac.tart(&["run", "a"]).fails(2, "VM \"a\" is already running!\n");
}

#[test]
fn a_healthy_start_prints_nothing() {
    let mac = Mac::new();
    let a = mac.boot("a");
    assert_eq!(a.stdout(), "");
}

#[test]
fn a_mac_runs_two_macos_guests_and_any_number_of_linux_guests() {
    let mac = Mac::new();
    mac.create("c");
    mac.create_linux("l");
    let a = mac.boot("a");
    let _b = mac.boot("b");
    mac.tart(&["run", "c"]).fails(1, &format!("{LIMIT} (other running VMs: a, b)\n"));
    let _l = mac.run(&["l"]);
    mac.wait_for_agent("l");
    mac.tart(&["run", "c"]).fails(1, &format!("{LIMIT} (other running VMs: a, b, l)\n"));

    // Another user's VMs count, but the message does not name them.
    let other_user = mac.path().join("other");
    let tart = |words: &[&str]| mac.command(words).env("TART_HOME", &other_user).output().unwrap();
    assert!(tart(&["create", "d", "--from-ipsw", "latest"]).status.success());
    let refused = tart(&["run", "d"]);
    assert_eq!((refused.status.code(), refused.stderr), (Some(1), format!("{LIMIT}\n").into_bytes()));

    // However a VM ends, its place is free at once.
    a.kill();
    let _c = mac.run(&["c"]);
    mac.wait_for_agent("c");
}

#[test]
fn the_limit_can_count_guests_that_are_gone() {
    let mac = Mac::new();
    mac.create("a");
    mac.switch_on(Fault::VmLimitStuck, "");
    mac.tart(&["run", "a"]).fails(1, &format!("{LIMIT}\n"));
    mac.switch_on(Fault::VmLimitStuck, "1");
    let _a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    mac.create("b");
    mac.tart(&["run", "b"]).fails(1, &format!("{LIMIT} (other running VMs: a)\n"));
}

#[test]
fn the_simulator_records_which_vms_have_started() {
    let mac = Mac::new();
    mac.create("a");
    mac.switch_on(Fault::Runs, "");
    mac.switch_on(Fault::VmLimitStuck, "");
    mac.tart(&["run", "a"]).fails(1, &format!("{LIMIT}\n"));
    mac.switch_off(Fault::VmLimitStuck);
    let _a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    assert_eq!(fs::read_to_string(mac.host().join("runs")).unwrap(), "a\n");
}

#[test]
fn older_releases_show_the_frameworks_own_words() {
    let mac = Mac::new();
    mac.create("a");
    mac.switch_on(Fault::VmLimitStuck, "");
    mac.switch_on(Fault::Version, "2.18.0");
    mac.tart(&["run", "a"]).refuses(
        1,
        "Error Domain=VZErrorDomain Code=6 \"The maximum supported number of active virtual machines has been reached.\"",
    );
}

#[test]
fn run_replaces_a_mac_address_that_is_in_use() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    mac.create("b");
    let config = |vm: &str| mac.vm_dir(vm).join("config.json");
    fs::copy(config("a"), config("b")).unwrap();
    let b = mac.run(&["b"]);
    mac.wait_for_agent("b");
    assert_eq!(
        b.stdout(),
        "There is already a running VM with the same MAC address!\nResetting VM to assign a new MAC address...\n"
    );
    assert_ne!(mac.tart(&["ip", "a"]).ok(), mac.tart(&["ip", "b"]).ok());
}

#[test]
fn sigint_stops_the_vm() {
    let mac = Mac::new();
    let a = mac.boot("a");
    a.signal(Signal::SIGINT);
    let outcome = a.end();
    assert_eq!(
        (outcome.code(), outcome.stdout.as_str(), outcome.stderr.as_str()),
        (0, "Stopping VM...\n", "")
    );
    assert!(mac.vm_dir("a").join("control.sock").exists());
}

#[test]
fn other_signals_kill_the_vm_and_leave_the_socket_for_the_next_run() {
    let mac = Mac::new();
    mac.create("a");
    let mut signals = vec![Signal::SIGTERM, Signal::SIGALRM, Signal::SIGKILL];
    // `nohup` makes the tests, and every program that they start, ignore it.
    if !is_ignored(Signal::SIGHUP) {
        signals.push(Signal::SIGHUP);
    }
    for signal in signals {
        let a = mac.run(&["a"]);
        mac.wait_for_agent("a");
        a.signal(signal);
        let outcome = a.end();
        assert_eq!((outcome.status.signal(), outcome.stdout.as_str()), (Some(signal as i32), ""));
        assert!(mac.vm_dir("a").join("control.sock").exists());
    }
}

/// Whether this process ignores a signal. False where the system does not say.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal as u32 - 1)) != 0
}

#[test]
fn stop_sends_sigint_and_then_sigkill() {
    let mac = Mac::new();
    mac.tart(&["stop", "x"]).fails(2, "the specified VM \"x\" does not exist\n");
    mac.create("a");
    mac.tart(&["stop", "a"]).fails(2, "VM \"a\" is not running\n");

    let a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    mac.switch_on(Fault::SigintDelay, "300ms");
    mac.tart(&["stop", "a"]).ok();
    assert_eq!(a.end().code(), 0);

    let a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    mac.switch_on(Fault::SigintHang.of_vm("a"), "");
    mac.tart(&["stop", "a", "--timeout", "1"]).ok();
    assert_eq!(a.end().status.signal(), Some(Signal::SIGKILL as i32));
}

#[test]
fn a_vm_is_suspended_and_resumed() {
    let mac = Mac::new();
    mac.create("a");
    mac.tart(&["suspend", "a"]).fails(2, "VM \"VM \"a\" is not running\" is not running\n");

    let a = mac.run(&["a", "--suspendable"]);
    mac.wait_for_agent("a");
    mac.tart(&["suspend", "a"]).ok();
    let outcome = a.end();
    assert_eq!(outcome.code(), 0, "{outcome:?}");
    assert!(outcome.stdout.ends_with("snapshot created successfully! shutting down the VM...\n"));
    assert!(mac.tart(&["get", "a", "--format", "json"]).ok().contains("\"suspended\""));

    let a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    assert_eq!(a.stdout(), "restoring VM state from a snapshot...\nresuming VM...\n");
    assert!(!mac.vm_dir("a").join("state.vzvmsave").exists());
    // It was resumed with the devices that can be suspended.
    a.signal(Signal::SIGUSR1);
    assert_eq!(a.end().code(), 0);
    mac.tart(&["stop", "a"]).ok();
    assert!(mac.tart(&["get", "a", "--format", "json"]).ok().contains("\"stopped\""));
}

#[test]
fn a_vm_with_other_devices_cannot_be_suspended() {
    let mac = Mac::new();
    let a = mac.boot("a");
    mac.tart(&["suspend", "a"]).ok();
    let outcome = a.end();
    assert_eq!(outcome.code(), 1);
    assert!(
        outcome.stdout.starts_with("Failed to suspend the VM: Invalid virtual machine configuration."),
        "{outcome:?}"
    );
}

#[test]
fn the_power_button_stops_linux_and_not_macos() {
    let mac = Mac::new();
    mac.create_linux("l");
    let l = mac.run(&["l"]);
    mac.wait_for_agent("l");
    l.signal(Signal::SIGUSR2);
    let outcome = l.end();
    assert_eq!(outcome.code(), 0);
    assert!(outcome.stdout.ends_with("guest has stopped the virtual machine\n"), "{outcome:?}");

    let mut a = mac.boot("a");
    a.signal(Signal::SIGUSR2);
    eventually("the request is announced", || {
        a.stdout().contains("Requesting guest OS to stop...").then_some(())
    });
    assert_eq!(mac.sh("a", "echo still here").ok(), "still here\n");
    assert!(a.is_alive());
}

#[test]
fn a_guest_shuts_itself_down() {
    let mac = Mac::new();
    let a = mac.boot("a");
    mac.tart(&["exec", "a", "sudo", "shutdown", "-h", "now"]);
    let outcome = a.end();
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (0, "guest has stopped the virtual machine\n"));

    mac.set_image("a", r#"{"boot": ["sudo", "/sbin/shutdown", "-h", "now"]}"#);
    let outcome = mac.run_to_the_end(&["a"]);
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (0, "guest has stopped the virtual machine\n"));
}

#[test]
fn a_guest_that_reboots_keeps_its_vm_and_its_files() {
    let mac = Mac::new();
    let mut a = mac.boot("a");
    let boot = |vm: &str| mac.sh(vm, "cat /proc/1/stat").ok().split(' ').nth(21).map(str::to_owned);
    let before = boot("a");
    mac.sh("a", "echo kept > file; sudo reboot");
    eventually("the guest is back", || {
        let outcome = mac.sh("a", "cat file; cat /proc/1/stat");
        (outcome.status.success() && boot("a") != before).then_some(())
    });
    assert_eq!(mac.sh("a", "cat file").ok(), "kept\n");
    assert!(a.is_alive());
}

#[test]
fn faults_of_the_framework_fail_the_start() {
    let mac = Mac::new();
    mac.create("a");
    for (fault, parameter, stderr) in [
        (
            Fault::VzInternal,
            "",
            "Error Domain=VZErrorDomain Code=1 \"The virtual machine failed to start.\" UserInfo={",
        ),
        (
            Fault::VzHostKey,
            "",
            "Error Domain=VZErrorDomain Code=-9 \"Failed to create new HostKey\" UserInfo={",
        ),
        (
            Fault::VzHostKey,
            "Failed to get current host key",
            "Error Domain=VZErrorDomain Code=-9 \"Failed to get current host key\" UserInfo={",
        ),
        (
            Fault::VzAuxiliaryStorage,
            "",
            "Error Domain=VZErrorDomain Code=2 \"Failed to lock auxiliary storage.\" UserInfo={",
        ),
    ] {
        mac.switch_on(fault.of_vm("a"), parameter);
        mac.tart(&["run", "a"]).refuses(1, stderr);
        mac.switch_off(fault.of_vm("a"));
    }
    mac.switch_on(Fault::SoftnetMissing, "");
    mac.tart(&["run", "a", "--net-softnet-block=10.0.0.0/8"])
        .fails(1, "Softnet failed: softnet not found in PATH\n");
    mac.tart(&["run", "a", "--net-host"]).fails(1, "Softnet failed: softnet not found in PATH\n");
}

#[test]
fn faults_end_a_running_vm() {
    let mac = Mac::new();
    mac.create("a");
    let stopped = "guest has stopped the virtual machine due to error: Error Domain=VZErrorDomain Code=";
    for (fault, stdout) in [
        (Fault::GuestPanic, format!("{stopped}1 ")),
        (Fault::VzOutOfDiskSpace, format!("{stopped}8 ")),
        (Fault::NetworkLost, "virtual machine's network attachment <VZNetworkDevice: 0x6".to_owned()),
    ] {
        let a = mac.run(&["a"]);
        mac.wait_for_agent("a");
        mac.switch_on(fault, "");
        let outcome = a.end();
        assert_eq!(outcome.code(), 0, "{fault}");
        assert!(outcome.stdout.starts_with(&stdout), "{fault}: {outcome:?}");
        mac.switch_off(fault);
    }

    let a = mac.run(&["a", "--net-softnet"]);
    mac.wait_for_agent("a");
    mac.switch_on(Fault::SoftnetDies, "");
    let outcome = a.end();
    assert_eq!(outcome.code(), 1);
    assert!(outcome.stderr.contains("Softnet process terminated prematurely"), "{outcome:?}");
}

#[test]
fn run_fails_on_a_full_disk() {
    let mac = Mac::new();
    mac.create("a");
    mac.switch_on(Fault::NoSpace, "run");
    let refused = mac.tart(&["run", "a", "--no-graphics"]);
    assert_eq!(refused.code(), 1);
    assert!(refused.stderr.starts_with("Error Domain=VZErrorDomain Code=8 "), "{refused:?}");
}

#[test]
fn run_dies_as_told() {
    let mac = Mac::new();
    mac.create("a");
    mac.switch_on(Fault::RunDies, "20ms exit 3");
    assert_eq!(mac.run_to_the_end(&["a"]).code(), 3);
    mac.switch_on(Fault::RunDies, "signal SEGV");
    assert_eq!(mac.run_to_the_end(&["a"]).status.signal(), Some(Signal::SIGSEGV as i32));
    mac.switch_off(Fault::RunDies);
    let a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    mac.switch_on(Fault::RunDies.of_vm("a"), "");
    assert_eq!(a.end().code(), 1);
}

#[test]
fn a_path_too_long_for_a_socket_does_no_harm() {
    let mac = Mac::new();
    let home = mac.directory(&"long/".repeat(40));
    let tart = |words: &[&str]| mac.command(words).env("TART_HOME", &home).output().unwrap();
    assert!(tart(&["create", "a", "--from-ipsw", "latest"]).status.success());
    let mut command = mac.command(&["run", "a"]);
    command.env("TART_HOME", &home);
    let _a = mac.run_with(command);
    eventually("the agent answers", || tart(&["exec", "a", "true"]).status.success().then_some(()));
}

#[test]
fn a_home_that_a_url_has_to_escape_has_its_control_socket_elsewhere() {
    let mac = Mac::new();
    for name in ["with space", "100%", "#1", "hôme"] {
        let (home, here) = (mac.directory(name), mac.directory(&format!("here-{}", name.len())));
        let link = mac.path().join(format!("link-{}", name.len()));
        symlink(&home, &link).unwrap();
        let tart = |home: &Path, words: &[&str]| {
            let mut command = mac.command(words);
            command.env("TART_HOME", home).current_dir(&here);
            command
        };
        assert!(tart(&home, &["create", "a", "--from-ipsw", "latest"]).status().unwrap().success());
        let a = mac.run_with(tart(&home, &["run", "a"]));
        eventually("there is a socket", || here.join("control.sock").exists().then_some(()));
        assert!(!home.join("vms/a/control.sock").exists(), "{name}");
        a.kill();
        // A link has no such characters, and tart does not follow it.
        let _a = mac.run_with(tart(&link, &["run", "a"]));
        eventually("there is a socket", || home.join("vms/a/control.sock").exists().then_some(()));
    }
}

#[test]
fn old_releases_have_no_control_socket_in_a_long_home() {
    let mac = Mac::new();
    let home = mac.directory(&"long/".repeat(20));
    mac.switch_on(Fault::Version, "2.30.5");
    let tart = |words: &[&str]| {
        let mut command = mac.command(words);
        command.env("TART_HOME", &home);
        command
    };
    assert!(tart(&["create", "a", "--from-ipsw", "latest"]).status().unwrap().success());
    let mut a = mac.run_with(tart(&["run", "a"]));
    eventually("the guest has booted", || mac.host().join("dhcpd_leases").exists().then_some(()));
    assert!(!home.join("vms/a/control.sock").exists());
    assert!(a.is_alive());
}

#[test]
#[cfg(target_os = "linux")]
fn a_guest_has_the_users_clipboard_unless_run_is_told_otherwise() {
    let mac = Mac::new();
    mac.create("a");
    let clipboard = mac.host().join("clipboard");
    write_shared(&clipboard, "secret");
    let a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    assert_eq!(mac.sh("a", "pbpaste; printf changed | pbcopy").ok(), "secret");
    assert_eq!(fs::read_to_string(&clipboard).unwrap(), "changed");
    a.kill();
    let _a = mac.run(&["a", "--no-clipboard"]);
    mac.wait_for_agent("a");
    assert_eq!(mac.sh("a", "pbpaste; printf again | pbcopy").ok(), "");
    assert_eq!(fs::read_to_string(&clipboard).unwrap(), "changed");
}

#[test]
fn run_prints_where_the_screen_is() {
    let mac = Mac::new();
    mac.create("a");
    let a = mac.run(&["a", "--vnc-experimental"]);
    let line = eventually("the address is printed", || a.stdout().lines().next().map(str::to_owned));
    assert!(line.starts_with("VNC server is running at vnc://:"), "{line}");
    assert!(line.contains("@127.0.0.1:"), "{line}");
}

#[test]
fn run_opens_a_serial_port() {
    let mac = Mac::new();
    mac.create("a");
    let a = mac.run(&["a", "--serial"]);
    eventually("the console is announced", || {
        a.stdout().starts_with("Successfully open pty /dev/").then_some(())
    });
    mac.tart(&["run", "a", "--serial-path", "/no/such"]).fails(1, "Failed to open PTY\n");
}

#[test]
#[cfg(target_os = "linux")]
fn run_accepts_relative_paths() {
    let mac = Mac::new();
    let tart = |words: &[&str]| {
        let mut command = mac.command(words);
        command.current_dir(mac.path()).env("TART_HOME", "home").env("TART_SIM_HOST", "host");
        command
    };
    mac.create("a");
    let x = mac.directory("x");
    let a = mac.run_with(tart(&["run", "a", "--dir", "x"]));
    eventually("the agent answers", || {
        tart(&["exec", "a", "true"]).status().unwrap().success().then_some(())
    });
    let shared = ["exec", "a", "touch", "/Volumes/My Shared Files/file"];
    assert!(tart(&shared).status().unwrap().success());
    assert!(x.join("file").exists());
    mac.switch_on(Fault::GuestPanic, "");
    assert_eq!(a.end().code(), 0);
}
