//! The Mac's sshd: the real OpenSSH, started by launchd for each connection.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use mac_sim::settings::{HostDirectory, LINUX, SIMULATOR, Settings, TART_HOST};
use nix::sys::signal::SigSet;

use super::launchd::xpcproxy::PATH;
use super::programs::machine;

/// The job that stands for sshd. launchd has its socket, and starts an sshd for each connection.
pub(super) const PROPERTY_LIST: &str = r#"<plist version="1.0"><dict>
<key>Label</key><string>com.openssh.sshd</string>
<key>Program</key><string>/usr/libexec/sshd-keygen-wrapper</string>
<key>ProgramArguments</key><array><string>sshd-keygen-wrapper</string></array>
</dict></plist>"#;

/// The name of the file with the host key, in `/etc/ssh`.
const HOST_KEY: &str = "ssh_host_ed25519_key";

/// The directory of OpenSSH inside the Mac.
fn openssh() -> PathBuf {
    Path::new(SIMULATOR).join("openssh")
}

/// The login shell of the Mac's users: zsh, where there is one.
pub(super) fn login_shell(settings: &Settings) -> &'static str {
    let has_zsh = settings.openssh.as_ref().is_some_and(|openssh| openssh.join("bin/zsh").exists());
    if has_zsh || Path::new("/usr/bin/zsh").exists() { "/bin/zsh" } else { "/bin/sh" }
}

/// Writes the host key and the settings of sshd, if the Mac has one.
pub(super) fn write_settings(root: &Path, host: &HostDirectory, settings: &Settings) -> io::Result<()> {
    let Some(openssh) = &settings.openssh else { return Ok(()) };
    let directory = root.join("private/etc/ssh");
    let key = directory.join(HOST_KEY);
    let comment = format!("root@{}", settings.host_name);
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", &comment, "-f"])
        .arg(&key)
        .stdin(Stdio::null())
        .status()?;
    if !made.success() {
        return Err(io::Error::other(format!("ssh-keygen: {made}")));
    }
    fs::copy(key.with_extension("pub"), host.simulator().join("host_key.pub"))?;
    let own = |path: &str| {
        if openssh.join(path).exists() {
            format!("{}/{path}", self::openssh().display())
        } else {
            format!("{LINUX}/{path}")
        }
    };
    let config = format!(
        "# The simulated Mac accepts keys only.\n\
         HostKey /etc/ssh/{HOST_KEY}\n\
         AuthenticationMethods publickey\n\
         PasswordAuthentication no\n\
         KbdInteractiveAuthentication no\n\
         UsePAM no\n\
         PermitRootLogin no\n\
         AllowUsers {}\n\
         StrictModes no\n\
         PidFile none\n\
         PrintMotd no\n\
         LogLevel VERBOSE\n\
         Subsystem sftp {}\n\
         SetEnv PATH={PATH} TART_SIM_HOST={TART_HOST} TART_SIM_MACHINE={LINUX}\n",
        settings.user,
        own("usr/lib/openssh/sftp-server"),
    );
    fs::write(directory.join("sshd_config"), config)?;
    // Debian's zsh reads another file than that of macOS, and its modules are not where it looks for them.
    let zsh = root.join("private/etc/zsh");
    fs::create_dir_all(&zsh)?;
    let modules = openssh.join("usr/lib");
    let module_path = if modules.join("zsh").exists() {
        format!("module_path=({}/usr/lib/zsh)\n", self::openssh().display())
    } else {
        String::new()
    };
    // A command line that comes over SSH is an argument of the login shell, which every user of a Mac can see: it is noted with the calls.
    let note = format!(
        "[[ -n ${{ZSH_EXECUTION_STRING-}} ]] && print -r -- \"zsh -c ${{ZSH_EXECUTION_STRING//$'\\n'/\\\\n}}\" >>{SIMULATOR}/calls"
    );
    let own_file = "[[ -r /etc/zshenv ]] && . /etc/zshenv";
    fs::write(zsh.join("zshenv"), format!("{module_path}{note}\n{own_file}\ntrue\n"))?;
    fs::set_permissions(&key, Permissions::from_mode(0o600))?;
    let shell =
        if openssh.join("bin/zsh").exists() { Some(self::openssh().join("bin/zsh")) } else { machine("zsh") };
    if let Some(shell) = shell {
        symlink(shell, root.join("bin/zsh"))?;
    }
    Ok(())
}

/// The name under which this binary becomes the sshd of one connection, as on a Mac.
pub(super) const WRAPPER: &str = "sshd-keygen-wrapper";

/// Becomes the sshd that serves the connection on stdin.
pub(super) fn main() -> ExitCode {
    let own = openssh().join("usr/sbin/sshd");
    let program = if own.exists() { own } else { Path::new(LINUX).join("usr/sbin/sshd") };
    // sshd insists on this directory.
    let _ = fs::create_dir_all("/run/sshd");
    let mut command = Command::new(&program);
    command.args(["-i", "-e", "-f", "/etc/ssh/sshd_config"]).env_clear().env("PATH", PATH);
    command.env("LD_LIBRARY_PATH", openssh().join("usr/lib"));
    // launchd blocks signals, and programs inherit that.
    let error = SigSet::empty().thread_set_mask().map_or_else(io::Error::from, |()| command.exec());
    eprintln!("{}: {error}", program.display());
    ExitCode::FAILURE
}
