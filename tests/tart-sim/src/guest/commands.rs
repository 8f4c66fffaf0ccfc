//! How a guest starts a command: environment, search path, session and terminal.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nix::errno::Errno;
use nix::unistd::setsid;
use rustix::process::ioctl_tiocsctty;

use super::{Boot, SESSION};

/// The environment variable that holds the guest's own address, for servers that have to listen on it.
const ADDRESS: &str = "TART_SIM_ADDRESS";

/// The environment variable that holds init's process id where it is not 1.
pub(super) const INIT_PID: &str = "TART_SIM_INIT";

/// Where a guest's commands run and what they see.
#[derive(Debug, Clone)]
pub(super) struct Environment {
    /// This binary, for the commands that need a session.
    own_program: PathBuf,
    home: PathBuf,
    variables: HashMap<String, OsString>,
    /// The user's number and group, where that is not init's own user.
    user: Option<(u32, u32)>,
}

impl Environment {
    /// The environment of the logged-in user. The root is where the guest's `/` is, as seen from init.
    pub(super) fn new(boot: &Boot, root: &Path, own_program: PathBuf, path: OsString) -> Self {
        let home = inside(root, &boot.home());
        let mut variables: HashMap<String, OsString> = [
            ("PATH", path),
            ("TERM", "xterm-256color".into()),
            ("HOME", home.clone().into()),
            ("USER", boot.user.clone().into()),
            ("LOGNAME", boot.user.clone().into()),
            ("SHELL", "/bin/sh".into()),
            ("TMPDIR", inside(root, Path::new("/tmp")).into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        if let Some(address) = boot.address {
            variables.insert(ADDRESS.into(), address.to_string().into());
        }
        if root != Path::new("/") {
            variables.insert(INIT_PID.into(), std::process::id().to_string().into());
        }
        // Without a root directory of its own, a guest has no users of its own either.
        let user = (boot.uid != 0 && root == Path::new("/")).then_some((boot.uid, boot.gid()));
        Self { own_program, home, variables, user }
    }

    /// The user's number and group, where that is not init's own user.
    pub(super) fn user(&self) -> Option<(u32, u32)> {
        self.user
    }

    /// A command in the user's home directory. The error is in the words of the agent's Go runtime.
    pub(super) fn command(&self, request: &Request<'_>) -> Result<Command, String> {
        let directory = match request.directory {
            "" => self.home.clone(),
            directory => self.home.join(directory),
        };
        if !directory.is_dir() {
            return Err(format!("chdir {}: no such file or directory", directory.display()));
        }
        let program = self.find(request.name, &directory)?;
        let mut command = if request.session {
            let mut command = Command::new(&self.own_program);
            command.arg0(SESSION).arg(program).arg(request.name);
            command
        } else {
            let mut command = Command::new(program);
            command.arg0(request.name);
            command
        };
        command
            .args(request.args)
            .env_clear()
            .envs(&self.variables)
            .envs(request.variables)
            .current_dir(directory);
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        Ok(command)
    }

    /// The file that a command's name stands for.
    fn find(&self, name: &str, directory: &Path) -> Result<PathBuf, String> {
        if name.contains('/') {
            let path = directory.join(name);
            return match fs::metadata(&path) {
                Ok(metadata) if is_executable(&metadata) => Ok(path),
                Ok(_) => Err(format!("fork/exec {name}: permission denied")),
                Err(error) => Err(format!("fork/exec {name}: {}", describe(&error))),
            };
        }
        std::env::split_paths(self.variables.get("PATH").unwrap_or(&OsString::new()))
            .map(|directory| directory.join(name))
            .find(|path| fs::metadata(path).is_ok_and(|metadata| is_executable(&metadata)))
            .ok_or_else(|| format!("exec: \"{name}\": executable file not found in $PATH"))
    }
}

/// The command to start.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) name: &'a str,
    pub(super) args: &'a [String],
    /// Additions to the environment.
    pub(super) variables: &'a HashMap<String, String>,
    /// Relative to the user's home directory; empty for that directory itself.
    pub(super) directory: &'a str,
    /// Whether the command leads a session of its own, and takes its standard input for its terminal if it is one.
    pub(super) session: bool,
}

/// Go's name for an error number.
pub(super) fn describe(error: &io::Error) -> String {
    Errno::from_raw(error.raw_os_error().unwrap_or_default()).desc().to_lowercase()
}

/// A guest's path as init sees it: init's root directory may be another.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn is_executable(metadata: &fs::Metadata) -> bool {
    metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
}

/// Becomes the leader of a new session and then the given program: its path, its name and its arguments.
pub(super) fn start_session(words: &[OsString]) -> ExitCode {
    let [path, name, args @ ..] = words else { return ExitCode::FAILURE };
    // Fails for the leader of a process group, which does no harm.
    let _ = setsid();
    // Fails if standard input is no terminal, which does no harm.
    let _ = ioctl_tiocsctty(io::stdin());
    let error = Command::new(path).arg0(name).args(args).exec();
    eprintln!("{}: {error}", name.display());
    ExitCode::from(127)
}

#[cfg(test)]
mod tests {
    use super::super::boot::tests::boot;
    use super::*;

    fn refusal(name: &str, directory: &str) -> String {
        let root =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        fs::create_dir_all(root.path().join("Users/admin")).unwrap();
        let environment =
            Environment::new(&boot(), root.path(), "/proc/self/exe".into(), "/bin:/usr/bin".into());
        let request = Request { name, args: &[], variables: &HashMap::new(), directory, session: false };
        environment.command(&request).map(|command| format!("{command:?}")).unwrap_err()
    }

    #[test]
    fn refusals_are_worded_as_by_go() {
        assert_eq!(
            refusal("no-such-program", ""),
            "exec: \"no-such-program\": executable file not found in $PATH"
        );
        assert_eq!(refusal("/no/such", ""), "fork/exec /no/such: no such file or directory");
        assert_eq!(refusal("/etc/passwd", ""), "fork/exec /etc/passwd: permission denied");
        assert_eq!(refusal("true", "/no/such"), "chdir /no/such: no such file or directory");
    }

    #[test]
    fn a_command_runs_in_the_users_home_with_the_users_variables() {
        let root =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let home = root.path().join("Users/admin");
        fs::create_dir_all(&home).unwrap();
        let environment =
            Environment::new(&boot(), root.path(), "/proc/self/exe".into(), "/bin:/usr/bin".into());
        let script = ["-c".to_owned(), "pwd; echo $USER $TART_SIM_ADDRESS $EXTRA".to_owned()];
        let variables = [("EXTRA".to_owned(), "more".to_owned())].into();
        let request =
            Request { name: "sh", args: &script, variables: &variables, directory: "", session: false };
        let output = environment.command(&request).unwrap().output().unwrap();
        let home = fs::canonicalize(home).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("{}\nadmin 127.64.0.2 more\n", home.display())
        );
    }
}
