//! The ports that the agent serves. `local` is the host's own port for health and metrics. All other modules are the kubelet API: HTTPS on
//! port 10250, for the API server and for scrapers.
//!
//! `server` accepts connections, `http` is what requests and answers are, `auth` decides who may ask for what, `router` hands the request to its handler. `stream` is
//! what the handlers of streams speak.

mod attach;
mod auth;
mod command_query;
mod configz;
mod context;
mod exec;
#[cfg(test)]
mod fuzz_tests;
mod http;
pub(crate) mod local;
mod logs;
mod pods;
mod port_forward;
mod router;
mod run;
mod running_container;
pub(crate) mod server;
mod stats;
mod stream;

pub(crate) use auth::{ClientCa, ClientCaError};
pub(crate) use configz::KubeletSettings;
pub(crate) use context::ApiContext;
pub(crate) use http::connections::ForwardPlaces;
pub(crate) use stats::Sampler;
