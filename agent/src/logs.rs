//! TODO-DOC logs

pub(crate) mod files;
pub(crate) mod writer;
