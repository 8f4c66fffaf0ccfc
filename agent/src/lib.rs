//! A Kubernetes node agent for Macs: every Pod of its Node is a Tart VM.
//!
//! Every loop in here has three steps: observe (API objects, files, locks), decide (a pure function), act (one
//! effect, safe to repeat). `pod::decide`, `node::desired`, `identity::decide` and `gc::orphan` are the decisions; `state` is what survives the agent;
//! `shim` is the process that owns a VM while agents come and go.

pub mod agent;
pub(crate) mod api;
pub(crate) mod apiserver;
pub mod cli;
pub mod crash_point;
pub mod duration;
pub(crate) mod env;
pub mod error_chain;
pub mod eviction;
pub(crate) mod fs;
pub mod gc;
pub mod guest;
pub mod identity;
pub mod image;
pub(crate) mod logs;
pub mod metrics;
pub(crate) mod names;
pub mod node;
pub(crate) mod os;
pub mod pod;
pub mod probe;
pub mod quantity;
pub mod shim;
pub mod state;
pub mod tart;
pub mod text_table;
pub mod volume;
