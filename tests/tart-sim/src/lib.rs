//! What a test shares with the simulated `tart`: its faults, and the directory in which the test switches them on.

pub mod fault;

pub use fault::Fault;
