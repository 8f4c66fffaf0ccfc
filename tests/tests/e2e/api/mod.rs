//! The kubelet API: what kubectl, the API server and scrapers get from the agent's own port.

mod agent_restart;
mod attach;
mod auth;
mod debug;
mod exec;
mod figures;
mod kube_client;
mod kubectl;
mod leaks;
mod limits;
mod logs;
mod node_direct;
mod port_forward;
mod serving_certificate;
mod top;
