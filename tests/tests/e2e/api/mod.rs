//! The kubelet API: what kubectl, the API server and scrapers get from the agent's own port.

mod auth;
mod figures;
mod limits;
mod logs;
mod serving_certificate;
mod top;
