//! Scaleway's API: Apple silicon servers, their images, and SSH keys. No other module knows its paths, its words or its errors.

mod client;
mod config;
mod error;
mod retry;
mod server;

pub(crate) use client::Scaleway;
pub(crate) use config::ScalewayConfig;
pub(crate) use error::ScalewayError;
pub(crate) use retry::RetryPolicy;
pub(crate) use server::{Image, Server};
