//! The facts of a Linux host, where the agent runs in tests only.

use std::fs;
use std::path::Path;

use nix::unistd::Pid;

use super::SystemFacts;

#[expect(clippy::unused_async, reason = "on macOS it runs a program")]
pub(super) async fn facts() -> SystemFacts {
    let line = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    SystemFacts {
        boot_id: line("/proc/sys/kernel/random/boot_id"),
        machine_id: line("/etc/machine-id"),
        max_pids: line("/proc/sys/kernel/pid_max").and_then(|max| max.parse().ok()),
    }
}

pub(crate) fn processes() -> Option<u64> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let count = entries
        .filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
        })
        .count();
    u64::try_from(count).ok()
}

/// Everything of a simulated VM is below its `tart run`.
pub(crate) async fn vm_helpers(_disk: &Path) -> Vec<Pid> {
    Vec::new()
}
