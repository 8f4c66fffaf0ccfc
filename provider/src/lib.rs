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

mod apiserver;
mod artifact;
mod certificate_request;
mod cli;
mod cluster;
mod cluster_api;
pub mod crd;
mod csr;
mod error_chain;
mod events;
mod github;
pub mod host;
#[cfg(test)]
mod layering_tests;
mod machine;
mod manager;
mod metrics;
mod names;
mod pool;
mod program;
mod progress;
mod random;
mod reclaim;
mod rollout;
mod scaleway;
mod ssh;

pub use program::run;
