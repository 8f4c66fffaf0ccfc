//! A simulated Scaleway: the part of its API that owns Macs, with its quirks. See the README.

mod api;
mod attach;
mod control;
mod error;
mod fault;
mod http_server;
mod server;
mod world;

pub use api::Call;
pub use fault::{BadRule, Effect, Rule};
pub use http_server::Scaleway;
pub use server::{Image, PasswordView, Server, SshKey, Status};
pub use world::{Install, NewServer, Settings, World, Write};
