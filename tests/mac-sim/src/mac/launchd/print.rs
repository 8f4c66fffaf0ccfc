//! What `launchctl print` and `launchctl list` print.

use std::fmt::Write as _;
use std::time::Instant;

use mac_sim::control::Domain;

use super::definition::{KeepAlive, ProcessType};
use super::job::{Job, Kind, State};
use super::respawn::Exit;
use super::xpcproxy::{PATH, environment};
use super::{Key, Launchd};

/// The names that macOS prints for the exit codes of sysexits.h, from 64 on.
const SYSEXITS: [&str; 15] = [
    "EX_USAGE",
    "EX_DATAERR",
    "EX_NOINPUT",
    "EX_NOUSER",
    "EX_NOHOST",
    "EX_UNAVAILABLE",
    "EX_SOFTWARE",
    "EX_OSERR",
    "EX_OSFILE",
    "EX_CANTCREAT",
    "EX_IOERR",
    "EX_TEMPFAIL",
    "EX_PROTOCOL",
    "EX_NOPERM",
    "EX_CONFIG",
];

/// A domain as it is written in a target.
pub(super) fn target(domain: Domain) -> String {
    match domain {
        Domain::System => "system".to_owned(),
        Domain::User(uid) => format!("user/{uid}"),
        Domain::Gui(uid) => format!("gui/{uid}"),
    }
}

/// The name of a signal in macOS's words.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "Hangup",
        2 => "Interrupt",
        3 => "Quit",
        4 => "Illegal instruction",
        5 => "Trace/BPT trap",
        6 => "Abort trap",
        8 => "Floating point exception",
        9 => "Killed",
        11 => "Segmentation fault",
        13 => "Broken pipe",
        15 => "Terminated",
        _ => "Unknown signal",
    };
    format!("{name}: {signal}")
}

fn last_exit(exit: Option<Exit>) -> String {
    match exit {
        None => "last exit code = (never exited)".to_owned(),
        Some(Exit::Code(code)) => {
            let name = usize::try_from(code - 64).ok().and_then(|index| SYSEXITS.get(index));
            match name {
                Some(name) => format!("last exit code = {code}: {name}"),
                None => format!("last exit code = {code}"),
            }
        }
        Some(Exit::Signal(signal)) => format!("last terminating signal = {}", signal_name(signal)),
        Some(Exit::CodeSigning) => "last exit reason = OS_REASON_CODESIGNING".to_owned(),
    }
}

/// The words for a job's state, and for what macOS calls its job state.
fn states(job: &Job) -> (&'static str, &'static str) {
    match &job.state {
        State::Running(_) => ("running", "running"),
        State::Terminating(..) => ("SIGTERMed", "running"),
        State::Killed(_) => ("SIGKILLed", "running"),
        State::Lingering(_) => ("SIGTERMed", "exited"),
        State::Scheduled(at) if *at > Instant::now() => ("spawn scheduled", exited(job)),
        State::Idle | State::Scheduled(_) => ("not running", exited(job)),
    }
}

fn exited(job: &Job) -> &'static str {
    match job.last_exit {
        None => "uninitialized",
        Some(Exit::Code(78) | Exit::CodeSigning) if job.successive_crashes > 0 => "spawn failed",
        Some(_) => "exited",
    }
}

/// A job in the words of `launchctl print`.
pub(super) fn job(key: &Key, job: &Job) -> String {
    let mut text = String::new();
    describe(&mut text, key, job);
    text
}

// Writing to a `String` does not fail.
fn describe(text: &mut String, (domain, label): &Key, job: &Job) {
    let definition = &job.definition;
    let (state, job_state) = states(job);
    let active = i32::from(job.pid().is_some());
    let kind = match job.kind {
        Kind::LaunchDaemon => "LaunchDaemon",
        Kind::LaunchAgent => "LaunchAgent",
    };
    let mut line = |words: String| {
        let _ = writeln!(text, "{words}");
    };
    let domain = target(*domain);
    line(format!("{domain}/{label} = {{"));
    line(format!("\tactive count = {active}"));
    line(format!("\tpath = {}", job.path.display()));
    line(format!("\ttype = {kind}"));
    line(format!("\tstate = {state}"));
    line(format!("\n\tprogram = {}", definition.program.display()));
    line("\targuments = {".to_owned());
    for argument in &definition.arguments {
        line(format!("\t\t{argument}"));
    }
    line("\t}\n".to_owned());
    if let Some(directory) = &definition.working_directory {
        line(format!("\tworking directory = {}\n", directory.display()));
    }
    let paths =
        [("stdin", &definition.stdin), ("stdout", &definition.stdout), ("stderr", &definition.stderr)];
    for (name, path) in paths {
        if let Some(path) = path {
            line(format!("\t{name} path = {}", path.display()));
        }
    }
    line(format!("\tdefault environment = {{\n\t\tPATH => {PATH}\n\t}}\n"));
    line("\tenvironment = {".to_owned());
    for (name, value) in environment(definition) {
        line(format!("\t\t{name} => {value}"));
    }
    line("\t}\n".to_owned());
    line(format!("\tdomain = {domain}"));
    for (name, value) in [("username", &definition.user), ("group", &definition.group)] {
        if let Some(value) = value {
            line(format!("\t{name} = {value}"));
        }
    }
    if let Some(mask) = definition.umask {
        line(format!("\tumask = {mask:o}"));
    }
    line(format!("\tminimum runtime = {}", definition.throttle.as_secs()));
    line(format!("\texit timeout = {}", definition.exit_timeout.map_or(0, |limit| limit.as_secs())));
    line(format!("\truns = {}", job.runs));
    if job.successive_crashes > 0 {
        line(format!("\tsuccessive crashes = {}", job.successive_crashes));
    }
    if let Some(pid) = job.pid() {
        line(format!("\tpid = {pid}"));
        line("\timmediate reason = speculative".to_owned());
        line("\tforks = 0\n\texecs = 1\n\tinitialized = 1\n\ttrampolined = 1".to_owned());
        line("\tstarted suspended = 0\n\tproxy started suspended = 0".to_owned());
        line("\tchecked allocations = 0 (queried = 1)".to_owned());
        line("\tchecked allocations reason = no host\n\tchecked allocations flags = 0x0".to_owned());
    }
    line(format!("\t{}", last_exit(job.last_exit)));
    if let KeepAlive::After { successful_exit: Some(wanted), .. } = definition.keep_alive {
        line(format!("\n\tsemaphores = {{\n\t\tsuccessful exit => {}\n\t}}", i32::from(wanted)));
    }
    if let Some(interval) = definition.start_interval {
        line(format!("\trun interval = {} seconds", interval.as_secs()));
    }
    for (number, coalition) in ["resource", "jetsam"].iter().enumerate() {
        let state = if active == 1 { "active" } else { "inactive" };
        line(format!("\n\t{coalition} coalition = {{\n\t\tID = {}\n\t\ttype = {coalition}", 1140 + number));
        line(format!("\t\tstate = {state}\n\t\tactive count = {active}\n\t\tname = {label}\n\t}}"));
    }
    let spawn_type = match definition.process_type {
        ProcessType::Standard => "daemon (3)",
        ProcessType::Interactive => "interactive (4)",
        ProcessType::Background => "background (5)",
        ProcessType::Adaptive => "adaptive (6)",
    };
    line(format!("\n\tspawn type = {spawn_type}\n\tjetsam priority = 40"));
    line("\tjetsam memory limit (active) = (unlimited)".to_owned());
    line("\tjetsam memory limit (inactive) = (unlimited)".to_owned());
    line("\tjetsamproperties category = daemon\n\tjetsam thread limit = 32\n\tcpumon = default".to_owned());
    line(format!("\tjob state = {job_state}\n\tsanitizer flags = 0x0"));
    line(format!("\n\tproperties = {}\n}}", properties(job)));
}

fn properties(job: &Job) -> String {
    let definition = &job.definition;
    let words = [
        (definition.keep_alive != KeepAlive::No, "keepalive"),
        (definition.run_at_load, "runatload"),
        (definition.inferred_program, "inferred program"),
        (definition.abandon_process_group, "abandon process group"),
        (true, "managed LWCR"),
        (true, "has LWCR"),
    ];
    let words: Vec<_> = words.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
    words.join(" | ")
}

/// The status of `launchctl list`: an exit code, or a signal as a negative number.
fn status(exit: Option<Exit>) -> i32 {
    match exit {
        None => 0,
        Some(Exit::Code(code)) => code,
        Some(Exit::Signal(signal)) => -signal,
        Some(Exit::CodeSigning) => -9,
    }
}

/// What wait(2) said of the last end.
fn wait_status(exit: Option<Exit>) -> i32 {
    match exit {
        None => 0,
        Some(Exit::Code(code)) => code << 8,
        Some(Exit::Signal(signal)) => signal,
        Some(Exit::CodeSigning) => 9,
    }
}

/// A job in the words of `launchctl list LABEL`.
pub(super) fn old_style(label: &str, job: &Job) -> String {
    let mut text = String::from("{\n\t\"LimitLoadToSessionType\" = \"System\";\n");
    let _ = writeln!(text, "\t\"Label\" = \"{label}\";");
    let _ = writeln!(text, "\t\"OnDemand\" = {};", job.definition.keep_alive == KeepAlive::No);
    let _ = writeln!(text, "\t\"LastExitStatus\" = {};", wait_status(job.last_exit));
    if let Some(pid) = job.pid() {
        let _ = writeln!(text, "\t\"PID\" = {pid};");
    }
    let _ = writeln!(text, "\t\"Program\" = \"{}\";", job.definition.program.display());
    text.push_str("\t\"ProgramArguments\" = (\n");
    for argument in &job.definition.arguments {
        let _ = writeln!(text, "\t\t\"{argument}\";");
    }
    text.push_str("\t);\n};\n");
    text
}

impl Launchd {
    /// The jobs of a domain in the words of `launchctl list`.
    pub(super) fn list(&self, domain: Domain) -> String {
        let jobs = self.jobs.iter().filter(|((of, _), _)| *of == domain);
        let rows = jobs.map(|((_, label), job)| {
            let pid = job.pid().map_or("-".to_owned(), |pid| pid.to_string());
            format!("{pid}\t{}\t{label}\n", status(job.last_exit))
        });
        format!("PID\tStatus\tLabel\n{}", rows.collect::<String>())
    }

    /// A domain in the words of `launchctl print`.
    pub(super) fn domain(&self, domain: Domain) -> String {
        let jobs: Vec<_> = self.jobs.iter().filter(|((of, _), _)| *of == domain).collect();
        let active = jobs.iter().filter(|(_, job)| job.pid().is_some()).count();
        let kind = match domain {
            Domain::System => "system",
            Domain::User(_) => "user",
            Domain::Gui(_) => "login",
        };
        let mut text = format!("{} = {{\n\ttype = {kind}\n\thandle = 0\n", target(domain));
        let _ = writeln!(text, "\tactive count = {active}\n\tservice count = {}", jobs.len());
        let _ = writeln!(text, "\tactive service count = {active}");
        if let Domain::Gui(uid) = domain {
            let _ = writeln!(text, "\tcreator = loginwindow\n\tcreator euid = 0\n\tsession = Aqua");
            let _ = writeln!(text, "\tsecurity context = {{\n\t\tuid = {uid}\n\t\tasid = 100005\n\t}}");
        }
        text.push_str("\n\tservices = {\n");
        for ((_, label), job) in jobs {
            let pid = job.pid().map_or("0".to_owned(), |pid| pid.to_string());
            let _ = writeln!(text, "\t{pid:>8} {:>6} \t{label}", status(job.last_exit));
        }
        text.push_str("\t}\n}\n");
        text
    }
}
