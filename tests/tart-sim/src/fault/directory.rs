//! The directory of faults.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{FaultError, FaultFile};

/// `TART_SIM_HOST/faults`, in which a test switches faults on and the simulator looks them up.
#[derive(Debug, Clone)]
pub struct FaultDirectory {
    path: PathBuf,
}

impl FaultDirectory {
    /// The directory of a simulated Mac, given its `TART_SIM_HOST`.
    pub fn of_host(host: &Path) -> Self {
        Self { path: host.join("faults") }
    }

    /// The file that switches this fault on.
    pub fn path(&self, file: &FaultFile) -> PathBuf {
        self.path.join(file.to_string())
    }

    /// Switches a fault on. A running simulator sees the whole parameter or none of it.
    pub fn switch_on(&self, file: &FaultFile, parameter: &str) -> Result<(), FaultError> {
        file.check(parameter.trim())?;
        let path = self.path(file);
        // The simulator skips hidden files.
        let hidden = self.path.join(format!(".{file}.{}", fastrand::u64(..)));
        fs::write(&hidden, parameter)
            .and_then(|()| fs::rename(&hidden, &path))
            .map_err(|source| FaultError::Io { path, source })
    }

    /// Switches a fault off; says whether it was on.
    pub fn switch_off(&self, file: &FaultFile) -> Result<bool, FaultError> {
        let path = self.path(file);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(FaultError::Io { path, source }),
        }
    }

    /// The parameter of a fault without the white space around it; `None` if the fault is off.
    pub fn parameter(&self, file: &FaultFile) -> Result<Option<String>, FaultError> {
        let path = self.path(file);
        match fs::read_to_string(&path) {
            Ok(content) => {
                let parameter = content.trim();
                file.check(parameter)?;
                Ok(Some(parameter.to_owned()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(FaultError::Io { path, source }),
        }
    }

    /// Refuses a file that is no fault, and a parameter that its fault cannot have. Hidden files are skipped.
    pub fn check(&self) -> Result<(), FaultError> {
        let failed = |source| FaultError::Io { path: self.path.clone(), source };
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                self.parameter(&FaultFile::parse(&name)?)?;
            }
        }
        Ok(())
    }
}
