//! End to end: real API server, scheduler and kubectl; the shipped agent; a simulated Mac.

mod broken_input;
mod commands;
mod crash_points;
mod crashes;
mod deletion;
mod identity;
mod images;
mod life;
mod node;
mod scene;
