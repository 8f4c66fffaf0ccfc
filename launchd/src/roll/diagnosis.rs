//! Why a job does not run, in words that say what to do. A pure function.

use std::fmt;

use crate::job::Job;
use crate::launchctl::{ExitCode, LastExit, Registration};

/// Why a job does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Diagnosis {
    /// launchd took `kickstart -k` and left the old process alone.
    KickstartWithoutEffect {
        /// The old process.
        pid: u32,
    },
    /// macOS kills the program when it starts, because of its signature.
    CodeSigning,
    /// launchd has the job and does not start it.
    NotSpawned,
    /// launchd took the job and has lost it again.
    Dropped,
    /// The program ends soon after it starts, and launchd waits before the next start.
    Throttled,
    /// launchd cannot start the program.
    CannotStart,
    /// The property list is not one that launchd takes.
    BadPlist,
    /// The job is disabled.
    Disabled,
    /// The property list or the program is quarantined.
    Quarantined,
    /// Others than root could change the property list.
    BadPermissions,
    /// The caller is not root.
    NotPermitted,
    /// The old job does not end.
    StillLoaded,
    /// The job of this label runs another program.
    OtherProgram,
    /// The Mac shuts down.
    ShuttingDown,
    /// The program comes and goes.
    Unstable,
    /// launchd refuses the job, and says only so much.
    Refused(ExitCode),
}

impl Diagnosis {
    /// The cause when a job was told to start and did not come to rest. `old` is the process that was to be replaced.
    pub(super) fn of_unsettled(job: &Job, plist: &str, old: Option<u32>, seen: &Registration) -> Self {
        let Some(service) = seen.service() else { return Self::Dropped };
        if !service.is_of(job, plist) {
            return Self::OtherProgram;
        }
        if let (Some(pid), true) = (service.pid, service.pid == old) {
            return Self::KickstartWithoutEffect { pid };
        }
        match &service.last_exit {
            Some(LastExit::Reason(reason)) if reason.contains("CODESIGNING") => return Self::CodeSigning,
            Some(LastExit::Code(78)) => return Self::CannotStart,
            _ => (),
        }
        let state = service.state.as_deref();
        let is_throttled =
            state == Some("spawn scheduled") || service.successive_crashes.is_some_and(|crashes| crashes > 0);
        match service.pid {
            _ if is_throttled => Self::Throttled,
            None => Self::NotSpawned,
            Some(_) => Self::Unstable,
        }
    }

    /// The cause when launchd does not load a job.
    pub(super) fn of_refused(code: ExitCode, is_disabled: bool) -> Self {
        match code {
            ExitCode::InvalidPath
            | ExitCode::InvalidPlist
            | ExitCode::InvalidLabel
            | ExitCode::InvalidProgram => Self::BadPlist,
            ExitCode::Disabled => Self::Disabled,
            ExitCode::InputOutput if is_disabled => Self::Disabled,
            ExitCode::Quarantined => Self::Quarantined,
            ExitCode::BadPermissions => Self::BadPermissions,
            ExitCode::NotPermitted => Self::NotPermitted,
            ExitCode::DomainTearingDown => Self::ShuttingDown,
            code => Self::Refused(code),
        }
    }

    /// Whether the new binary or definition is to blame, so that the old one may run where the new one does not.
    pub(super) fn is_cured_by_the_old_job(self) -> bool {
        !matches!(self, Self::NotPermitted | Self::StillLoaded | Self::ShuttingDown)
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KickstartWithoutEffect { pid } => {
                write!(f, "launchd accepted `kickstart -k`, but the old process {pid} still runs; end it with `sudo kill {pid}`")
            }
            Self::CodeSigning => f.write_str(
                "macOS kills the program at its start because its code signature is not valid, as after a file that was \
                 overwritten in place; install it again under a new name, sign it with `codesign --force --sign -` and rename it",
            ),
            Self::NotSpawned => f.write_str(
                "launchd has the job but does not start it, as when Background Task Management no longer allows it; allow it \
                 in System Settings > General > Login Items, look at `sudo sfltool dumpbtm`, or restart the Mac",
            ),
            Self::Dropped => f.write_str(
                "launchd loaded the job and dropped it again, as when Background Task Management denies it; allow it in \
                 System Settings > General > Login Items",
            ),
            Self::Throttled => f.write_str(
                "the program ends soon after each start, and launchd waits before it starts the program again; the program's \
                 log says why",
            ),
            Self::CannotStart => f.write_str(
                "launchd cannot start the program: it is missing or not executable, its user does not exist, or that user \
                 cannot write the log",
            ),
            Self::BadPlist => f.write_str("launchd does not take the property list; `plutil -lint` says what is wrong with it"),
            Self::Disabled => f.write_str("the job is disabled; `sudo launchctl enable` allows it again"),
            Self::Quarantined => {
                f.write_str("the program or the property list is quarantined; `sudo xattr -d com.apple.quarantine` frees it")
            }
            Self::BadPermissions => {
                f.write_str("the property list must belong to root:wheel, and only root may write it (mode 0644)")
            }
            Self::NotPermitted => f.write_str("only root may change jobs of the system; run this with sudo"),
            Self::StillLoaded => f.write_str("the old job does not end"),
            Self::OtherProgram => f.write_str("launchd has another job of the same label, with another program or other flags"),
            Self::ShuttingDown => f.write_str("the Mac is shutting down"),
            Self::Unstable => f.write_str("the program does not stay up; its log says why"),
            Self::Refused(code) => write!(f, "launchd does not load the job ({code})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_job::{AGENT_PLIST, ConsoleUser, agent_job};
    use crate::launchctl::Service;

    fn of(service: Service) -> Diagnosis {
        let job = agent_job(&ConsoleUser::named("m1"), []);
        Diagnosis::of_unsettled(&job, AGENT_PLIST, Some(7), &Registration::Loaded(Box::new(service)))
    }

    #[test]
    fn a_job_that_does_not_come_to_rest_has_one_cause() {
        let state = |state: &str| Some(state.to_owned());
        let codesigning = Some(LastExit::Reason("OS_REASON_CODESIGNING".to_owned()));
        let blank = Service::default;
        let table = [
            (Service { pid: Some(7), ..blank() }, Diagnosis::KickstartWithoutEffect { pid: 7 }),
            (Service { program: Some("/other".to_owned()), ..blank() }, Diagnosis::OtherProgram),
            (
                Service { state: state("spawn scheduled"), last_exit: codesigning, ..blank() },
                Diagnosis::CodeSigning,
            ),
            (
                Service { state: state("spawn scheduled"), last_exit: Some(LastExit::Code(78)), ..blank() },
                Diagnosis::CannotStart,
            ),
            (
                Service { state: state("spawn scheduled"), last_exit: Some(LastExit::Code(2)), ..blank() },
                Diagnosis::Throttled,
            ),
            (Service { pid: Some(9), successive_crashes: Some(3), ..blank() }, Diagnosis::Throttled),
            (
                Service {
                    state: state("not running"),
                    runs: Some(0),
                    last_exit: Some(LastExit::Never),
                    ..blank()
                },
                Diagnosis::NotSpawned,
            ),
            (
                Service {
                    state: state("not running"),
                    runs: Some(4),
                    last_exit: Some(LastExit::Code(0)),
                    ..blank()
                },
                Diagnosis::NotSpawned,
            ),
            (Service { state: state("running"), pid: Some(9), ..blank() }, Diagnosis::Unstable),
        ];
        for (service, wanted) in table {
            let words = format!("{service:?}");
            assert_eq!(of(service), wanted, "{words}");
        }
        let job = agent_job(&ConsoleUser::named("m1"), []);
        let dropped = Diagnosis::of_unsettled(&job, AGENT_PLIST, None, &Registration::NotLoaded);
        assert_eq!(dropped, Diagnosis::Dropped);
    }

    #[test]
    fn a_refusal_of_launchd_has_one_cause() {
        for (code, is_disabled, wanted) in [
            (109, false, Diagnosis::BadPlist),
            (111, false, Diagnosis::BadPlist),
            (119, false, Diagnosis::Disabled),
            (5, true, Diagnosis::Disabled),
            (5, false, Diagnosis::Refused(ExitCode::InputOutput)),
            (122, false, Diagnosis::BadPermissions),
            (155, false, Diagnosis::Quarantined),
            (124, false, Diagnosis::ShuttingDown),
            (1, false, Diagnosis::NotPermitted),
            (37, false, Diagnosis::Refused(ExitCode::AlreadyInProgress)),
        ] {
            assert_eq!(Diagnosis::of_refused(ExitCode::from(code), is_disabled), wanted, "{code}");
        }
    }

    #[test]
    fn every_cause_has_words_of_its_own() {
        let all = [
            Diagnosis::KickstartWithoutEffect { pid: 7 },
            Diagnosis::CodeSigning,
            Diagnosis::NotSpawned,
            Diagnosis::Dropped,
            Diagnosis::Throttled,
            Diagnosis::CannotStart,
            Diagnosis::BadPlist,
            Diagnosis::Disabled,
            Diagnosis::Quarantined,
            Diagnosis::BadPermissions,
            Diagnosis::NotPermitted,
            Diagnosis::StillLoaded,
            Diagnosis::OtherProgram,
            Diagnosis::ShuttingDown,
            Diagnosis::Unstable,
            Diagnosis::Refused(ExitCode::InputOutput),
        ];
        let words: std::collections::BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(words.len(), all.len());
    }

    #[test]
    fn the_causes_that_look_alike_are_told_apart_by_what_to_do() {
        for (cause, words) in [
            (Diagnosis::KickstartWithoutEffect { pid: 7 }, "end it with `sudo kill 7`"),
            (Diagnosis::CodeSigning, "sign it with `codesign --force --sign -`"),
            (Diagnosis::NotSpawned, "System Settings > General > Login Items"),
            (Diagnosis::Dropped, "System Settings > General > Login Items"),
            (Diagnosis::Throttled, "the program's log says why"),
            (Diagnosis::BadPlist, "`plutil -lint` says what is wrong with it"),
            (Diagnosis::CannotStart, "it is missing or not executable"),
        ] {
            assert!(cause.to_string().contains(words), "{cause}");
        }
    }
}
