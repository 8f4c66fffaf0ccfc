//! End to end: real API server, scheduler and kubectl; the shipped agent; a simulated Mac.

mod agent;
mod api;
mod container;
mod crash;
mod disk_space;
mod gc;
mod identity;
mod image;
mod node;
mod pod;
mod probe;
mod scene;
mod volume;
