//! The simulated Scaleway as a program.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use scaleway_sim::{Install, Scaleway, Settings};

/// A simulated Scaleway. It prints `SCW_API_URL=…` when it listens, and runs until it is ended.
#[derive(Debug, Parser)]
struct Args {
    /// Where it listens
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// The key that requests must have in `X-Auth-Token`
    #[arg(long, env = "SCW_SECRET_KEY")]
    secret_key: String,

    /// The project of the servers
    #[arg(long, env = "SCW_DEFAULT_PROJECT_ID")]
    project_id: String,

    /// A zone. Can be given several times
    #[arg(long = "zone", default_values = ["fr-par-1", "fr-par-3"])]
    zones: Vec<String>,

    /// How many milliseconds a server is being installed or restarted
    #[arg(long, default_value_t = 200)]
    install_millis: u64,

    /// Servers can be renamed while they are being installed
    #[arg(long)]
    renames_while_changing: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let args = Args::parse();
    let settings = Settings {
        secret_key: args.secret_key,
        project_id: args.project_id,
        zones: args.zones,
        install: Install::After(Duration::from_millis(args.install_millis)),
        renames_while_changing: args.renames_while_changing,
    };
    let scaleway = Scaleway::listen(args.listen, settings).await?;
    writeln!(io::stdout(), "SCW_API_URL={}", scaleway.url())?;
    match scaleway.wait().await {}
}
