//! A session at the screen, now and after every boot. macOS starts VMs only for the user who has one.

use std::time::Duration;

use launchd::{Access, Call};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{COMMAND_DEADLINE, Change, Inputs, PartError, Remote, run};
use crate::host::kcpassword;

const KCPASSWORD: &str = "/etc/kcpassword";
const LOGINWINDOW: &str = "/Library/Preferences/com.apple.loginwindow";
/// How long macOS may take to log the user in.
const SESSION_DEADLINE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_secs(1);

/// A session at the screen.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AutoLogin {
    pub(crate) user: String,
}

impl AutoLogin {
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let mut changes = Vec::new();
        let read = ["/usr/bin/defaults", "read", LOGINWINDOW, "autoLoginUser"];
        let output = mac.run(Call::new(&read, COMMAND_DEADLINE)).await?;
        let is = if output.is_success() { output.stdout.trim() } else { "" };
        if is != self.user {
            let is = if is.is_empty() { "no user" } else { is };
            changes.push(Change::new("user that macOS logs in at boot", is, &self.user));
        }
        let change = |is| Change::new("password for that", is, "set");
        match mac.read_file(KCPASSWORD).await? {
            None => changes.push(change("missing")),
            Some(file) if kcpassword::is_sealed(&file) => {
                changes.push(change("wrong, so that macOS has dropped it"));
            }
            Some(_) => (),
        }
        if !self.has_session(mac).await? {
            changes.push(Change::new(format!("session of {} at the screen", self.user), "missing", "there"));
        }
        Ok(changes)
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R, inputs: &Inputs) -> Result<(), PartError> {
        let user = || self.user.clone();
        let file = mac.read_file(KCPASSWORD).await?;
        let has_password = file.is_some_and(|file| !kcpassword::is_sealed(&file));
        match &inputs.password {
            Some(password) => {
                let file = kcpassword::encode(password.expose());
                mac.write_file(KCPASSWORD, &file, &Access::root(0o600)).await?;
            }
            None if has_password => (),
            None => return Err(PartError::NoPassword { what: "auto-login", user: user() }),
        }
        run(mac, &["/usr/bin/defaults", "write", LOGINWINDOW, "autoLoginUser", &self.user]).await?;
        if self.has_session(mac).await? {
            // Another start of loginwindow would end the session, and the VMs with it.
            return Ok(());
        }
        run(mac, &["/bin/launchctl", "kickstart", "-k", "system/com.apple.loginwindow"]).await?;
        let start = Instant::now();
        while !self.has_session(mac).await? {
            if start.elapsed() >= SESSION_DEADLINE {
                break;
            }
            sleep(POLL).await;
        }
        // loginwindow tells by this file that the password was wrong.
        match mac.read_file(KCPASSWORD).await? {
            Some(file) if kcpassword::is_sealed(&file) => Err(PartError::WrongPassword { user: user() }),
            _ if self.has_session(mac).await? => Ok(()),
            _ => Err(PartError::NoSession { user: user() }),
        }
    }

    async fn has_session<R: Remote>(&self, mac: &R) -> Result<bool, PartError> {
        let uid = run(mac, &["/usr/bin/id", "-u", &self.user]).await?;
        let domain = format!("gui/{}", uid.stdout.trim());
        let output = mac.run(Call::new(&["/bin/launchctl", "print", &domain], COMMAND_DEADLINE)).await?;
        Ok(output.is_success() && output.stdout.lines().any(|line| line.trim() == "session = Aqua"))
    }
}
