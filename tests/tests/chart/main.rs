//! The Helm chart: rendered by real helm, taken by a real API server with real Cluster API, and the provider with the rights that it gives.

mod definitions;
mod documented;
mod hooks;
mod install;
mod render;
mod uninstall;
mod values;
