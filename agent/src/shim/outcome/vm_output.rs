//! What `tart run` says while a VM lives, and what its end means.

use std::collections::VecDeque;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::logs::writer::{LogStream, LogWriter};
use crate::names::VmName;
use crate::shim::KILLED;
use crate::state::{Ending, HostFault};
use crate::tart::{Fault, running_vms};

/// How much of the latest output is kept to explain an end.
const TAIL: usize = 8 << 10;
/// What it says when it ends a VM because somebody else has asked for that.
const PLUG_PULLED: &str = "Stopping VM...";
/// How long the pipes may stay open after tart has ended.
const PIPE_PATIENCE: Duration = Duration::from_secs(2);

/// Collects the output of one `tart run`.
pub(crate) struct VmOutput {
    readers: JoinSet<()>,
    kept: Arc<Mutex<Kept>>,
}

struct Kept {
    tail: VecDeque<u8>,
    log: LogWriter,
}

impl VmOutput {
    /// Starts to read the child's pipes, and copies them to `log`.
    pub(crate) fn collect(child: &mut Child, log: LogWriter) -> Self {
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
    pub(crate) async fn ending(mut self, status: io::Result<ExitStatus>) -> Ending {
        // A child of tart can hold the pipes open for ever.
        let _ = timeout(PIPE_PATIENCE, async { while self.readers.join_next().await.is_some() {} }).await;
        self.readers.abort_all();
        let (log, said) = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let said = String::from_utf8_lossy(kept.tail.make_contiguous()).into_owned();
            (std::mem::replace(&mut kept.log, LogWriter::nowhere()), said)
        };
        log.close().await;
        match status {
            Ok(status) => judge(status.code(), status.signal(), &said),
            Err(error) => judge(None, None, &error.to_string()),
        }
    }
}

async fn read(mut pipe: impl AsyncRead + Unpin, source: LogStream, kept: Arc<Mutex<Kept>>) {
    let mut chunk = vec![0; 4 << 10];
    while let Ok(length @ 1..) = pipe.read(&mut chunk).await {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.tail.extend(&chunk[..length]);
        let surplus = kept.tail.len().saturating_sub(TAIL);
        kept.tail.drain(..surplus);
        kept.log.write(source, &chunk[..length]);
    }
}

/// `tart run` exits with 0 also when the guest crashed: only its words tell.
fn judge(code: Option<i32>, signal: Option<i32>, said: &str) -> Ending {
    let last_line =
        || said.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("tart said nothing");
    let crash = ["guest has stopped the virtual machine due to error", "network attachment"];
    match (code, signal) {
        (Some(0), _) => match said.lines().find(|line| crash.iter().any(|words| line.contains(words))) {
            Some(line) => {
                let advice = if Fault::of(line) == Fault::NoSpace { Fault::NoSpace.advice() } else { "" };
                Ending::Exited { code: 1, message: Some(format!("{}{advice}", line.trim())) }
            }
            // `tart stop` pulls the plug. When we do so ourselves, nobody asks what it means.
            None if said.lines().any(|line| line.trim() == PLUG_PULLED) => {
                Ending::Exited { code: KILLED, message: Some("somebody stopped the VM with tart".to_owned()) }
            }
            None => Ending::Exited { code: 0, message: None },
        },
        (Some(_), _) => Ending::NotStarted {
            reason: "StartError".to_owned(),
            message: explain(last_line()),
            fault: host_fault(last_line()),
        },
        (None, Some(signal)) => {
            Ending::Exited { code: 128 + signal, message: Some(format!("signal {signal} killed the VM")) }
        }
        (None, None) => Ending::Exited { code: 255, message: Some(last_line().to_owned()) },
    }
}

/// Whether a VM has ended, by tart's own words, because the host's disk is full.
pub(crate) fn is_for_want_of_space(ending: &Ending) -> bool {
    match ending {
        Ending::NotStarted { message, .. } | Ending::Exited { message: Some(message), .. } => {
            Fault::of(message) == Fault::NoSpace
        }
        _ => false,
    }
}

fn explain(line: &str) -> String {
    let line = line.strip_prefix("Error: ").unwrap_or(line);
    format!("tart cannot run the VM: {line}{}", Fault::of(line).advice())
}

/// What the words of tart say about the host, when they do.
fn host_fault(line: &str) -> Option<HostFault> {
    match Fault::of(line) {
        Fault::HostSession => Some(HostFault::Session),
        Fault::VmLimit => {
            let ours = running_vms(line).into_iter().filter(|name| name.parse::<VmName>().is_ok()).count();
            Some(HostFault::VmLimit { ours: u32::try_from(ours).unwrap_or(u32::MAX) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_judged_by_code_and_words() {
        let exited =
            |code, message: Option<&str>| Ending::Exited { code, message: message.map(str::to_owned) };
        let table = [
            (Some(0), None, "", exited(0, None)),
            (Some(0), None, "guest has stopped the virtual machine\n", exited(0, None)),
            (Some(0), None, "Stopping VM...\n", exited(137, Some("somebody stopped the VM with tart"))),
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
            assert_eq!(judge(code, signal, said), ending, "{code:?} {signal:?} {said}");
        }
        let Ending::NotStarted { reason, message, fault } = judge(
            Some(1),
            None,
            "The number of VMs exceeds the system limit (other running VMs: a, tk-builder-1, \
             tk-0b1c2d3e-0000-4000-8000-0123456789ab-0)\n",
        ) else {
            panic!("a VM that tart refused has not started")
        };
        assert_eq!((reason.as_str(), fault), ("StartError", Some(HostFault::VmLimit { ours: 1 })));
        assert!(message.contains("exceeds the system limit") && message.contains("two VMs"), "{message}");
    }

    #[test]
    fn the_hosts_faults_are_told_from_the_pods() {
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
    fn a_full_disk_is_told_apart_before_and_after_the_start() {
        let refused = "Error: “nvram.bin” couldn’t be copied to “tmp” because there isn’t enough space.";
        let stopped =
            "guest has stopped the virtual machine due to error: Error Domain=VZErrorDomain Code=8 \"full\"";
        for (code, words, is_full) in
            [(1, refused, true), (0, stopped, true), (1, "something else", false), (0, "", false)]
        {
            let ending = judge(Some(code), None, words);
            assert_eq!(is_for_want_of_space(&ending), is_full, "{ending:?}");
            assert_eq!(format!("{ending:?}").contains("free some disk space"), is_full, "{ending:?}");
        }
    }
}
