//! A Pod from its admission to its deletion.

mod admission;
mod deletion;
mod events;
mod examples;
mod fields;
mod lifecycle;
mod readiness_gates;
mod update;
mod workloads;
