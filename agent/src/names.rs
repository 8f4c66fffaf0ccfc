//! TODO-DOC names

pub(crate) mod image;
pub(crate) mod vm;
