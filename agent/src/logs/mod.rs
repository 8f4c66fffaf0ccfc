//! Container logs in the format of the container runtime interface: the shim writes them, the agent reads them.
//!
//! `query` is what a client asks for, `selection` the lines that it gets, `tail` finds the last lines, `rotation` the files that one log
//! consists of. `reader` puts them together.

pub(crate) mod line;
pub(crate) mod query;
pub(crate) mod reader;
mod rotation;
mod selection;
mod tail;
pub(crate) mod writer;

pub(crate) use rotation::MAX_FILES;
pub(crate) use writer::MAX_FILE_SIZE;
