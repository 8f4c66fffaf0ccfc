//! A Kubernetes node agent for Macs. Each Pod of its Node runs as one Tart VM.
//!
//! Two processes come from this crate. The *agent* registers the Node and decides what happens to each Pod. A *shim* owns one VM and its
//! command; it outlives the agent.
//!
//! Every loop has three steps: observe (API objects, files, locks), decide (a pure function), act (one effect, safe to repeat). The decisions
//! are `pod::sync::decide`, `node::object::decide`, `identity::decide`, `image::gc::choose` and `gc::orphan`.
//!
//! Modules are layers. A module imports only modules that stand before it in this list; the test below keeps it so.
//!
//! ```text
//! words      word_enum mutex error_chain crash_point text_table duration quantity backoff clock names
//! machine    os fs tart
//! services   metrics apiserver identity state logs guest env
//! parts      image probe volume
//! VM         shim
//! Kubernetes node pod eviction gc
//! program    api install cli agent entry_point
//! ```

#[macro_use]
mod word_enum;

mod agent;
mod api;
mod apiserver;
mod backoff;
mod cli;
mod clock;
mod crash_point;
mod duration;
mod entry_point;
mod env;
mod error_chain;
mod eviction;
mod fs;
mod gc;
mod guest;
mod identity;
mod image;
mod install;
mod logs;
mod metrics;
mod mutex;
mod names;
mod node;
mod os;
mod pod;
mod probe;
mod quantity;
mod shim;
mod state;
mod tart;
mod text_table;
mod volume;

pub use entry_point::run;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod layering_tests;
#[cfg(test)]
mod testing;
