//! `tart-kubelet join` and `leave`: one Mac, one command.

mod discovery;
pub(crate) mod mac;
mod update;
