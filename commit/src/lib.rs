//! The version of both programs, such as `0.1.0 (abcdef0 2026-11-18)`: the release, and the commit that they were built from.
//!
//! Only the two programs use this crate. It is compiled anew after each commit, and so is all that uses it.

#[cfg(test)]
mod git;

/// The version. Without a repository, as in an unpacked archive, it is the release alone; `TART_KUBELET_COMMIT` says the commit then.
pub const VERSION: &str = env!("TART_KUBELET_VERSION");
