//! How tart prints: lines on stdout, JSON, tables, and the words for a file that fails.

pub(crate) mod file_error;
pub(crate) mod json;
pub(crate) mod stdout;
pub(crate) mod table;
