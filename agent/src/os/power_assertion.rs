//! Keeps the Mac awake: VMs stand still while it sleeps, and the Node's Lease runs out.

use std::io::ErrorKind;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::sleep;
use tracing::{info, warn};

/// The program of macOS that holds a power assertion. launchd's PATH has its directory.
const PROGRAM: &str = "caffeinate";
/// How soon a program that has ended is started again.
const RETRY: Duration = Duration::from_mins(1);

/// Holds a power assertion for as long as this process lives and polls the future. macOS may still turn the screen off.
pub(crate) async fn hold() {
    let pid = std::process::id().to_string();
    loop {
        let mut command = Command::new(PROGRAM);
        // It ends with this process, however that ends.
        command.args(["-i", "-w", &pid]).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(mut child) => {
                info!(program = PROGRAM, "keeping the Mac awake");
                let ended = child.wait().await;
                warn!(?ended, "{PROGRAM} has ended, so that the Mac may fall asleep; starting it again soon");
            }
            Err(error) if error.kind() == ErrorKind::NotFound && !cfg!(target_os = "macos") => {
                return std::future::pending().await;
            }
            Err(error) => {
                warn!(%error, "cannot run {PROGRAM}, so that the Mac may fall asleep; `pmset` can forbid it");
            }
        }
        sleep(RETRY).await;
    }
}
