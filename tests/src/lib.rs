//! What the end-to-end tests, the demo and the benches stand on: a real control plane, a simulated Mac, and the shipped agent
//! between them.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use tart_kubelet_tests::{agent::Agent, control_plane::ControlPlane, mac::Mac};
//!
//! let control_plane = ControlPlane::shared().await?;
//! let mac = Mac::new(control_plane.sandbox())?;
//! let agent = Agent::new(&mac, "mac-1", &control_plane.node_kubeconfig("mac-1")?)?.start()?;
//! println!("{}", control_plane.kubectl().run(["get", "nodes"]).await?);
//! # Ok(()) }
//! ```
//!
//! Everything is started inside a [`sandbox::Sandbox`], which leaves nothing behind however the test process ends.

pub mod actions_runner;
pub mod agent;
pub mod clock;
pub mod cluster;
pub mod disk;
pub mod github;
pub mod kubelet;
pub mod mac;
pub mod mac_host;
pub mod mac_pool;
pub mod pages;
pub mod process;
pub mod programs;
pub mod prometheus;
pub mod provider_deployment;
pub mod proxy;
pub mod sandbox;
pub mod secret;
pub mod skip;
pub mod status_webhook;
pub mod wait;

pub use cluster::{certificates, cluster_api, control_plane, helm, kubeconfig, kubectl, tls};
