//! Calls that read the configuration of every VM. Tart writes them in place, so that whoever reads one at that moment finds half of it.

use std::ffi::OsStr;
use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use super::Tart;
use super::call::TartOutput;
use super::error::{Fault, TartError};
use crate::error_chain::chain;

/// To write one takes far less than this, all times together.
const PAUSE: Duration = Duration::from_millis(100);
const TRIES: u32 = 5;

impl Tart {
    /// Runs `tart`, and again while it finds the configuration of some VM half written. One that stays so is somebody's to mend.
    pub(super) async fn call_for_all<S: AsRef<OsStr>>(
        &self,
        args: &[S],
        limit: Duration,
    ) -> Result<TartOutput, TartError> {
        let mut tries = 1;
        loop {
            match self.call(args, limit).await {
                Err(error) if error.fault() == Some(Fault::Torn) && tries < TRIES => {
                    warn!(
                        error = chain(&error),
                        "another tart may be writing what this one has read; trying again"
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
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn what_is_half_written_is_read_again_for_a_while() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let (program, calls) = (dir.path().join("tart"), dir.path().join("calls"));
        let words = "Error: The data couldn’t be read because it isn’t in the correct format.";
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
        assert_eq!(error.fault(), Some(Fault::Torn));
        assert_eq!(fs::read_to_string(&calls).unwrap().lines().count(), 5);
    }
}
