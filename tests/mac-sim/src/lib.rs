//! What a test shares with a simulated Mac: its settings, its faults, and the socket by which it is rebooted.

pub mod control;
pub mod fault;
pub mod settings;

pub use fault::Fault;
