//! This Mac as a Node: the object that the agent registers, its status and its heartbeat.

pub(crate) mod address;
pub(crate) mod capacity;
pub(crate) mod conditions;
pub(crate) mod controller;
pub(crate) mod gui_session;
pub(crate) mod health;
mod images;
pub(crate) mod labels;
pub(crate) mod lease;
pub(crate) mod node_info;
pub(crate) mod object;
pub(crate) mod pulse;
pub(crate) mod signals;
pub(crate) mod start_failures;
pub(crate) mod taints;
