//! A Kubernetes node agent for Macs: every Pod of its Node is a Tart VM.
//!
//! Every loop in here has three steps: observe (API objects, files, locks), decide (a pure function), act (one
//! effect, safe to repeat). `pod::decide`, `node::desired`, `identity::decide` and `gc::orphan` are the decisions; `state` is what survives the agent;
//! `shim` is the process that owns a VM while agents come and go.

mod agent;
mod api;
mod apiserver;
mod backoff;
mod cli;
mod crash_point;
mod duration;
mod env;
mod error_chain;
mod eviction;
mod fs;
mod gc;
mod guest;
mod identity;
mod image;
mod logs;
mod metrics;
mod names;
mod node;
mod os;
mod pod;
mod probe;
mod program;
mod quantity;
mod shim;
mod state;
mod tart;
mod text_table;
mod volume;

pub use program::run;
