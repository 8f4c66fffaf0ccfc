//! This Mac as a Node: its name, what it tells the API server about itself, and its heartbeat.

pub(crate) mod address;
pub(crate) mod capacity;
pub(crate) mod conditions;
pub(crate) mod controller;
pub(crate) mod health;
pub(crate) mod images;
pub(crate) mod labels;
pub(crate) mod lease;
pub(crate) mod lease_owner;
pub(crate) mod node_info;
pub(crate) mod object;
pub(crate) mod pressure;
pub(crate) mod signals;
pub(crate) mod start_failures;
pub(crate) mod taints;
pub(crate) mod thresholds;
