//! Where the simulated Mac keeps everything that is not one user's: `TART_SIM_HOST`.

use std::env;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The directory that stands for the Mac and what it can reach.
pub(crate) fn dir() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = env::var_os("TART_SIM_HOST").filter(|path| !path.is_empty()).map_or_else(
            || env::temp_dir().join(format!("tart-sim-host-{}", nix::unistd::getuid())),
            PathBuf::from,
        );
        // Commands that use the control socket change their directory later.
        std::path::absolute(&dir).unwrap_or(dir)
    })
    .clone()
}
