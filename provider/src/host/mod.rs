//! A Mac as the provider wants it to be.

pub mod firewall;
