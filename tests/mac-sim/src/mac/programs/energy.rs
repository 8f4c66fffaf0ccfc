//! Sleep, and the end of it: `pmset`, `caffeinate`, `systemsetup`, `shutdown`, `reboot`, `halt`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use mac_sim::control::Request;

use super::{is_root, launchd, not_simulated};

const FILE: &str = "/Library/Preferences/com.apple.PowerManagement.plist";

/// What a new Mac mini has, in the order in which `pmset -g` prints it.
const SETTINGS: &[(&str, i64)] = &[
    ("Sleep On Power Button", 1),
    ("autorestart", 0),
    ("powernap", 1),
    ("networkoversleep", 0),
    ("disksleep", 10),
    ("sleep", 1),
    ("ttyskeepawake", 1),
    ("displaysleep", 10),
    ("tcpkeepalive", 1),
    ("womp", 1),
];

fn settings() -> BTreeMap<String, i64> {
    fs::read(FILE).ok().and_then(|bytes| plist::from_bytes(&bytes).ok()).unwrap_or_default()
}

pub(super) fn pmset(words: &[String]) -> ExitCode {
    let strings: Vec<_> = words.iter().map(String::as_str).collect();
    match strings.as_slice() {
        ["-g"] | ["-g", "custom" | "live"] => {
            let set = settings();
            let head = if strings.len() == 1 {
                "System-wide power settings:\nCurrently in use:"
            } else {
                "AC Power:"
            };
            println!("{head}");
            for (name, default) in SETTINGS {
                println!(" {name:<20} {}", set.get(*name).unwrap_or(default));
            }
            ExitCode::SUCCESS
        }
        ["-g", "assertions"] => {
            assertions();
            ExitCode::SUCCESS
        }
        ["-a" | "-c", pairs @ ..] if !pairs.is_empty() => {
            if !is_root() {
                eprintln!("'pmset' must be run as root...");
                return ExitCode::from(77);
            }
            let mut set = settings();
            let mut rest = pairs;
            while let [name, tail @ ..] = rest {
                let (is_known, number) = (
                    SETTINGS.iter().any(|(known, _)| known == name),
                    tail.first().and_then(|text| text.parse().ok()),
                );
                let (true, Some(number)) = (is_known, number) else {
                    eprintln!("Usage: pmset <options>\nSee pmset(1) for details: 'man pmset'");
                    return ExitCode::from(64);
                };
                set.insert((*name).to_owned(), number);
                rest = &tail[1..];
            }
            match plist::to_file_xml(FILE, &set) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("pmset: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        _ => not_simulated("pmset", words),
    }
}

/// What keeps the Mac awake: each `caffeinate` that runs.
fn assertions() {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let holders: Vec<String> = processes
        .filter_map(|entry| {
            let words = fs::read(entry.path().join("cmdline")).ok()?;
            let program = words.split(|byte| *byte == 0).next()?;
            let is_holder = program.rsplit(|byte| *byte == b'/').next() == Some(b"caffeinate");
            is_holder.then(|| entry.file_name().to_string_lossy().into_owned())
        })
        .collect();
    println!("Assertion status system-wide:");
    for name in ["BackgroundTask", "UserIsActive", "PreventUserIdleDisplaySleep", "PreventSystemSleep"] {
        println!("   {name:<30} 0");
    }
    println!("   {:<30} {}", "PreventUserIdleSystemSleep", u8::from(!holders.is_empty()));
    println!("Listed by owning process:");
    for pid in holders {
        println!(
            "   pid {pid}(caffeinate): [0x0000000100000001] 00:00:01 PreventUserIdleSystemSleep named: \"caffeinate command-line tool\""
        );
    }
}

/// Keeps the Mac awake as long as a process runs. A simulated Mac does not sleep.
pub(super) fn caffeinate(words: &[String]) -> ExitCode {
    let mut rest = words;
    let mut process = None;
    while let [option, tail @ ..] = rest {
        match (option.as_str(), tail) {
            ("-w", [pid, tail @ ..]) => {
                process = Some(pid.clone());
                rest = tail;
            }
            ("-t", [_, tail @ ..]) => rest = tail,
            (flags, tail)
                if flags.starts_with('-') && flags[1..].chars().all(|flag| "dimsu".contains(flag)) =>
            {
                rest = tail;
            }
            (flags, _) if flags.starts_with('-') => return not_simulated("caffeinate", words),
            _ => break,
        }
    }
    if let [program, arguments @ ..] = rest {
        let error = Command::new(program).args(arguments).exec();
        eprintln!("caffeinate: {program}: {error}");
        return ExitCode::FAILURE;
    }
    let is_over = || process.as_ref().is_some_and(|pid| !Path::new("/proc").join(pid).exists());
    while !is_over() {
        std::thread::sleep(Duration::from_millis(100));
    }
    ExitCode::SUCCESS
}

pub(super) fn systemsetup(words: &[String]) -> ExitCode {
    if !is_root() {
        println!("You need administrator access to run this tool... exiting!");
        return ExitCode::SUCCESS;
    }
    let strings: Vec<_> = words.iter().map(String::as_str).collect();
    match strings.as_slice() {
        ["-getremotelogin"] => println!("Remote Login: On"),
        ["-setremotelogin", "on"] => println!("setremotelogin: remote login is already On."),
        ["-setremotelogin", ..] => {
            println!("setremotelogin: Turning Remote Login on or off requires Full Disk Access privileges.");
        }
        ["-setusingnetworktime", "on"] => println!("setUsingNetworkTime: On"),
        ["-getusingnetworktime"] => println!("Network Time: On"),
        ["-getcomputersleep"] => println!("Computer Sleep: {}", minutes("sleep")),
        ["-setcomputersleep", "Never" | "Off"] => return pmset(&["-a", "sleep", "0"].map(str::to_owned)),
        ["-gettimezone"] => println!("Time Zone: GMT"),
        _ => return not_simulated("systemsetup", words),
    }
    ExitCode::SUCCESS
}

fn minutes(name: &str) -> String {
    let default = SETTINGS.iter().find(|(known, _)| *known == name).map_or(0, |(_, minutes)| *minutes);
    match settings().get(name).copied().unwrap_or(default) {
        0 => "Never".to_owned(),
        minutes => format!("after {minutes} minutes"),
    }
}

pub(super) fn shutdown(words: &[String]) -> ExitCode {
    let strings: Vec<_> = words.iter().map(String::as_str).collect();
    let request = match strings.as_slice() {
        ["-r", "now"] => Request::Reboot,
        ["-h", "now"] => Request::PowerOff,
        _ => return not_simulated("shutdown", words),
    };
    if !is_root() {
        eprintln!("shutdown: NOT super-user");
        return ExitCode::FAILURE;
    }
    println!("Shutdown NOW!");
    end(&request)
}

pub(super) fn reboot(words: &[String]) -> ExitCode {
    end_quietly("reboot", words, &Request::Reboot)
}

pub(super) fn halt(words: &[String]) -> ExitCode {
    end_quietly("halt", words, &Request::PowerOff)
}

fn end_quietly(name: &str, words: &[String], request: &Request) -> ExitCode {
    if !words.is_empty() {
        return not_simulated(name, words);
    }
    if !is_root() {
        eprintln!("{name}: Operation not permitted");
        return ExitCode::FAILURE;
    }
    end(request)
}

/// launchd ends this process with all others.
fn end(request: &Request) -> ExitCode {
    let _ = launchd(request);
    ExitCode::SUCCESS
}
