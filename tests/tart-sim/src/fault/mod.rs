//! Faults and knobs of the simulator.
//!
//! A test switches a fault on by a file in `TART_SIM_HOST/faults`; the file's content is the fault's parameter. The simulator refuses
//! a file that names no fault, and a parameter that the fault cannot have. A mistyped fault would otherwise be a test that cannot
//! fail.

mod directory;
mod file;
mod outage;
mod parameter;
mod run_exit;
mod table;

pub use directory::FaultDirectory;
pub use file::FaultFile;
pub use outage::{Outage, OutageKind, Stage};
pub use parameter::{COMMANDS, Latency, Release, duration, latencies, release, subnet};
pub use run_exit::{ExitKind, RunExit};
pub use table::Fault;

use std::io;
use std::path::PathBuf;

/// The exit code of a simulator that refuses its faults: `EX_CONFIG` of sysexits.h. tart itself never ends with it.
pub const REFUSED: u8 = 78;

/// Why the simulator refuses a file in the directory of faults, and why a test cannot write it.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    /// No fault has this file name.
    #[error("`{0}` is no fault of the simulator")]
    Unknown(String),
    /// The fault is one of the whole Mac.
    #[error("`{0}` cannot be switched on for one VM")]
    NotForOneVm(Fault),
    /// The file's content is no parameter of the fault.
    #[error("`{fault}` takes {}, not {found:?}", .fault.parameter())]
    Parameter {
        /// The fault that the file switches on.
        fault: Fault,
        /// The file's content.
        found: String,
    },
    /// The file system fails.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file, or the directory.
        path: PathBuf,
        /// What the file system says.
        source: io::Error,
    },
}
