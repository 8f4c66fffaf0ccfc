//! What a property list says of a job (launchd.plist(5)).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use plist::{Dictionary, Value};

/// The least time between two starts of a job that says nothing of it.
const DEFAULT_THROTTLE: Duration = Duration::from_secs(10);
/// How long a job has between SIGTERM and SIGKILL if it says nothing of it.
const DEFAULT_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Keys that launchd knows and that are not simulated: a job that has one of them would behave as on no Mac.
const NOT_SIMULATED: &[&str] = &[
    "inetdCompatibility",
    "LaunchEvents",
    "MachServices",
    "QueueDirectories",
    "RootDirectory",
    "Sockets",
    "StartCalendarInterval",
    "StartOnMount",
    "WatchPaths",
];

/// When launchd starts a job again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepAlive {
    /// Never by itself.
    No,
    /// After every end.
    Always,
    /// After ends of this kind only.
    After {
        /// `Some(true)`: after exit code 0; `Some(false)`: after any other.
        successful_exit: Option<bool>,
        /// `Some(true)`: after a crash; `Some(false)`: after anything else.
        crashed: Option<bool>,
    },
}

/// A job as its property list had it when it was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    pub(super) label: String,
    pub(super) program: PathBuf,
    /// Whether the program is the first argument, for want of `Program`.
    pub(super) inferred_program: bool,
    pub(super) arguments: Vec<String>,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) user: Option<String>,
    pub(super) group: Option<String>,
    pub(super) working_directory: Option<PathBuf>,
    pub(super) stdin: Option<PathBuf>,
    pub(super) stdout: Option<PathBuf>,
    pub(super) stderr: Option<PathBuf>,
    pub(super) keep_alive: KeepAlive,
    pub(super) run_at_load: bool,
    pub(super) start_interval: Option<Duration>,
    pub(super) throttle: Duration,
    /// `None`: launchd never kills the job.
    pub(super) exit_timeout: Option<Duration>,
    pub(super) abandon_process_group: bool,
    pub(super) process_type: ProcessType,
    pub(super) umask: Option<u32>,
    pub(super) nice: Option<i32>,
    pub(super) soft_files: Option<u64>,
    pub(super) hard_files: Option<u64>,
    pub(super) session_types: Vec<String>,
    pub(super) disabled: bool,
}

/// How much of the Mac a job may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessType {
    Standard,
    Interactive,
    Background,
    Adaptive,
}

/// Why launchd does not take a property list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DefinitionError {
    #[error("Invalid property list")]
    NotAPropertyList,
    #[error("Invalid or missing service identifier")]
    NoLabel,
    #[error("Invalid or missing Program/ProgramArguments")]
    NoProgram,
    #[error("mac-sim: the key {0} is not simulated")]
    NotSimulated(String),
}

impl Definition {
    /// Reads a property list.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, DefinitionError> {
        let value: Value = plist::from_bytes(bytes).map_err(|_| DefinitionError::NotAPropertyList)?;
        let keys = Keys(value.as_dictionary().ok_or(DefinitionError::NotAPropertyList)?);
        keys.refuse_what_is_not_simulated()?;
        let label =
            keys.string("Label")?.filter(|label| !label.is_empty()).ok_or(DefinitionError::NoLabel)?;
        let arguments = keys.strings("ProgramArguments")?;
        let program = keys.path("Program")?;
        let inferred_program = program.is_none();
        let program =
            program.or_else(|| arguments.first().map(PathBuf::from)).ok_or(DefinitionError::NoProgram)?;
        let arguments = if arguments.is_empty() { vec![program.display().to_string()] } else { arguments };
        let keep_alive = keys.keep_alive()?;
        let implies_start = matches!(keep_alive, KeepAlive::After { successful_exit: Some(_), .. });
        let run_at_load = keys.boolean("RunAtLoad")?.unwrap_or(false);
        Ok(Self {
            label,
            program,
            inferred_program,
            arguments,
            environment: keys.environment()?,
            user: keys.string("UserName")?,
            group: keys.string("GroupName")?,
            working_directory: keys.path("WorkingDirectory")?,
            stdin: keys.path("StandardInPath")?,
            stdout: keys.path("StandardOutPath")?,
            stderr: keys.path("StandardErrorPath")?,
            keep_alive,
            run_at_load: run_at_load || keep_alive == KeepAlive::Always || implies_start,
            start_interval: keys.integer("StartInterval")?.map(Duration::from_secs),
            throttle: keys.integer("ThrottleInterval")?.map_or(DEFAULT_THROTTLE, Duration::from_secs),
            exit_timeout: match keys.integer("ExitTimeOut")? {
                None => Some(DEFAULT_EXIT_TIMEOUT),
                Some(0) => None,
                Some(seconds) => Some(Duration::from_secs(seconds)),
            },
            abandon_process_group: keys.boolean("AbandonProcessGroup")?.unwrap_or(false),
            process_type: keys.process_type()?,
            umask: keys.integer("Umask")?.map(u32::try_from).transpose().map_err(|_| invalid())?,
            nice: keys.signed("Nice")?,
            soft_files: keys.files("SoftResourceLimits")?,
            hard_files: keys.files("HardResourceLimits")?,
            session_types: keys.session_types()?,
            disabled: keys.boolean("Disabled")?.unwrap_or(false),
        })
    }
}

fn invalid() -> DefinitionError {
    DefinitionError::NotAPropertyList
}

/// The keys of a property list. A value of another type than launchd wants makes the whole list invalid.
struct Keys<'a>(&'a Dictionary);

impl Keys<'_> {
    fn refuse_what_is_not_simulated(&self) -> Result<(), DefinitionError> {
        match NOT_SIMULATED.iter().find(|key| self.0.contains_key(key)) {
            Some(key) => Err(DefinitionError::NotSimulated((*key).to_owned())),
            None => Ok(()),
        }
    }

    fn typed<T>(&self, key: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, DefinitionError> {
        self.0.get(key).map(|value| read(value).ok_or_else(invalid)).transpose()
    }

    fn string(&self, key: &str) -> Result<Option<String>, DefinitionError> {
        self.typed(key, |value| value.as_string().map(str::to_owned))
    }

    fn path(&self, key: &str) -> Result<Option<PathBuf>, DefinitionError> {
        Ok(self.string(key)?.map(PathBuf::from))
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>, DefinitionError> {
        self.typed(key, Value::as_boolean)
    }

    fn integer(&self, key: &str) -> Result<Option<u64>, DefinitionError> {
        self.typed(key, Value::as_unsigned_integer)
    }

    fn signed(&self, key: &str) -> Result<Option<i32>, DefinitionError> {
        self.typed(key, |value| i32::try_from(value.as_signed_integer()?).ok())
    }

    fn strings(&self, key: &str) -> Result<Vec<String>, DefinitionError> {
        let read = |value: &Value| {
            value
                .as_array()?
                .iter()
                .map(|item| item.as_string().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
        };
        Ok(self.typed(key, read)?.unwrap_or_default())
    }

    fn environment(&self) -> Result<BTreeMap<String, String>, DefinitionError> {
        let read = |value: &Value| {
            let pairs = value.as_dictionary()?.iter();
            pairs.map(|(name, value)| Some((name.clone(), value.as_string()?.to_owned()))).collect()
        };
        Ok(self.typed("EnvironmentVariables", read)?.unwrap_or_default())
    }

    fn keep_alive(&self) -> Result<KeepAlive, DefinitionError> {
        match self.0.get("KeepAlive") {
            None | Some(Value::Boolean(false)) => Ok(KeepAlive::No),
            Some(Value::Boolean(true)) => Ok(KeepAlive::Always),
            Some(Value::Dictionary(conditions)) => {
                let known = ["SuccessfulExit", "Crashed"];
                if let Some(key) = conditions.keys().find(|key| !known.contains(&key.as_str())) {
                    return Err(DefinitionError::NotSimulated(format!("KeepAlive/{key}")));
                }
                let keys = Keys(conditions);
                let (successful_exit, crashed) = (keys.boolean("SuccessfulExit")?, keys.boolean("Crashed")?);
                Ok(KeepAlive::After { successful_exit, crashed })
            }
            Some(_) => Err(invalid()),
        }
    }

    fn process_type(&self) -> Result<ProcessType, DefinitionError> {
        match self.string("ProcessType")?.as_deref() {
            None | Some("Standard") => Ok(ProcessType::Standard),
            Some("Interactive") => Ok(ProcessType::Interactive),
            Some("Background") => Ok(ProcessType::Background),
            Some("Adaptive") => Ok(ProcessType::Adaptive),
            Some(_) => Err(invalid()),
        }
    }

    fn files(&self, key: &str) -> Result<Option<u64>, DefinitionError> {
        let Some(limits) = self.typed(key, |value| value.as_dictionary().cloned())? else { return Ok(None) };
        Keys(&limits).integer("NumberOfFiles")
    }

    fn session_types(&self) -> Result<Vec<String>, DefinitionError> {
        match self.0.get("LimitLoadToSessionType") {
            Some(Value::String(one)) => Ok(vec![one.clone()]),
            Some(_) => self.strings("LimitLoadToSessionType"),
            None => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(keys: &str) -> Result<Definition, DefinitionError> {
        let head = "<key>Label</key><string>a</string><key>ProgramArguments</key><array><string>/bin/a</string></array>";
        Definition::parse(format!("<plist version=\"1.0\"><dict>{head}{keys}</dict></plist>").as_bytes())
    }

    #[test]
    fn keep_alive_has_several_forms() {
        let dictionary = "<key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>";
        for (keys, expected, runs_at_load) in [
            ("", KeepAlive::No, false),
            ("<key>KeepAlive</key><true/>", KeepAlive::Always, true),
            ("<key>KeepAlive</key><false/><key>RunAtLoad</key><true/>", KeepAlive::No, true),
            (dictionary, KeepAlive::After { successful_exit: Some(false), crashed: None }, true),
        ] {
            let job = job(keys).unwrap();
            assert_eq!((job.keep_alive, job.run_at_load), (expected, runs_at_load), "{keys}");
        }
    }

    #[test]
    fn a_property_list_that_launchd_does_not_take_is_refused() {
        for (bytes, expected) in [
            ("no plist", DefinitionError::NotAPropertyList),
            ("<plist><array/></plist>", DefinitionError::NotAPropertyList),
            ("<plist><dict/></plist>", DefinitionError::NoLabel),
            ("<plist><dict><key>Label</key><string>a</string></dict></plist>", DefinitionError::NoProgram),
        ] {
            assert_eq!(Definition::parse(bytes.as_bytes()), Err(expected), "{bytes}");
        }
        assert_eq!(job("<key>RunAtLoad</key><string>yes</string>"), Err(DefinitionError::NotAPropertyList));
        let sockets = Err(DefinitionError::NotSimulated("Sockets".to_owned()));
        assert_eq!(job("<key>Sockets</key><dict/>"), sockets);
    }

    #[test]
    fn times_that_are_not_given_are_launchds() {
        let plain = job("").unwrap();
        assert_eq!(
            (plain.throttle.as_secs(), plain.exit_timeout.map(|limit| limit.as_secs())),
            (10, Some(5))
        );
        assert_eq!(job("<key>ExitTimeOut</key><integer>0</integer>").unwrap().exit_timeout, None);
    }
}
