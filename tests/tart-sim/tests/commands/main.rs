//! Every command that needs no running guest, through the binary: words, exit codes and files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod archive;
mod cache;
mod clone;
mod faults;
mod local_vms;
mod mac;
mod outage;
mod private_registries;
mod prune;
mod pull;
mod usage;
