//! TODO-DOC api

pub(crate) mod local;
