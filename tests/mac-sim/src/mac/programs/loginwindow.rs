//! loginwindow: logs a user in at the screen when the Mac starts, if it knows the password.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use mac_sim::control::Request;
use mac_sim::fault::{Fault, FaultDirectory};
use mac_sim::settings::{Settings, UID};

use super::{defaults, host_facts, launchd};

pub(super) const PROGRAM: &str = "/System/Library/CoreServices/loginwindow.app/Contents/MacOS/loginwindow";

/// The job by which launchd starts loginwindow. It does not start it again after SIGHUP, as `killall -HUP loginwindow` finds out.
pub(in crate::mac) const PROPERTY_LIST: &str = r#"<plist version="1.0"><dict>
<key>Label</key><string>com.apple.loginwindow</string>
<key>ProgramArguments</key><array>
<string>/System/Library/CoreServices/loginwindow.app/Contents/MacOS/loginwindow</string><string>console</string></array>
<key>RunAtLoad</key><true/><key>KeepAlive</key><dict><key>Crashed</key><true/></dict>
</dict></plist>"#;

/// The file with the password of the user who is logged in automatically.
const PASSWORD_FILE: &str = "/etc/kcpassword";
/// By which the bytes of that file are disguised, over and over.
const KEY: [u8; 11] = [0x7d, 0x89, 0x52, 0x23, 0xd2, 0xbc, 0xdd, 0xea, 0xa3, 0xb9, 0x1f];
/// What loginwindow leaves of a password that is wrong.
const SEALED: &[u8] = b"<sealed>";
/// Whether loginwindow has been started since the boot.
const STARTED: &str = "/private/var/run/mac-sim-loginwindow";

/// Disguises bytes, and takes the disguise off.
fn disguise(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key).collect()
}

/// The password in the file's bytes: all before the NUL that must follow it.
fn password(bytes: &[u8]) -> Option<Vec<u8>> {
    let plain = disguise(bytes);
    let end = plain.iter().position(|byte| *byte == 0)?;
    Some(plain[..end].to_vec())
}

/// Logs in the user who is to be logged in automatically, and stays.
pub(super) fn main() -> ExitCode {
    let is_first = !Path::new(STARTED).exists();
    let _ = fs::write(STARTED, host_facts::boot_session().unwrap_or_default());
    let is_headless = FaultDirectory::of_this_mac().parameter(Fault::HeadlessBoot).ok().flatten().is_some();
    if !(is_first && is_headless) {
        log_in();
    }
    loop {
        std::thread::sleep(Duration::from_hours(1));
    }
}

fn log_in() {
    let Ok(settings) = Settings::of_this_mac() else { return };
    let user = defaults::read("/Library/Preferences/com.apple.loginwindow.plist".as_ref(), "autoLoginUser");
    let user = user.and_then(|value| value.as_string().map(str::to_owned));
    let (Some(user), Ok(bytes)) = (user, fs::read(PASSWORD_FILE)) else { return };
    if user == settings.user && password(&bytes).as_deref() == Some(settings.password.as_bytes()) {
        let _ = launchd(&Request::OpenSession(UID));
        // The user at the screen owns it.
        let _ = chown("/dev/console", Some(UID), None);
    } else {
        let _ = fs::write(PASSWORD_FILE, disguise(SEALED));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_ends_with_a_nul() {
        assert_eq!(password(&disguise(b"secret\0\0\0\0\0")).as_deref(), Some(&b"secret"[..]));
        // A password that fills its block needs another one.
        assert_eq!(password(&disguise(b"elevenbytes")), None);
        assert_eq!(password(&disguise(b"elevenbytes\0\0")).as_deref(), Some(&b"elevenbytes"[..]));
    }
}
