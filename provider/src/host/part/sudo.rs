//! sudo without a password, for the user that SSH logs in as.

use launchd::Call;
use serde::Serialize;

use super::{COMMAND_DEADLINE, Change, Inputs, PartError, Remote};

/// Writes `$2` to `$1` if sudo finds it right. sudo reads no file of this directory that has a dot in its name.
const INSTALL: &str = "set -eu
umask 077
new=$(dirname \"$1\")/.$(basename \"$1\").new
trap 'rm -f \"$new\"' EXIT
printf '%s\\n' \"$2\" >\"$new\"
/usr/sbin/visudo -cf \"$new\" >/dev/null
chown root:wheel \"$new\"
chmod 440 \"$new\"
mv -f \"$new\" \"$1\"";

/// sudo without a password.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sudo {
    user: String,
    path: String,
    rule: String,
}

impl Sudo {
    pub(crate) fn of(user: &str) -> Self {
        let name: String = user.chars().map(|c| if c == '.' { '_' } else { c }).collect();
        Self {
            user: user.to_owned(),
            path: format!("/etc/sudoers.d/{name}-nopasswd"),
            rule: format!("{user} ALL=(ALL) NOPASSWD: ALL"),
        }
    }

    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let call = Call::new(&["/usr/bin/sudo", "-n", "/usr/bin/true"], COMMAND_DEADLINE);
        let works = mac.run_as_user(call).await?.is_success();
        let change = || Change::new(format!("sudo of {}", self.user), "wants a password", "wants none");
        Ok(if works { Vec::new() } else { vec![change()] })
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R, inputs: &Inputs) -> Result<(), PartError> {
        let password = inputs.password.as_ref();
        let password =
            password.ok_or_else(|| PartError::NoPassword { what: "sudo", user: self.user.clone() })?;
        // sudo reads one line. The rule is no secret, and must not come after the password: a sudo that wants none would leave both to the
        // script.
        let mut line = password.expose().to_owned();
        line.push(b'\n');
        let argv =
            ["/usr/bin/sudo", "-S", "-p", "", "--", "/bin/sh", "-c", INSTALL, "sh", &self.path, &self.rule];
        let call = Call::new(&argv, COMMAND_DEADLINE).with_stdin(&line);
        let output = mac.run_as_user(call).await?;
        if output.is_success() {
            return Ok(());
        }
        // What sudo says about a password is told in other words: it must not be repeated by a shell's error either.
        let is_password = output.stderr.contains("incorrect password")
            || output.stderr.contains("no password was provided");
        if is_password {
            return Err(PartError::WrongPassword { user: self.user.clone() });
        }
        Err(PartError::Command {
            program: "/usr/bin/sudo".to_owned(),
            code: output.code,
            message: output.message(),
        })
    }
}
