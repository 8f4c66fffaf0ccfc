//! The provider: it takes Macs over SSH to where tart-kubelet runs on them, and keeps it up to date.
//!
//! ```text
//! HostConfig ──► steps ──► hash
//!                  │
//!                  └──► for each step: check ──► apply ──► check        over one SSH connection
//! ```
//!
//! A step is plain data, and holds all that it puts on a Mac. Its hash is the hash of that data, so that what is hashed and what is pushed are
//! the same by construction. A first bootstrap and a later roll run the same steps.

mod artifact;
mod cli;
mod error_chain;
pub mod host;
#[allow(dead_code, reason = "the reconciler that uses it is being written")]
mod names;
#[allow(dead_code, unused_imports, reason = "the reconciler that uses it is being written")]
mod pool;
mod program;
mod progress;
mod random;
#[allow(dead_code, unused_imports, reason = "the manager that uses it is being written")]
mod reclaim;
#[allow(dead_code, unused_imports, reason = "the manager that uses it is being written")]
mod scaleway;
mod ssh;

pub use program::run;
