//! Volumes, as the commands in the guest see them.

pub(crate) mod content;
mod sub_path;
mod token;
mod untrusted_share;
