//! The Mac that an agent runs on: simulated, or the real one when `TART_KUBELET_TEST_TART` names its tart.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tart_sim::fault::{FaultDirectory, FaultFile};

pub use tart_sim::Fault;

use crate::process;
use crate::programs;
use crate::sandbox::{Sandbox, processes};

/// Names a real tart to be used in place of the simulated one.
pub const REAL_TART: &str = "TART_KUBELET_TEST_TART";

/// The environment variable of the simulated tart, which everything on one Mac inherits.
const HOST: &str = "TART_SIM_HOST";

const TART_DEADLINE: Duration = Duration::from_mins(1);

/// The programs of macOS that the agent asks about the session: the file `gui-session` has the answer, and without it they fail as a
/// program does that cannot tell.
const PROGRAMS: [(&str, &str); 2] = [
    (
        "launchctl",
        r#"#!/bin/sh
[ "$*" = "print gui/$(id -u)" ] || { echo "Unrecognized target specifier." >&2; exit 64; }
case "$(cat "$TART_SIM_HOST/gui-session" 2>/dev/null)" in
  open | locked) printf '%s = {\n\ttype = login\n\tcreator = loginwindow\n\tsession = Aqua\n}\n' "$2" ;;
  none) printf 'Bad request.\nCould not find domain for user gui: %s\n' "$(id -u)" >&2; exit 112 ;;
  *) echo "Operation not permitted" >&2; exit 1 ;;
esac
"#,
    ),
    (
        "security",
        r#"#!/bin/sh
[ "$*" = show-keychain-info ] || { echo "security: unknown command" >&2; exit 2; }
case "$(cat "$TART_SIM_HOST/gui-session" 2>/dev/null)" in
  open) echo 'Keychain "<NULL>" no-timeout' >&2 ;;
  none | locked) echo 'security: SecKeychainCopySettings <NULL>: User interaction is not allowed.' >&2; exit 36 ;;
  *) exit 1 ;;
esac
"#,
    ),
];

/// The session of the user that the agent runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuiSession {
    /// The user is logged in at the screen, and the keychain is open.
    Open,
    /// The user is logged in, and the keychain is locked.
    Locked,
    /// No user is logged in.
    None,
}

impl GuiSession {
    fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Locked => "locked",
            Self::None => "none",
        }
    }
}

/// A Mac with nothing on it but tart. A simulated one ends with its last handle, and all that runs on it: what one test leaves behind would
/// take the processor from all later ones.
#[derive(Debug, Clone)]
pub struct Mac {
    sandbox: Sandbox,
    tart: PathBuf,
    simulated: bool,
    home: PathBuf,
    host: PathBuf,
    /// `None` for a real Mac.
    _power: Option<Arc<Power>>,
}

/// What a simulated Mac runs by.
#[derive(Debug)]
struct Power {
    host: PathBuf,
}

impl Drop for Power {
    fn drop(&mut self) {
        // The sandbox's keeper kills what is left.
        let _ = processes::kill_all(HOST, &self.host);
    }
}

impl Mac {
    /// Sets up a Mac in a sandbox.
    pub fn new(sandbox: &Sandbox) -> Result<Self> {
        let real = std::env::var_os(REAL_TART).map(PathBuf::from);
        let simulated = real.is_none();
        let tart = real.map_or_else(programs::simulated_tart, Ok)?;
        let host = sandbox.directory("mac")?;
        for directory in ["tart", "faults", "registry", "bin"].map(|name| host.join(name)) {
            std::fs::create_dir(&directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        // A real Mac's images are too large to be pulled for each test, and the agent's VMs have names of their own.
        let home = if simulated { host.join("tart") } else { users_tart_home()? };
        if simulated {
            for (program, script) in PROGRAMS {
                write_program(&host.join("bin").join(program), script)?;
            }
        }
        let power = simulated.then(|| Arc::new(Power { host: host.clone() }));
        Ok(Self { sandbox: sandbox.clone(), tart, simulated, home, host, _power: power })
    }

    /// The sandbox that it is in.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The `tart` program.
    pub fn tart_binary(&self) -> &Path {
        &self.tart
    }

    /// Whether tart is the simulated one, which can be given images and faults.
    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// `TART_HOME`: the VMs and the image cache.
    pub fn tart_home(&self) -> &Path {
        &self.home
    }

    /// `TART_SIM_HOST`: the simulated Mac itself.
    pub fn host(&self) -> &Path {
        &self.host
    }

    /// The file of its DHCP server.
    pub fn dhcp_leases(&self) -> PathBuf {
        if self.simulated { self.host.join("dhcpd_leases") } else { PathBuf::from("/var/db/dhcpd_leases") }
    }

    /// A command in the Mac's environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.sandbox.command(program);
        command.env("TART_HOME", &self.home).env(HOST, &self.host);
        if self.simulated {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let directories = std::iter::once(self.host.join("bin")).chain(std::env::split_paths(&path));
            // No directory that came from PATH has a colon in it, and neither does a sandbox.
            command.envs(std::env::join_paths(directories).map(|path| ("PATH", path)));
        }
        command
    }

    /// Logs the agent's user in at the Mac's screen, or out. Until then the Mac does not answer questions about it.
    pub fn set_gui_session(&self, session: GuiSession) -> Result<()> {
        self.ensure_simulated("a GUI session")?;
        replace(&self.host.join("gui-session"), session.word())
    }

    /// Takes the power away: whatever runs on the Mac is gone at once, the agent included; its disk stays as it is.
    pub fn lose_power(&self) -> Result<()> {
        self.ensure_simulated("a power cut")?;
        processes::kill_all(HOST, &self.host)
    }

    /// Runs `tart` with arguments and returns its stdout; the error has its stderr.
    pub async fn tart<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<String> {
        let mut command = self.command(&self.tart);
        command.args(arguments);
        process::run(command, "", TART_DEADLINE).await
    }

    /// Puts an image into a registry that the Mac can reach; `description` becomes its `image.json`.
    ///
    /// Returns the image's directory; a guest file system goes into `rootfs` below it.
    pub fn add_image(&self, name: &str, description: &impl Serialize) -> Result<PathBuf> {
        self.ensure_simulated("images")?;
        add_image(&self.host, name, description)
    }

    /// Makes a registry ask for a name and a password.
    pub fn protect_registry(&self, registry: &str, username: &str, password: &str) -> Result<()> {
        self.ensure_simulated("registries")?;
        let directory = self.host.join("registry").join(registry);
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let credentials = serde_json::json!({ "username": username, "password": password });
        replace(&directory.join("credentials.json"), &credentials.to_string())
    }

    /// Makes a registry that asked for a password ask no more.
    pub fn open_registry(&self, registry: &str) -> Result<()> {
        let path = self.host.join("registry").join(registry).join("credentials.json");
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Switches a fault on, for all VMs or for one (`Fault::RunDies.of_vm("vm")`).
    pub fn set_fault(&self, fault: impl Into<FaultFile>, parameter: &str) -> Result<()> {
        self.ensure_simulated("faults")?;
        Ok(FaultDirectory::of_host(&self.host).switch_on(&fault.into(), parameter)?)
    }

    /// Switches a fault off. A fault that is off stays off.
    pub fn clear_fault(&self, fault: impl Into<FaultFile>) -> Result<()> {
        FaultDirectory::of_host(&self.host).switch_off(&fault.into())?;
        Ok(())
    }

    fn ensure_simulated(&self, what: &str) -> Result<()> {
        ensure!(self.simulated, "a real Mac ({REAL_TART} is set) cannot be given {what}");
        Ok(())
    }
}

/// Puts an image into a registry of a `TART_SIM_HOST`.
pub(crate) fn add_image(host: &Path, name: &str, description: &impl Serialize) -> Result<PathBuf> {
    let (repository, tag) = name.rsplit_once(':').with_context(|| format!("image {name} has no tag"))?;
    let directory = host.join("registry").join(repository).join(tag);
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let file = directory.join("image.json");
    replace(&file, &serde_json::to_string_pretty(description)?)?;
    // A Mac's tart may run as another user than the test.
    std::fs::set_permissions(&file, Permissions::from_mode(0o644))
        .with_context(|| format!("cannot publish {}", file.display()))?;
    Ok(directory)
}

/// Where tart keeps a user's images and VMs.
fn users_tart_home() -> Result<PathBuf> {
    match std::env::var_os("TART_HOME").filter(|home| !home.is_empty()) {
        Some(home) => Ok(PathBuf::from(home)),
        None => Ok(std::env::home_dir().context("this user has no home directory")?.join(".tart")),
    }
}

fn write_program(path: &Path, script: &str) -> Result<()> {
    std::fs::write(path, script)
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file by rename, so that no reader sees half of it.
fn replace(path: &Path, content: &str) -> Result<()> {
    let directory = path.parent().unwrap_or(path);
    tempfile::NamedTempFile::new_in(directory)
        .and_then(|file| {
            std::fs::write(file.path(), content)?;
            Ok(file.persist(path)?)
        })
        .map(drop)
        .with_context(|| format!("cannot write {}", path.display()))
}
