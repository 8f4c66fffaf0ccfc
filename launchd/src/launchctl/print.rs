//! What `launchctl print` and `launchctl print-disabled` say. Apple calls neither an interface, so that everything but the exit code may be
//! missing.

use std::collections::BTreeMap;
use std::fmt;

use crate::job::Job;
use crate::label::Label;

/// Whether launchd has a job of some label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// launchd has none.
    NotLoaded,
    /// launchd has one.
    Loaded(Box<Service>),
}

impl Registration {
    /// The loaded job.
    pub fn service(&self) -> Option<&Service> {
        match self {
            Self::NotLoaded => None,
            Self::Loaded(service) => Some(service),
        }
    }

    /// The PID of the job's process.
    pub fn pid(&self) -> Option<u32> {
        self.service().and_then(|service| service.pid)
    }
}

/// A job as launchd has it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// The file that it was loaded from.
    pub path: Option<String>,
    /// `running`, `not running`, `spawn scheduled`, `SIGTERMed` …
    pub state: Option<String>,
    /// Its program.
    pub program: Option<String>,
    /// Its arguments, the program's name first.
    pub arguments: Option<Vec<String>>,
    /// Its environment. It may have secrets.
    pub(crate) environment: Option<BTreeMap<String, String>>,
    /// Its process.
    pub pid: Option<u32>,
    /// How often launchd has started it.
    pub runs: Option<u64>,
    /// How often it crashed without a longer run in between.
    pub successive_crashes: Option<u64>,
    /// How its previous process ended.
    pub last_exit: Option<LastExit>,
    /// How many seconds it has to end.
    pub exit_timeout: Option<u64>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without arguments and environment, which may have secrets.
        f.debug_struct("Service")
            .field("path", &self.path)
            .field("state", &self.state)
            .field("pid", &self.pid)
            .field("runs", &self.runs)
            .field("last_exit", &self.last_exit)
            .finish_non_exhaustive()
    }
}

/// How the previous process of a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastExit {
    /// None has ended.
    Never,
    /// By itself.
    Code(i32),
    /// By a signal, in launchd's words: `Killed: 9`.
    Signal(String),
    /// By the system, for a reason such as `OS_REASON_CODESIGNING`.
    Reason(String),
}

impl fmt::Display for LastExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never exited"),
            Self::Code(78) => f.write_str("last exit code 78 (EX_CONFIG)"),
            Self::Code(code) => write!(f, "last exit code {code}"),
            Self::Signal(signal) => write!(f, "last terminating signal {signal}"),
            Self::Reason(reason) => write!(f, "last exit reason {reason}"),
        }
    }
}

impl Service {
    /// Reads what `launchctl print` says. Only lines with exactly one tab, outside of braces, are about the job itself: the blocks repeat
    /// some of the keys. The first line of a key counts.
    pub(super) fn parse(printed: &str) -> Self {
        let mut service = Self::default();
        let mut block: Option<&str> = None;
        for line in printed.lines() {
            if let Some(name) = block {
                if line == "\t}" {
                    block = None;
                } else if let Some(entry) = line.strip_prefix("\t\t") {
                    service.read_entry(name, entry);
                }
                continue;
            }
            let Some(line) = line.strip_prefix('\t').filter(|line| !line.starts_with('\t')) else { continue };
            if let Some(name) = line.strip_suffix(" = {") {
                block = Some(name);
                service.open(name);
            } else if let Some((key, value)) = line.split_once(" = ") {
                service.read(key, value);
            }
        }
        service
    }

    fn open(&mut self, block: &str) {
        match block {
            "arguments" if self.arguments.is_none() => self.arguments = Some(Vec::new()),
            "environment" if self.environment.is_none() => self.environment = Some(BTreeMap::new()),
            _ => (),
        }
    }

    fn read_entry(&mut self, block: &str, entry: &str) {
        match (block, entry.split_once(" => ")) {
            ("arguments", _) => self.arguments.get_or_insert_default().push(entry.to_owned()),
            ("environment", Some((name, value))) => {
                self.environment.get_or_insert_default().insert(name.to_owned(), value.to_owned());
            }
            _ => (),
        }
    }

    fn read(&mut self, key: &str, value: &str) {
        let text = || Some(value.to_owned());
        match key {
            "path" if self.path.is_none() => self.path = text(),
            "state" if self.state.is_none() => self.state = text(),
            "program" if self.program.is_none() => self.program = text(),
            "pid" if self.pid.is_none() => self.pid = value.parse().ok(),
            "runs" if self.runs.is_none() => self.runs = value.parse().ok(),
            "successive crashes" => self.successive_crashes = value.parse().ok(),
            "exit timeout" if self.exit_timeout.is_none() => self.exit_timeout = value.parse().ok(),
            "last exit code" if self.last_exit.is_none() => self.last_exit = exit_code(value),
            "last terminating signal" if self.last_exit.is_none() => {
                self.last_exit = Some(LastExit::Signal(value.to_owned()));
            }
            "last exit reason" if self.last_exit.is_none() => {
                self.last_exit = Some(LastExit::Reason(value.to_owned()));
            }
            _ => (),
        }
    }

    /// Whether launchd would run `job` from `plist`, as far as it says. What it does not say is taken for right.
    pub fn is_of(&self, job: &Job, plist: &str) -> bool {
        let same_path = self.path.as_deref().is_none_or(|path| path == plist);
        let same_program = self.program.as_deref().is_none_or(|program| program == job.program());
        let same_arguments =
            self.arguments.as_ref().is_none_or(|arguments| *arguments == job.program_arguments);
        let same_variables = self.environment.as_ref().is_none_or(|environment| {
            job.environment_variables
                .iter()
                .all(|(name, value)| environment.get(name).is_none_or(|is| is == value))
        });
        let same_timeout = self.exit_timeout.is_none_or(|timeout| timeout == u64::from(job.exit_time_out));
        same_path && same_program && same_arguments && same_variables && same_timeout
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state {}", self.state.as_deref().unwrap_or("unknown"))?;
        if let Some(pid) = self.pid {
            write!(f, ", PID {pid}")?;
        }
        if let Some(runs) = self.runs {
            write!(f, ", runs {runs}")?;
        }
        if let Some(crashes) = self.successive_crashes {
            write!(f, ", successive crashes {crashes}")?;
        }
        match &self.last_exit {
            Some(exit) => write!(f, ", {exit}"),
            None => f.write_str(", last exit unknown"),
        }
    }
}

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoaded => f.write_str("not loaded"),
            Self::Loaded(service) => service.fmt(f),
        }
    }
}

/// `0`, `78: EX_CONFIG`, `(never exited)`.
fn exit_code(value: &str) -> Option<LastExit> {
    if value == "(never exited)" {
        return Some(LastExit::Never);
    }
    value.split(':').next().and_then(|number| number.trim().parse().ok()).map(LastExit::Code)
}

/// Whether `launchctl print-disabled` names the job as disabled. Older releases of macOS say `true` for it.
pub(super) fn is_disabled(printed: &str, label: &Label) -> bool {
    let key = format!("\"{label}\" => ");
    let value = printed.lines().find_map(|line| line.trim().strip_prefix(&key));
    matches!(value.map(str::trim), Some("disabled" | "true"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_job::{AGENT_PLIST, ConsoleUser, agent_job};
    use proptest::prelude::*;

    const RUNNING: &str = "system/dev.example.daemon = {
\tactive count = 1
\tpath = /Library/LaunchDaemons/dev.example.daemon.plist
\ttype = LaunchDaemon
\tstate = running

\tprogram = /usr/local/bin/exampled
\targuments = {
\t\t/usr/local/bin/exampled
\t\t--state = x
\t\t\tindented
\t}

\tdefault environment = {
\t\tPATH => /usr/bin:/bin:/usr/sbin:/sbin
\t}

\tenvironment = {
\t\tPATH => /usr/bin
\t\tTOKEN => canary => canary
\t}

\tdomain = system
\texit timeout = 5
\truns = 3
\tsuccessive crashes = 2
\tpid = 893
\tlast exit code = 78: EX_CONFIG

\tresource coalition = {
\t\tstate = active
\t\tpid = 1
\t\tnested = {
\t\t\tpid = 2
\t\t}
\t}

\tpid = 4
\tjob state = running
}
";

    #[test]
    fn a_running_job_is_read_from_lines_outside_of_blocks() {
        let service = Service::parse(RUNNING);
        assert_eq!(service.path.as_deref(), Some("/Library/LaunchDaemons/dev.example.daemon.plist"));
        assert_eq!(service.state.as_deref(), Some("running"));
        assert_eq!(service.program.as_deref(), Some("/usr/local/bin/exampled"));
        assert_eq!(
            service.arguments.as_ref().unwrap(),
            &["/usr/local/bin/exampled", "--state = x", "\tindented"]
        );
        assert_eq!((service.pid, service.runs, service.exit_timeout), (Some(893), Some(3), Some(5)));
        assert_eq!(
            (service.successive_crashes, service.last_exit.clone()),
            (Some(2), Some(LastExit::Code(78)))
        );
        let words = format!("{service:?} {service}");
        assert!(!words.contains("canary") && words.contains("last exit code 78 (EX_CONFIG)"), "{words}");
    }

    #[test]
    fn the_last_exit_has_many_forms() {
        let last = |line: &str| Service::parse(&format!("x = {{\n\t{line}\n}}\n")).last_exit;
        assert_eq!(last("last exit code = (never exited)"), Some(LastExit::Never));
        assert_eq!(last("last exit code = 0"), Some(LastExit::Code(0)));
        assert_eq!(last("last exit code = 78: EX_CONFIG"), Some(LastExit::Code(78)));
        assert_eq!(
            last("last terminating signal = Killed: 9"),
            Some(LastExit::Signal("Killed: 9".to_owned()))
        );
        let reason = Some(LastExit::Reason("OS_REASON_CODESIGNING".to_owned()));
        assert_eq!(last("last exit reason = OS_REASON_CODESIGNING"), reason);
        assert_eq!(last("last exit code = what"), None);
    }

    #[test]
    fn a_disabled_job_is_told_in_two_ways() {
        let label: Label = "dev.example.agent".parse().unwrap();
        for (value, is) in [("disabled", true), ("true", true), ("enabled", false), ("false", false)] {
            let printed = format!(
                "\tdisabled services = {{\n\t\t\"com.apple.ftpd\" => disabled\n\t\t\"{label}\" => {value}\n\t}}\n"
            );
            assert_eq!(is_disabled(&printed, &label), is, "{value}");
        }
        assert!(!is_disabled("\tdisabled services = {\n\t}\n", &label));
    }

    #[test]
    fn a_loaded_job_is_ours_unless_it_says_otherwise() {
        let job = agent_job(&ConsoleUser::named("m1"), ["--a".to_owned()]);
        assert!(Service::default().is_of(&job, AGENT_PLIST));
        let same = format!(
            "x = {{\n\tpath = {AGENT_PLIST}\n\tprogram = {0}\n\targuments = {{\n\t\t{1}\n\t}}\n\tenvironment = {{\n\t\tHOME => /Users/m1\n\t\tXPC => 1\n\t}}\n\texit timeout = 20\n}}\n",
            job.program(),
            job.program_arguments.join("\n\t\t"),
        );
        assert!(Service::parse(&same).is_of(&job, AGENT_PLIST));
        for (from, to) in
            [("--a", "--b"), ("/Users/m1", "/Users/m2"), ("timeout = 20", "timeout = 5"), (".plist", ".p")]
        {
            assert!(!Service::parse(&same.replace(from, to)).is_of(&job, AGENT_PLIST), "{to}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_fail(text in "(\t{0,3}[a-z]{0,5}( = | => )?[{}0-9]{0,3}\n){0,12}") {
            let _ = Service::parse(&text);
        }
    }
}
