//! The words of launchd's error numbers, and the names of signals.

use nix::sys::signal::Signal;

/// What `launchctl error` prints behind the number.
pub(super) fn text(number: u8) -> Option<&'static str> {
    Some(match number {
        1 => "Operation not permitted",
        2 => "No such file or directory",
        3 => "No such process",
        5 => "Input/output error",
        17 => "File exists",
        22 => "Invalid argument",
        36 => "Operation now in progress",
        37 => "Operation already in progress",
        108 => "Invalid path",
        109 => "Invalid property list",
        110 => "Invalid or missing service identifier",
        111 => "Invalid or missing Program/ProgramArguments",
        112 => "Could not find specified domain",
        113 => "Could not find specified service",
        119 => "Service is disabled",
        122 => "Path had bad ownership/permissions",
        124 => "Domain is tearing down",
        125 => "Domain does not support specified action",
        133 => "Multiple errors were returned; see stderr",
        134 => "Service cannot load in requested session",
        140 => "Service name is reserved or invalid",
        150 => "Operation not permitted while System Integrity Protection is engaged",
        155 => "Refusing to execute/trust quarantined program/file",
        _ => return None,
    })
}

/// Reads a signal: its number, or its name with or without `SIG`.
pub(super) fn signal(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let name = format!("SIG{}", text.trim_start_matches("SIG"));
    name.parse::<Signal>().ok().map(|signal| signal as i32)
}
