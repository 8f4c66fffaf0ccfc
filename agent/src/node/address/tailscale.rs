//! The address of this machine in its tailnet, from the `tailscale` program.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use command::CommandError;

const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum TailscaleError {
    #[error(transparent)]
    Program(#[from] CommandError),
    #[error("`tailscale ip -4` printed {0:?}, which is no address")]
    Garbage(String),
}

/// The IPv4 address of this machine in its tailnet.
pub(super) async fn address(program: &Path) -> Result<IpAddr, TailscaleError> {
    parse(&command::stdout(program, &["ip", "-4"], LIMIT).await?)
}

fn parse(printed: &str) -> Result<IpAddr, TailscaleError> {
    let line = printed.lines().next().unwrap_or_default().trim();
    let address: Ipv4Addr =
        line.parse().map_err(|_| TailscaleError::Garbage(line.chars().take(80).collect()))?;
    Ok(address.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_tailscale_prints_is_the_address() {
        assert_eq!(parse("100.64.0.7\n").unwrap(), IpAddr::from([100, 64, 0, 7]));
        for bad in ["", "\n", "no tailnet\n", "fd7a::1\n"] {
            assert!(matches!(parse(bad), Err(TailscaleError::Garbage(_))), "{bad:?}");
        }
    }
}
