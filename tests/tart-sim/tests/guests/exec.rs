//! `tart exec` and the control socket.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tart_sim::Fault;

#[cfg(target_os = "linux")]
use crate::mac::processes_with;
use crate::mac::{DEADLINE, Mac, eventually};

const NO_AGENT: &str = "Failed to connect to the VM using its control socket: The operation couldn’t be completed. \
                        (GRPC.GRPCConnectionPoolError error 1.), is the Tart Guest Agent running?\n";

#[test]
fn exec_refuses_a_vm_that_does_not_exist_or_run() {
    let mac = Mac::new();
    mac.tart(&["exec", "x", "true"]).fails(2, "the specified VM \"x\" does not exist\n");
    mac.create("a");
    mac.tart(&["exec", "a", "true"]).fails(2, "VM \"a\" is not running\n");
}

#[test]
fn exec_passes_on_exit_codes_and_streams() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    for code in [0, 1, 7, 255] {
        assert_eq!(mac.sh("a", &format!("exit {code}")).code(), code);
    }
    assert_eq!(mac.sh("a", "kill -9 $$").code(), 255);
    let outcome = mac.sh("a", "echo out; echo err >&2");
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
    // Everything after the VM's name belongs to the command, also what looks like an option.
    assert_eq!(mac.tart(&["exec", "a", "echo", "-t", "--", "-i"]).ok(), "-t -- -i\n");
}

#[test]
fn exec_fails_for_a_command_that_does_not_exist() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    mac.tart(&["exec", "a", "no-such-program"])
        .fails(1, "Error: unknown (2): exec: \"no-such-program\": executable file not found in $PATH\n");
}

#[test]
fn exec_attaches_standard_input_only_with_i() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    assert_eq!(mac.tart_with_input(&["exec", "a", "cat"], b"").ok(), "");
    let input: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let sum = mac.tart_with_input(&["exec", "-i", "a", "sha256sum"], &input).ok();
    let expected = mac
        .tart_with_input(&["exec", "-i", "a", "sh", "-c", "cat > f; sha256sum < f; wc -c < f"], &input)
        .ok();
    assert_eq!(expected, format!("{sum}4000000\n"));
}

#[test]
#[cfg(target_os = "linux")]
fn exec_gives_a_command_a_terminal() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    let outcome = mac.tart_with_input(
        &["exec", "-i", "-t", "a", "sh", "-c", "test -t 0 && test -t 1 && tty && cat"],
        b"typed\n",
    );
    assert_eq!(outcome.code(), 0, "{outcome:?}");
    assert!(outcome.stdout.contains("/dev/pts/"), "{outcome:?}");
    // The terminal echoes its input, maybe before the command prints anything, and ends lines with CR LF.
    assert_eq!(outcome.stdout.matches("typed\r\n").count(), 2, "{outcome:?}");
    // The command leads a session and has the terminal for its own.
    mac.tart(&["exec", "-t", "a", "sh", "-c", "test -w /dev/tty && : > /dev/tty"]).ok();
}

#[test]
fn a_commands_terminal_has_the_size_of_the_clients() {
    use nix::sys::signal::{Signal, kill};
    use rustix::termios::{Winsize, tcsetwinsize};

    let mac = Mac::new();
    let _a = mac.boot("a");
    let pty = nix::pty::openpty(None, None).unwrap();
    let resize = |rows, columns| {
        tcsetwinsize(&pty.master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
            .unwrap();
    };
    resize(30, 100);
    let script = "stty size; until stty size | grep '^40 120'; do :; done";
    let mut command = mac.command(&["exec", "-t", "a", "sh", "-c", script]);
    let mut client = command.stdin(pty.slave.try_clone().unwrap()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = client.stdout.take().unwrap();
    let mut first = [0; 8];
    stdout.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"30 100\r\n");
    resize(40, 120);
    kill(nix::unistd::Pid::from_raw(client.id().try_into().unwrap()), Signal::SIGWINCH).unwrap();
    let mut second = String::new();
    stdout.read_to_string(&mut second).unwrap();
    assert_eq!(second, "40 120\r\n");
    assert!(client.wait().unwrap().success());
}

#[test]
fn much_output_arrives_whole() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    let outcome = mac.sh("a", "head -c 20000000 /dev/zero | tr '\\0' x");
    assert_eq!(outcome.stdout.len(), 20_000_000);
}

#[test]
#[cfg(target_os = "linux")]
fn memory_stays_bounded_while_the_client_does_not_read() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    let mark = "head -c 400000000";
    let mut child = mac.command(&["exec", "a", "sh", "-c", "echo begun; head -c 400000000 /dev/zero"]);
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let mut begun = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
    eventually("the output begins", || (processes_with(mark) > 0).then_some(()));
    // The client reads nothing more: the writer sleeps once the buffers are full.
    let resident = || largest_resident_set(&["tart-guest-init", "tart"]);
    let first = eventually("the writer waits", || {
        let before = resident();
        std::thread::park_timeout(Duration::from_millis(100));
        (resident() == before).then_some(before)
    });
    assert!(first < 60_000, "{first} kB");
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the command is killed with its client", || (processes_with(mark) == 0).then_some(()));
}

/// In kilobytes, of all processes with one of these names.
#[cfg(target_os = "linux")]
fn largest_resident_set(names: &[&str]) -> u64 {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let sizes = processes.filter_map(|entry| {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        names.contains(&field("Name:")?).then_some(())?;
        field("VmRSS:")?.strip_suffix(" kB")?.parse().ok()
    });
    sizes.max().unwrap_or_default()
}

#[test]
#[cfg(target_os = "linux")]
fn the_guest_does_not_hear_of_a_client_that_dies() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    let mark = format!("{}.25", 86_400 + std::process::id());
    let mut client = mac.command(&["exec", "a", "sh", "-c", &format!("exec sleep {mark}")]).spawn().unwrap();
    eventually("the command runs", || (processes_with(&format!("sleep\0{mark}")) == 1).then_some(()));
    client.kill().unwrap();
    client.wait().unwrap();
    // By the time that the agent has answered others, it would have heard.
    for _ in 0..3 {
        mac.sh("a", "true").ok();
    }
    assert_eq!(processes_with(&format!("sleep\0{mark}")), 1);
}

#[test]
fn closed_connections_add_up_until_the_control_socket_is_gone() {
    let mac = Mac::new();
    mac.create("a");
    mac.switch_on(Fault::ControlSocketConnections, "3");
    mac.switch_on(Fault::AgentConnectTimeout, "2s");
    let mut a = mac.run(&["a"]);
    let socket = mac.vm_dir("a").join("control.sock");
    eventually("the agent answers", || {
        let mut connection = UnixStream::connect(&socket).ok()?;
        // The greeting of an HTTP/2 server.
        connection.read_exact(&mut [0; 9]).ok()
    });
    for _ in 0..2 {
        mac.sh("a", "true").ok();
    }
    mac.tart(&["exec", "a", "true"]).fails(1, NO_AGENT);
    assert!(socket.exists() && UnixStream::connect(&socket).is_err());
    assert!(a.is_alive());
}

#[test]
fn exec_gives_up_without_a_guest_agent() {
    let mac = Mac::new();
    mac.create("a");
    mac.set_image("a", r#"{"agent": false}"#);
    mac.switch_on(Fault::AgentConnectTimeout, "300ms");
    let _a = mac.run(&["a"]);
    mac.wait_until_running("a");
    let begun = Instant::now();
    mac.tart(&["exec", "a", "true"]).fails(1, NO_AGENT);
    assert!(begun.elapsed() >= Duration::from_millis(300));
}

#[test]
fn the_control_socket_accepts_before_the_agent_answers() {
    let mac = Mac::new();
    mac.create("a");
    mac.set_image("a", r#"{"agentDelay": 600}"#);
    let _a = mac.run(&["a"]);
    let path = mac.vm_dir("a").join("control.sock");
    let mut connection = eventually("the socket accepts", || UnixStream::connect(&path).ok());
    let mut answer = Vec::new();
    connection.set_read_timeout(Some(DEADLINE)).unwrap();
    connection.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"");
}

#[test]
fn exec_fails_alike_with_every_broken_agent_and_works_again_afterwards() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    for fault in [Fault::AgentDown, Fault::AgentStall, Fault::AgentGarbage] {
        mac.switch_on(fault, "");
        mac.switch_on(Fault::AgentConnectTimeout, "300ms");
        mac.tart(&["exec", "a", "true"]).fails(1, NO_AGENT);
        mac.switch_off(Fault::AgentConnectTimeout);
        mac.switch_off(fault);
        mac.tart(&["exec", "a", "true"]).ok();
    }
}

#[test]
fn a_stalled_agent_holds_up_a_running_command() {
    let mac = Mac::new();
    let _a = mac.boot("a");
    let mut command = mac.command(&["exec", "-i", "a", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut echo = |text: &[u8]| {
        use std::io::Write as _;
        stdin.write_all(text).unwrap();
    };
    echo(b"one\n");
    let mut answer = [0; 4];
    stdout.read_exact(&mut answer).unwrap();
    mac.switch_on(Fault::AgentStall, "");
    echo(b"two\n");
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut answer = [0; 4];
        sender.send(stdout.read_exact(&mut answer).map(|()| answer)).unwrap();
    });
    assert!(receiver.recv_timeout(Duration::from_millis(300)).is_err());
    mac.switch_off(Fault::AgentStall);
    assert_eq!(&receiver.recv_timeout(DEADLINE).unwrap().unwrap(), b"two\n");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn exec_fails_when_the_vm_dies() {
    let mac = Mac::new();
    let a = mac.boot("a");
    let mut command = mac.command(&["exec", "a", "sh", "-c", "echo begun; sleep 1000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    a.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stderr, b"Error: unavailable (14): Transport became inactive\n");
}
