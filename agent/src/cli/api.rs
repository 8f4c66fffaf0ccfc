//! Flags for the kubelet API.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

/// Flags for the kubelet API.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The kubelet API")]
pub(crate) struct ApiArgs {
    /// The address at which the agent serves the kubelet API, for kubectl logs and scrapers
    #[arg(long, default_value = "0.0.0.0")]
    pub(crate) address: IpAddr,

    /// The port at which the agent serves the kubelet API; 0 for any free one. The Node publishes it
    #[arg(long, default_value_t = 10250)]
    pub(crate) port: u16,

    /// The authority that signs client certificates for the kubelet API, in PEM; the authority in --kubeconfig when absent, which signs
    /// both in most clusters
    #[arg(long)]
    pub(crate) client_ca_file: Option<PathBuf>,
}

impl ApiArgs {
    pub(crate) fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}
