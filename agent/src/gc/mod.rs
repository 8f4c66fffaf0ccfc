//! Collecting what nobody needs any more.
//!
//! `orphan` decides which VMs and state directories go, and why every other one stays; `observe` looks at the host and the API for it,
//! `vms` does what was decided, again and again; `dry_run` only shows it. `images` does all of it for images. `space` tells what it has brought.

pub(crate) mod ages;
pub(crate) mod collector;
pub(crate) mod observer;
pub(crate) mod orphan;
