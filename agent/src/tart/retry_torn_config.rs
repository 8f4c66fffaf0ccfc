//! Calls that read the configuration of every VM. tart writes configurations in place and takes no lock to delete them, so another tart may
//! read half of one, or find one gone that it has just seen.

use std::ffi::OsStr;
use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use super::Tart;
use super::error::{Fault, TartError};
use crate::error_chain::chain;

/// tart writes a configuration in far less time than all these pauses together.
const PAUSE: Duration = Duration::from_millis(100);
const TRIES: u32 = 5;

impl Tart {
    /// Runs `tart`, and runs it again while it finds the configuration of some VM half written, or gone. One that stays so is broken, and
    /// fails the call.
    pub(super) async fn call_for_all<S: AsRef<OsStr>>(
        &self,
        args: &[S],
        limit: Duration,
    ) -> Result<String, TartError> {
        let mut tries = 1;
        loop {
            match self.call(args, limit).await {
                Err(error) if error.fault() == Some(Fault::TornConfig) && tries < TRIES => {
                    warn!(
                        error = chain(&error),
                        "tart read a configuration that another tart may be writing or deleting; trying again"
                    );
                    tries += 1;
                    sleep(PAUSE).await;
                }
                result => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn a_call_is_repeated_while_a_configuration_is_half_written() {
        let dir = testing::dir();
        let (program, calls) = (dir.path().join("tart"), dir.path().join("calls"));
        let words = "Error: The file “config.json” couldn’t be opened because there is no such file.";
        let script = format!(
            "#!/bin/sh\necho x >>{0}\n[ $(grep -c x {0}) -ge $1 ] || {{ echo '{words}' >&2; exit 1; }}\n",
            calls.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let tart = Tart::in_home(&program, dir.path());
        let limit = Duration::from_mins(1);
        tart.call_for_all(&["3"], limit).await.unwrap();
        fs::remove_file(&calls).unwrap();
        let error = tart.call_for_all(&["100"], limit).await.unwrap_err();
        assert_eq!(error.fault(), Some(Fault::TornConfig));
        assert_eq!(fs::read_to_string(&calls).unwrap().lines().count(), 5);
    }
}
