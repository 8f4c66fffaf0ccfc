//! Faults of any command, and which faults the simulator refuses.

use std::io::Read as _;
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use {
    nix::sys::signal::{Signal, kill},
    nix::unistd::Pid,
    std::os::unix::process::ExitStatusExt as _,
};

use tart_sim::fault::{Fault, REFUSED};

use crate::mac::Mac;

#[test]
fn latency_delays_all_commands_or_one() {
    let mac = Mac::new();
    let took = |args: &[&str]| {
        let start = Instant::now();
        mac.ok(args);
        start.elapsed()
    };
    mac.switch_on(Fault::Latency, "list=300ms");
    assert!(took(&["list"]) >= Duration::from_millis(300));
    let other = (0..5).map(|_| took(&["fqn", "vm"])).min().unwrap();
    assert!(other < Duration::from_millis(300), "{other:?}");
    mac.switch_on(Fault::Latency, "300ms");
    assert!(took(&["fqn", "vm"]) >= Duration::from_millis(300));
}

#[test]
fn the_simulator_records_calls() {
    let mac = Mac::new();
    mac.ok(&["list"]);
    mac.switch_on(Fault::Calls, "");
    mac.ok(&["fqn", "vm"]);
    mac.ok(&["--version"]);
    mac.switch_off(Fault::Calls);
    mac.ok(&["list"]);
    assert_eq!(std::fs::read_to_string(mac.path("host/calls")).unwrap(), "fqn\n--version\n");
}

#[test]
fn a_command_hangs_until_the_fault_is_gone() {
    let mac = Mac::new();
    mac.switch_on(Fault::Hang, "list get");
    let mut hanging = mac.command(&["list"]).stdout(Stdio::piped()).spawn().unwrap();
    mac.ok(&["fqn", "vm"]);
    assert!(hanging.try_wait().unwrap().is_none());
    mac.switch_off(Fault::Hang);
    assert_eq!(hanging.wait_with_output().unwrap().status.code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn sigterm_ends_a_command_that_hangs_and_sigint_does_not() {
    let mac = Mac::new();
    mac.switch_on(Fault::Hang, "*");
    let mut hanging = mac.command(&["list"]).spawn().unwrap();
    let pid = Pid::from_raw(hanging.id().try_into().unwrap());
    while !blocks_sigint(pid) {
        thread::yield_now();
    }
    kill(pid, Signal::SIGINT).unwrap();
    assert_eq!(hanging.try_wait().unwrap(), None);
    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(hanging.wait().unwrap().signal(), Some(15));
}

/// Whether the process has blocked SIGINT.
#[cfg(target_os = "linux")]
fn blocks_sigint(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (Signal::SIGINT as u64 - 1)) != 0
}

#[test]
fn a_process_that_the_command_left_holds_the_pipe() {
    let mac = Mac::new();
    mac.switch_on(Fault::HoldPipe, "list");
    let mut child = mac.command(&["list", "-q"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (ended, end) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        ended.send(()).unwrap();
    });
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(end.recv_timeout(Duration::from_millis(200)), Err(RecvTimeoutError::Timeout));
    mac.switch_off(Fault::HoldPipe);
    end.recv_timeout(Duration::from_secs(20)).unwrap();
    reader.join().unwrap();
}

#[test]
fn a_command_prints_garbage() {
    let mac = Mac::new();
    mac.create("vm");
    mac.switch_on(Fault::Garbage, "list");
    let text = mac.ok(&["list", "--format=json"]);
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_err(), "{text}");
    mac.tart(&["get", "vm", "--format=json"]).json();
}

#[test]
fn the_simulator_refuses_an_unknown_fault() {
    let mac = Mac::new();
    let faults = mac.path("host/faults");
    let path = faults.display();
    for (file, parameter, why) in [
        ("hagn", "list", "`hagn` is no fault of the simulator"),
        ("agent-dwon.vm", "", "`agent-dwon.vm` is no fault of the simulator"),
        ("hang.vm", "list", "`hang` cannot be switched on for one VM"),
        ("hang", "lits", "`hang` takes commands, not \"lits\""),
        ("boot-delay", "", "`boot-delay` takes a duration, not \"\""),
        ("keychain-locked", "yes", "`keychain-locked` takes nothing, not \"yes\""),
    ] {
        std::fs::write(faults.join(file), parameter).unwrap();
        for command in [&["list"][..], &["--version"], &["no-such-command"]] {
            mac.tart(command).fails(REFUSED.into(), &format!("tart-sim: {path}: {why}"));
        }
        std::fs::remove_file(faults.join(file)).unwrap();
    }
    std::fs::write(faults.join(".hidden"), "").unwrap();
    mac.ok(&["list"]);
}

#[test]
fn a_waiting_command_refuses_a_parameter_that_turns_bad() {
    let mac = Mac::new();
    mac.switch_on(Fault::Hang, "list");
    mac.switch_on(Fault::Calls, "");
    let hanging = mac.command(&["list"]).stderr(Stdio::piped()).spawn().unwrap();
    // The command has checked all faults before it writes its line.
    while !mac.path("host/calls").exists() {
        thread::yield_now();
    }
    let (new, old) = (mac.path("host/faults/.hang"), mac.path("host/faults/hang"));
    std::fs::write(&new, "lits").unwrap();
    std::fs::rename(new, old).unwrap();
    let ended = hanging.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(REFUSED.into()), "{ended:?}");
}
