//! A real control plane, the programs that talk to it, and what it stands on.

pub mod certificates;
pub mod cluster_api;
pub mod control_plane;
pub mod helm;
pub mod kubeconfig;
pub mod kubectl;
pub mod tls;
