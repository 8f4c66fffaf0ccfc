//! The kubelet API: what kubectl, the API server and scrapers get from the agent's own port.

mod attach;
mod auth;
mod exec;
mod figures;
mod kubectl;
mod limits;
mod logs;
mod port_forward;
mod serving_certificate;
mod top;
