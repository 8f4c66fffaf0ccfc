//! The output of `tart run`, and what its end means.

use std::collections::VecDeque;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::logs::line::LogStream;
use crate::logs::writer::LogWriter;
use crate::mutex::lock;
use crate::names::VmName;
use crate::state::{Ending, HostFault, KILLED, NotStarted, NotStartedReason};
use crate::tart::{Fault, reason, running_vms};

/// How much of the last output explains an end.
const MAX_TAIL: usize = 8 << 10;
/// The output of `tart run` when `tart stop` ends the VM.
const STOPPED_BY_TART: &str = "Stopping VM...";
/// How long the pipes may stay open after tart has ended.
const PIPE_LIMIT: Duration = Duration::from_secs(2);

/// Collects the output of one `tart run`.
pub(in crate::shim) struct VmOutput {
    readers: JoinSet<()>,
    kept: Arc<Mutex<Kept>>,
}

struct Kept {
    tail: VecDeque<u8>,
    log: LogWriter,
}

impl VmOutput {
    /// Reads the child's pipes, and copies them to `log`.
    pub(in crate::shim) fn collect(child: &mut Child, log: LogWriter) -> Self {
        let kept = Arc::new(Mutex::new(Kept { tail: VecDeque::new(), log }));
        let mut readers = JoinSet::new();
        if let Some(pipe) = child.stdout.take() {
            readers.spawn(read(pipe, LogStream::Stdout, kept.clone()));
        }
        if let Some(pipe) = child.stderr.take() {
            readers.spawn(read(pipe, LogStream::Stderr, kept.clone()));
        }
        Self { readers, kept }
    }

    /// What the end of `tart run` means for the container.
    pub(in crate::shim) async fn ending(mut self, status: io::Result<ExitStatus>) -> Ending {
        // A child of tart may hold the pipes open for ever.
        let _ = timeout(PIPE_LIMIT, async { while self.readers.join_next().await.is_some() {} }).await;
        self.readers.abort_all();
        let (log, said) = {
            let mut kept = lock(&self.kept);
            let said = String::from_utf8_lossy(kept.tail.make_contiguous()).into_owned();
            (std::mem::replace(&mut kept.log, LogWriter::nowhere()), said)
        };
        log.close().await;
        match status {
            Ok(status) => ending_of(status.code(), status.signal(), &said),
            Err(error) => ending_of(None, None, &error.to_string()),
        }
    }
}

async fn read(mut pipe: impl AsyncRead + Unpin, source: LogStream, kept: Arc<Mutex<Kept>>) {
    let mut chunk = vec![0; 4 << 10];
    while let Ok(length @ 1..) = pipe.read(&mut chunk).await {
        let mut kept = lock(&kept);
        kept.tail.extend(&chunk[..length]);
        let surplus = kept.tail.len().saturating_sub(MAX_TAIL);
        kept.tail.drain(..surplus);
        kept.log.write(source, &chunk[..length]);
    }
}

/// `tart run` exits with 0 also when the guest crashed: only its output tells.
fn ending_of(code: Option<i32>, signal: Option<i32>, said: &str) -> Ending {
    let reason = || reason(said).unwrap_or("tart said nothing");
    let crash = ["guest has stopped the virtual machine due to error", "network attachment"];
    match (code, signal) {
        (Some(0), _) => match said.lines().find(|line| crash.iter().any(|words| line.contains(words))) {
            Some(line) => {
                let advice = if Fault::of(line) == Fault::NoSpace { Fault::NoSpace.advice() } else { "" };
                Ending::Exited { code: 1, message: Some(format!("{}{advice}", line.trim())) }
            }
            // When the shim itself stops the VM, it does not use this ending.
            None if said.lines().any(|line| line.trim() == STOPPED_BY_TART) => {
                Ending::Exited { code: KILLED, message: Some("a user stopped the VM with tart".to_owned()) }
            }
            None => Ending::Exited { code: 0, message: None },
        },
        (Some(_), _) => Ending::NotStarted(NotStarted {
            reason: NotStartedReason::StartError,
            message: explain(reason(), Fault::of(said)),
            fault: host_fault(said),
        }),
        (None, Some(signal)) => {
            Ending::Exited { code: 128 + signal, message: Some(format!("signal {signal} killed the VM")) }
        }
        (None, None) => Ending::Exited { code: 255, message: Some(reason().to_owned()) },
    }
}

/// Whether tart's message says that the host's disk is full.
pub(in crate::shim) fn is_for_want_of_space(ending: &Ending) -> bool {
    match ending {
        Ending::NotStarted(NotStarted { message, .. }) | Ending::Exited { message: Some(message), .. } => {
            Fault::of(message) == Fault::NoSpace
        }
        _ => false,
    }
}

fn explain(line: &str, fault: Fault) -> String {
    let line = line.strip_prefix("Error: ").unwrap_or(line);
    format!("tart cannot run the VM: {line}{}", fault.advice())
}

/// The fault of the host in tart's output, if there is one.
fn host_fault(said: &str) -> Option<HostFault> {
    match Fault::of(said) {
        Fault::HostSession => Some(HostFault::Session),
        Fault::VmLimit => {
            let ours = running_vms(said).into_iter().filter(|name| name.parse::<VmName>().is_ok()).count();
            Some(HostFault::VmLimit { ours: u32::try_from(ours).unwrap_or(u32::MAX) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_comes_from_tarts_exit_code_signal_and_output() {
        let exited =
            |code, message: Option<&str>| Ending::Exited { code, message: message.map(str::to_owned) };
        let table = [
            (Some(0), None, "", exited(0, None)),
            (Some(0), None, "guest has stopped the virtual machine\n", exited(0, None)),
            (Some(0), None, "Stopping VM...\n", exited(137, Some("a user stopped the VM with tart"))),
            (Some(0), None, "Requesting guest OS to stop...\n", exited(0, None)),
            (
                Some(0),
                None,
                "guest has stopped the virtual machine due to error: panic\n",
                exited(1, Some("guest has stopped the virtual machine due to error: panic")),
            ),
            (None, Some(9), "", exited(137, Some("signal 9 killed the VM"))),
            (None, Some(15), "", exited(143, Some("signal 15 killed the VM"))),
        ];
        for (code, signal, said, ending) in table {
            assert_eq!(ending_of(code, signal, said), ending, "{code:?} {signal:?} {said}");
        }
        let Ending::NotStarted(NotStarted { reason, message, fault }) = ending_of(
            Some(1),
            None,
            "The number of VMs exceeds the system limit (other running VMs: a, tk-builder-1, \
             tk-0b1c2d3e-0000-4000-8000-0123456789ab-0)\n",
        ) else {
            panic!("a VM that tart refused has not started")
        };
        assert_eq!((reason, fault), (NotStartedReason::StartError, Some(HostFault::VmLimit { ours: 1 })));
        assert!(message.contains("exceeds the system limit") && message.contains("two VMs"), "{message}");
    }

    #[test]
    fn what_follows_the_reason_hides_neither_it_nor_the_fault() {
        let noise = "2026-11-18 03:40:19.123 tart[812:4711] Metal is away";
        let said = format!("The number of VMs exceeds the system limit (other running VMs: a)\n{noise}\n");
        let Ending::NotStarted(NotStarted { message, fault, .. }) = ending_of(Some(1), None, &said) else {
            panic!("a VM that tart refused has not started")
        };
        assert_eq!(fault, Some(HostFault::VmLimit { ours: 0 }));
        assert!(message.contains("exceeds the system limit") && message.contains("two VMs"), "{message}");
        let said = "Error: invalid --dir syntax\nUsage: tart run <name>\n  See 'tart run --help' for more information.\n";
        let Ending::NotStarted(NotStarted { message, .. }) = ending_of(Some(64), None, said) else {
            panic!("a VM that tart refused has not started")
        };
        assert_eq!(message, "tart cannot run the VM: invalid --dir syntax");
    }

    #[test]
    fn a_fault_of_the_host_is_found_in_tarts_message() {
        let table = [
            (
                "Error Domain=VZErrorDomain Code=1 \"The virtual machine failed to start.\"",
                Some(HostFault::Session),
            ),
            ("Error Domain=VZErrorDomain Code=-9 \"Failed to create new HostKey\"", Some(HostFault::Session)),
            ("The number of VMs exceeds the system limit", Some(HostFault::VmLimit { ours: 0 })),
            ("Error Domain=VZErrorDomain Code=2 \"Failed to lock auxiliary storage.\"", None),
        ];
        for (words, fault) in table {
            assert_eq!(host_fault(words), fault, "{words}");
        }
    }

    #[test]
    fn a_full_disk_is_found_before_and_after_the_start() {
        let refused = "Error: “nvram.bin” couldn’t be copied to “tmp” because there isn’t enough space.";
        let stopped =
            "guest has stopped the virtual machine due to error: Error Domain=VZErrorDomain Code=8 \"full\"";
        for (code, words, is_full) in
            [(1, refused, true), (0, stopped, true), (1, "something else", false), (0, "", false)]
        {
            let ending = ending_of(Some(code), None, words);
            assert_eq!(is_for_want_of_space(&ending), is_full, "{ending:?}");
            assert_eq!(format!("{ending:?}").contains("free some disk space"), is_full, "{ending:?}");
        }
    }
}
