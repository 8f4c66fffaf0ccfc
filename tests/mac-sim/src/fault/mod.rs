//! Faults and knobs of the simulated Mac.
//!
//! A test switches a fault on by a file in the directory of faults; the file's content is the fault's parameter. The simulator refuses a
//! file that names no fault, and a parameter that the fault cannot have. A mistyped fault would otherwise be a test that cannot fail.

mod directory;
mod parameter;
mod table;

pub use directory::FaultDirectory;
pub use parameter::{Call, NthCall, duration};
pub use table::Fault;

use std::io;
use std::path::PathBuf;

/// The exit code of a simulated program that refuses its faults, or that is asked for what is not simulated.
pub const REFUSED: u8 = 78;

/// Why the simulator refuses a file in the directory of faults, and why a test cannot write it.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    /// No fault has this file name.
    #[error("`{0}` is no fault of the simulator")]
    Unknown(String),
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
