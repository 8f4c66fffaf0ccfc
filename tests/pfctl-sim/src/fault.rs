//! Faults of the simulated `pfctl`.
//!
//! A test switches a fault on by a file in `TART_SIM_HOST/pf/faults`. `pfctl` refuses a file that names no fault.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The exit code of a simulator that refuses its faults: `EX_CONFIG` of sysexits.h. pfctl itself never ends with it.
pub(crate) const REFUSED: u8 = 78;

/// A fault or a knob of the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `pfctl` is not run by root.
    NotRoot,
    /// No table can be defined: `Resource busy`.
    TableBusy,
    /// A load that has begun goes on when the file is gone; another `pfctl` can come between.
    HoldLoad,
    /// `pfctl` does nothing until the file is gone.
    Hang,
    /// Each call adds a line with its arguments to `TART_SIM_HOST/pf/calls` before it does anything.
    Calls,
}

impl Fault {
    const ALL: [Self; 5] = [Self::NotRoot, Self::TableBusy, Self::HoldLoad, Self::Hang, Self::Calls];

    fn file_name(self) -> &'static str {
        match self {
            Self::NotRoot => "not-root",
            Self::TableBusy => "table-busy",
            Self::HoldLoad => "hold-load",
            Self::Hang => "hang",
            Self::Calls => "calls",
        }
    }
}

/// Why the simulator refuses a file in the directory of faults.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    /// No fault has this file name.
    #[error("`{0}` is no fault of the simulator")]
    Unknown(String),
    /// The file system fails.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file, or the directory.
        path: PathBuf,
        /// What the file system says.
        source: io::Error,
    },
}

/// The directory of faults.
#[derive(Debug, Clone)]
pub(crate) struct Faults {
    dir: PathBuf,
}

impl Faults {
    pub(crate) fn new(pf: &Path) -> Self {
        Self { dir: pf.join("faults") }
    }

    /// Refuses a file that is no fault.
    pub(crate) fn check(&self) -> Result<(), FaultError> {
        let failed = |source| FaultError::Io { path: self.dir.clone(), source };
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            if !Fault::ALL.iter().any(|fault| fault.file_name() == name) {
                return Err(FaultError::Unknown(name));
            }
        }
        Ok(())
    }

    pub(crate) fn switch_on(&self, fault: Fault) -> Result<(), FaultError> {
        let path = self.dir.join(fault.file_name());
        fs::create_dir_all(&self.dir)
            .and_then(|()| fs::write(&path, ""))
            .map_err(|source| FaultError::Io { path, source })
    }

    pub(crate) fn switch_off(&self, fault: Fault) -> Result<(), FaultError> {
        let path = self.dir.join(fault.file_name());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FaultError::Io { path, source: error })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn is_on(&self, fault: Fault) -> bool {
        self.dir.join(fault.file_name()).exists()
    }
}
