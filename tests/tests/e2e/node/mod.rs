//! The Node that a Mac becomes.

mod conditions;
mod drain;
mod heartbeat;
mod lease;
mod lease_owner;
mod registration;
mod tart_home_owner;
