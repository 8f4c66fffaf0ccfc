//! The directory of faults.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{Call, Fault, FaultError, NthCall, duration};
use crate::settings::{HostDirectory, SIMULATOR};

/// The directory in which a test switches faults on and the simulator looks them up.
#[derive(Debug, Clone)]
pub struct FaultDirectory {
    path: PathBuf,
}

impl FaultDirectory {
    /// The directory of a simulated Mac, seen from outside.
    pub fn of_host(host: &HostDirectory) -> Self {
        Self { path: host.simulator().join("faults") }
    }

    /// The directory as the Mac's own programs see it.
    pub fn of_this_mac() -> Self {
        Self { path: Path::new(SIMULATOR).join("faults") }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Switches a fault on. A running simulator sees the whole parameter or none of it.
    pub fn switch_on(&self, fault: Fault, parameter: &str) -> Result<(), FaultError> {
        fault.check(parameter.trim())?;
        let path = self.path.join(fault.file_name());
        // The simulator skips hidden files.
        let hidden = self.path.join(format!(".{fault}.{}", fastrand::u64(..)));
        fs::write(&hidden, parameter)
            .and_then(|()| fs::rename(&hidden, &path))
            .map_err(|source| FaultError::Io { path, source })
    }

    /// Switches a fault off; says whether it was on.
    pub fn switch_off(&self, fault: Fault) -> Result<bool, FaultError> {
        let path = self.path.join(fault.file_name());
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(FaultError::Io { path, source }),
        }
    }

    /// The parameter of a fault without the white space around it; `None` if the fault is off.
    pub fn parameter(&self, fault: Fault) -> Result<Option<String>, FaultError> {
        let path = self.path.join(fault.file_name());
        match fs::read_to_string(&path) {
            Ok(content) => {
                let parameter = content.trim();
                fault.check(parameter)?;
                Ok(Some(parameter.to_owned()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(FaultError::Io { path, source }),
        }
    }

    /// Whether a fault of jobs is on for this label. An empty file stands for all labels.
    pub fn hits_label(&self, fault: Fault, label: &str) -> Result<bool, FaultError> {
        let parameter = self.parameter(fault)?;
        Ok(parameter.is_some_and(|text| text.is_empty() || text.split_whitespace().any(|word| word == label)))
    }

    /// Since when a fault is on; `None` if it is off.
    pub fn since(&self, fault: Fault) -> Option<SystemTime> {
        fs::metadata(self.path.join(fault.file_name())).and_then(|metadata| metadata.modified()).ok()
    }

    /// Whether a fault of calls is on for this program and its arguments.
    pub fn hits_call(&self, fault: Fault, words: &[String]) -> Result<bool, FaultError> {
        let parameter = self.parameter(fault)?.unwrap_or_default();
        Ok(parameter.lines().filter_map(Call::parse).any(|call| call.is(words)))
    }

    /// Counts a call, and says whether it is the one at which the fault happens. The fault is off then.
    pub fn counts_down_to(&self, fault: Fault, words: &[String]) -> Result<bool, FaultError> {
        let parameter = self.parameter(fault)?;
        let Some(NthCall { number, text }) = parameter.as_deref().and_then(NthCall::parse) else {
            return Ok(false);
        };
        if !Call::parse(&text).is_some_and(|call| call.is(words)) {
            return Ok(false);
        }
        if number > 1 {
            self.switch_on(fault, &format!("{} {text}", number - 1))?;
            return Ok(false);
        }
        self.switch_off(fault)
    }

    /// The duration that a fault has; `None` if the fault is off.
    pub fn duration(&self, fault: Fault) -> Result<Option<Duration>, FaultError> {
        Ok(self.parameter(fault)?.and_then(|text| duration(&text)))
    }

    /// Refuses a file that is no fault, and a parameter that its fault cannot have. Hidden files are skipped.
    pub fn check(&self) -> Result<(), FaultError> {
        let failed = |source| FaultError::Io { path: self.path.clone(), source };
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') {
                continue;
            }
            let known = Fault::ALL.iter().copied().find(|fault| fault.file_name() == name);
            self.parameter(known.ok_or(FaultError::Unknown(name))?)?;
        }
        Ok(())
    }
}
