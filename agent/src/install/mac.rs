//! macOS' programs, as far as `install` and `doctor` need them. Only this module knows their arguments and their output.

use std::path::Path;
use std::time::Duration;

use launchd::{Call, CallOutput, ConsoleUser, Host, HostError, VM_FIREWALL_ANCHOR};

/// How long a small program may take.
const DEADLINE: Duration = Duration::from_secs(15);
/// How long a program may take that copies a file or looks at one as a whole.
const COPY_DEADLINE: Duration = Duration::from_mins(1);

/// Where macOS keeps the settings of its DHCP server.
const INTERNET_SHARING: &str =
    "/Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist";

/// A program that did not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MacError {
    /// The program gave no answer.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The program failed.
    #[error("`{command}` failed: {message}")]
    Failed {
        /// The program and its arguments.
        command: String,
        /// The last line of its standard error.
        message: String,
    },
}

/// The programs of a Mac.
#[derive(Debug)]
pub(crate) struct MacPrograms<'h, H> {
    host: &'h H,
}

impl<'h, H: Host> MacPrograms<'h, H> {
    /// The programs of this Mac.
    pub(crate) fn of(host: &'h H) -> Self {
        Self { host }
    }

    /// The user that is logged in at the screen; `None` if there is none.
    pub(crate) async fn console_user(&self) -> Result<Option<ConsoleUser>, MacError> {
        let owner = self.stdout(&["/usr/bin/stat", "-f", "%Su", "/dev/console"]).await?;
        // `root` has the console while the login window is shown, `_mbsetupuser` during the first set-up.
        let name = owner.trim();
        if name.is_empty() || name == "root" || name.starts_with('_') {
            return Ok(None);
        }
        let home = nix::unistd::User::from_name(name).ok().flatten().map(|user| user.dir);
        let home = home.and_then(|home| home.to_str().map(str::to_owned));
        Ok(Some(match home {
            Some(home) => ConsoleUser { name: name.to_owned(), home },
            None => ConsoleUser::named(name),
        }))
    }

    /// Makes a directory of a user, with all that is above it.
    pub(crate) async fn make_directory(&self, path: &str, owner: &str, mode: &str) -> Result<(), MacError> {
        if let Some(parent) = Path::new(path).parent().and_then(Path::to_str) {
            self.stdout(&["/bin/mkdir", "-p", parent]).await?;
        }
        self.stdout(&["/usr/bin/install", "-d", "-o", owner, "-m", mode, path]).await.map(drop)
    }

    /// Copies a program by a temporary name, sees that it is signed and runs, and renames it. The file is a new one: macOS kills a program whose file
    /// is overwritten. The old program stays under the name `previous`. One that is there has proved itself, and stays.
    pub(crate) async fn install_program(&self, from: &str, to: &str, previous: &str) -> Result<(), MacError> {
        let (directory, name) = to.rsplit_once('/').unwrap_or(("", to));
        let temporary = format!("{directory}/.{name}.new");
        self.stdout(&["/bin/mkdir", "-p", directory]).await?;
        self.stdout(&["/bin/rm", "-f", &temporary]).await?;
        self.run(&["/bin/cp", from, &temporary], COPY_DEADLINE).await?;
        self.stdout(&["/bin/chmod", "755", &temporary]).await?;
        // macOS starts no program without a signature. One that its maker has signed stays as it is.
        if !self.is_signed(&temporary).await? {
            self.sign(&temporary).await?;
        }
        self.run(&[&temporary, "--version"], COPY_DEADLINE).await?;
        if self.exists(to).await? && !self.exists(previous).await? {
            self.stdout(&["/bin/ln", to, previous]).await?;
        }
        self.stdout(&["/bin/mv", "-f", &temporary, to]).await.map(drop)
    }

    /// Whether two files have the same content.
    pub(crate) async fn is_same_file(&self, one: &str, other: &str) -> Result<bool, MacError> {
        let argv = ["/usr/bin/cmp", "-s", one, other];
        Ok(self.host.run(Call::new(&argv, COPY_DEADLINE)).await?.is_success())
    }

    /// The SHA-256 hash of a file; empty if it cannot be read.
    pub(crate) async fn sha256(&self, path: &str) -> Result<String, MacError> {
        let argv = ["/usr/bin/shasum", "-a", "256", path];
        let output = self.host.run(Call::new(&argv, COPY_DEADLINE)).await?;
        Ok(output.stdout.split_whitespace().next().unwrap_or_default().to_owned())
    }

    /// Removes files, and directories with all that is in them.
    pub(crate) async fn remove(&self, paths: &[&str]) -> Result<(), MacError> {
        let argv: Vec<&str> = ["/bin/rm", "-rf"].into_iter().chain(paths.iter().copied()).collect();
        self.run(&argv, COPY_DEADLINE).await.map(drop)
    }

    /// Whether there is such a file.
    pub(crate) async fn exists(&self, path: &str) -> Result<bool, MacError> {
        Ok(self.host.run(Call::new(&["/bin/test", "-e", path], DEADLINE)).await?.is_success())
    }

    /// Whether a user has a session at the screen.
    pub(crate) async fn has_gui_session(&self, user: &str) -> Result<bool, MacError> {
        let Some(uid) = nix::unistd::User::from_name(user).ok().flatten().map(|user| user.uid) else {
            return Ok(false);
        };
        let output = self.ask(&["/bin/launchctl", "print", &format!("gui/{uid}")]).await?;
        Ok(output.is_success() && output.stdout.contains("session = Aqua"))
    }

    /// Whether pf is on and has the rules that keep VMs from private networks and from the Mac; `None` if it does not tell, as to any user but root.
    pub(crate) async fn has_vm_firewall(&self) -> Result<Option<bool>, MacError> {
        let pfctl = ["/usr/bin/sudo", "-n", "/sbin/pfctl"];
        let rules = self.ask(&[&pfctl[..], &["-a", VM_FIREWALL_ANCHOR, "-s", "rules"]].concat()).await?;
        let info = self.ask(&[&pfctl[..], &["-s", "info"]].concat()).await?;
        if !rules.is_success() || !info.is_success() {
            return Ok(None);
        }
        let has_rules = rules.stdout.lines().any(|line| line.starts_with("block"));
        Ok(Some(has_rules && info.stdout.contains("Status: Enabled")))
    }

    /// Whether the login keychain of a user is unlocked; `None` if there is none, or this process may not ask.
    pub(crate) async fn is_keychain_unlocked(&self, user: &ConsoleUser) -> Result<Option<bool>, MacError> {
        let keychain = format!("{}/Library/Keychains/login.keychain-db", user.home);
        let show =
            ["/usr/bin/sudo", "-n", "-u", &user.name, "/usr/bin/security", "show-keychain-info", &keychain];
        let output = self.ask(&show).await?;
        Ok(match output.code {
            0 => Some(true),
            _ if output.stderr.contains("User interaction is not allowed") => Some(false),
            _ => None,
        })
    }

    /// Whether macOS lets a user list a directory; `None` if there is none, or this process may not ask.
    pub(crate) async fn can_list(&self, user: &str, path: &str) -> Result<Option<bool>, MacError> {
        let output = self.ask(&["/usr/bin/sudo", "-n", "-u", user, "/bin/ls", path]).await?;
        Ok(match output.code {
            0 => Some(true),
            _ if output.stderr.contains("Operation not permitted") => Some(false),
            _ => None,
        })
    }

    /// What `tart --version` prints. Root asks as the user: what tart makes in its home must not belong to root.
    pub(crate) async fn tart_version(&self, user: Option<&str>, tart: &str) -> Result<CallOutput, MacError> {
        match user.filter(|_| nix::unistd::geteuid().is_root()) {
            Some(user) => self.ask(&["/usr/bin/sudo", "-n", "-H", "-u", user, tart, "--version"]).await,
            None => self.ask(&[tart, "--version"]).await,
        }
    }

    /// The user who is logged in automatically after a restart.
    pub(crate) async fn auto_login_user(&self) -> Result<Option<String>, MacError> {
        let read =
            ["/usr/bin/defaults", "read", "/Library/Preferences/com.apple.loginwindow", "autoLoginUser"];
        let output = self.ask(&read).await?;
        let user = output.stdout.trim();
        Ok((output.is_success() && !user.is_empty()).then(|| user.to_owned()))
    }

    /// After how many minutes the Mac sleeps; 0 for never.
    pub(crate) async fn sleep_minutes(&self) -> Result<Option<u32>, MacError> {
        Ok(sleep_minutes(&self.ask(&["/usr/bin/pmset", "-g"]).await?.stdout))
    }

    /// For how many seconds guests keep their addresses, if that was set.
    pub(crate) async fn lease_seconds(&self) -> Result<Option<u32>, MacError> {
        Ok(lease_seconds(&self.ask(&["/usr/bin/defaults", "read", INTERNET_SHARING, "bootpd"]).await?.stdout))
    }

    /// Whether a program has a valid signature.
    pub(crate) async fn is_signed(&self, program: &str) -> Result<bool, MacError> {
        let verify = ["/usr/bin/codesign", "--verify", program];
        Ok(self.host.run(Call::new(&verify, COPY_DEADLINE)).await?.is_success())
    }

    /// Gives a program an ad-hoc signature.
    pub(crate) async fn sign(&self, program: &str) -> Result<(), MacError> {
        self.run(&["/usr/bin/codesign", "--force", "--sign", "-", program], COPY_DEADLINE).await.map(drop)
    }

    /// Keeps the Mac awake, and has it start again after a power cut.
    pub(crate) async fn never_sleep(&self) -> Result<(), MacError> {
        let settings = ["sleep", "0", "displaysleep", "0", "disksleep", "0", "autorestart", "1"];
        let argv: Vec<&str> = ["/usr/bin/pmset", "-a"].into_iter().chain(settings).collect();
        self.stdout(&argv).await.map(drop)
    }

    /// Has guests give their addresses back after ten minutes.
    pub(crate) async fn shorten_leases(&self) -> Result<(), MacError> {
        // `-dict` would remove the other settings of the DHCP server.
        let value = ["bootpd", "-dict-add", "DHCPLeaseTimeSecs", "-int", "600"];
        let argv: Vec<&str> =
            ["/usr/bin/defaults", "write", INTERNET_SHARING].into_iter().chain(value).collect();
        self.stdout(&argv).await.map(drop)
    }

    /// Has the Mac set its clock by the network.
    pub(crate) async fn use_network_time(&self) -> Result<(), MacError> {
        self.stdout(&["/usr/sbin/systemsetup", "-setusingnetworktime", "on"]).await.map(drop)
    }

    /// Whether a process keeps the Mac from sleeping by itself, as the agent does; `None` if macOS does not tell.
    pub(crate) async fn prevents_sleep(&self) -> Result<Option<bool>, MacError> {
        Ok(prevents_sleep(&self.ask(&["/usr/bin/pmset", "-g", "assertions"]).await?.stdout))
    }

    /// What a program prints, whatever its exit code.
    async fn ask(&self, argv: &[&str]) -> Result<CallOutput, MacError> {
        Ok(self.host.run(Call::new(argv, DEADLINE)).await?)
    }

    async fn stdout(&self, argv: &[&str]) -> Result<String, MacError> {
        self.run(argv, DEADLINE).await
    }

    async fn run(&self, argv: &[&str], deadline: Duration) -> Result<String, MacError> {
        let output = self.host.run(Call::new(argv, deadline)).await?;
        if output.is_success() {
            return Ok(output.stdout);
        }
        Err(MacError::Failed { command: argv.join(" "), message: output.message() })
    }
}

/// Reads `pmset -g`: a line such as ` sleep                1`, perhaps with a word about what keeps the Mac awake.
fn sleep_minutes(text: &str) -> Option<u32> {
    text.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["sleep", minutes, ..] => minutes.parse().ok(),
        _ => None,
    })
}

/// Reads `pmset -g assertions`: a line such as `   PreventUserIdleSystemSleep     1`.
fn prevents_sleep(text: &str) -> Option<bool> {
    text.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["PreventUserIdleSystemSleep", count] => count.parse::<u32>().ok().map(|count| count > 0),
        _ => None,
    })
}

/// Reads a dictionary as `defaults read` prints it: `    DHCPLeaseTimeSecs = 600;`.
fn lease_seconds(text: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        if key.trim() != "DHCPLeaseTimeSecs" {
            return None;
        }
        value.trim().trim_end_matches(';').trim_matches('"').parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_is_read_from_pmset_and_not_taken_for_another_setting() {
        let text = "System-wide power settings:\nCurrently in use:\n disksleep            10\n \
                    sleep                1 (sleep prevented by caffeinate)\n displaysleep         10\n";
        assert_eq!(sleep_minutes(text), Some(1));
        assert_eq!(sleep_minutes(" sleep 0\n"), Some(0));
        assert_eq!(sleep_minutes(" displaysleep 10\n"), None);
    }

    #[test]
    fn an_assertion_is_read_from_pmset() {
        let text = "2026-01-01 10:00:00 +0000 \nAssertion status system-wide:\n   BackgroundTask                 0\n   \
                    PreventUserIdleSystemSleep     1\n   PreventSystemSleep             0\nListed by owning process:\n   pid 7(caffeinate): \
                    [0x1] 00:00:01 PreventUserIdleSystemSleep named: \"caffeinate\"\n";
        assert_eq!(prevents_sleep(text), Some(true));
        assert_eq!(prevents_sleep("   PreventUserIdleSystemSleep     0\n"), Some(false));
        assert_eq!(prevents_sleep(""), None);
    }

    #[test]
    fn the_lease_time_is_read_from_defaults() {
        assert_eq!(lease_seconds("{\n    DHCPLeaseTimeSecs = 600;\n}\n"), Some(600));
        assert_eq!(lease_seconds("{\n    DHCPLeaseTimeSecs = \"600\";\n}\n"), Some(600));
        assert_eq!(lease_seconds(""), None);
    }
}
