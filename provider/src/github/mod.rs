//! GitHub, as far as runners of an organization are registered there and removed: as an App of the organization.

mod app;
mod client;

pub(crate) use app::{App, AppError};
pub(crate) use client::{Github, GithubError};
