//! `--vnc` and `--vnc-experimental`: `run` prints where the VM's screen is. No server listens there.

use std::env;
use std::net::Ipv4Addr;

use crate::cli;
use crate::output::stdout;

/// The words of which the framework's server makes its passwords.
const WORDS: [&str; 8] = ["apple", "bridge", "candle", "dolphin", "ember", "forest", "garden", "harbor"];

/// The server that shows the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    /// The guest's own server, at the guest's address.
    Guest,
    /// The framework's, at a port of the host.
    Framework,
}

/// A screen that is shown over VNC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Screen {
    pub(super) server: Server,
    /// Whether to print the address instead of opening a viewer.
    print: bool,
}

impl Screen {
    /// The screen that the command line asks for.
    pub(super) fn of(args: &cli::Run) -> Option<Self> {
        let server = match (args.vnc, args.vnc_experimental) {
            (true, _) => Server::Guest,
            (_, true) => Server::Framework,
            _ => return None,
        };
        Some(Self { server, print: args.no_graphics || env::var_os("CI").is_some() })
    }

    /// Prints where the screen is.
    pub(super) fn announce(self, guest: Option<Ipv4Addr>) {
        let url = match (self.server, guest) {
            (Server::Framework, _) => {
                let password = [(); 4].map(|()| WORDS[fastrand::usize(..WORDS.len())]).join("-");
                format!("vnc://:{password}@127.0.0.1:{}", fastrand::u16(49152..))
            }
            (Server::Guest, Some(address)) => format!("vnc://{address}"),
            // The real tart waits for an address first.
            (Server::Guest, None) => return,
        };
        stdout::line(if self.print {
            format!("VNC server is running at {url}")
        } else {
            format!("Opening {url}...")
        });
    }
}
