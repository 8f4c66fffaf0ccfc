//! Faults that befall any command.

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

use crate::mac::Mac;

#[test]
fn latency() {
    let mac = Mac::new();
    let took = |args: &[&str]| {
        let start = Instant::now();
        mac.ok(args);
        start.elapsed()
    };
    mac.fault("latency", "list=300ms");
    assert!(took(&["list"]) >= Duration::from_millis(300));
    let other = (0..5).map(|_| took(&["fqn", "vm"])).min().unwrap();
    assert!(other < Duration::from_millis(300), "{other:?}");
    mac.fault("latency", "300ms");
    assert!(took(&["fqn", "vm"]) >= Duration::from_millis(300));
}

#[test]
fn calls_are_recorded_when_asked_for() {
    let mac = Mac::new();
    mac.ok(&["list"]);
    mac.fault("calls", "");
    mac.ok(&["fqn", "vm"]);
    mac.ok(&["--version"]);
    mac.no_fault("calls");
    mac.ok(&["list"]);
    assert_eq!(std::fs::read_to_string(mac.path("host/calls")).unwrap(), "fqn\n--version\n");
}

#[test]
fn a_command_hangs_until_the_fault_is_gone() {
    let mac = Mac::new();
    mac.fault("hang", "list get");
    let mut hanging = mac.command(&["list"]).stdout(Stdio::piped()).spawn().unwrap();
    mac.ok(&["fqn", "vm"]);
    assert!(hanging.try_wait().unwrap().is_none());
    mac.no_fault("hang");
    assert_eq!(hanging.wait_with_output().unwrap().status.code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn sigterm_ends_a_command_that_hangs_and_sigint_does_not() {
    let mac = Mac::new();
    mac.fault("hang", "*");
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

/// Whether the process is far enough to do without SIGINT.
#[cfg(target_os = "linux")]
fn blocks_sigint(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (Signal::SIGINT as u64 - 1)) != 0
}

#[test]
fn a_grandchild_holds_the_pipe() {
    let mac = Mac::new();
    mac.fault("hold-pipe", "list");
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
    mac.no_fault("hold-pipe");
    end.recv_timeout(Duration::from_secs(20)).unwrap();
    reader.join().unwrap();
}

#[test]
fn garbage_instead_of_output() {
    let mac = Mac::new();
    mac.create("vm");
    mac.fault("garbage", "list");
    let text = mac.ok(&["list", "--format=json"]);
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_err(), "{text}");
    mac.tart(&["get", "vm", "--format=json"]).json();
}
