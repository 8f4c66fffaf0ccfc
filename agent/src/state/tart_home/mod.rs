//! Which state directory, Node and cluster tart's home belongs to.

pub(super) mod owner;
mod record;

pub(crate) use owner::{TartHomeError, TartHomeOwner};
pub(crate) use record::TartHomeRecordError;
