//! macOS' programs, as far as `install` and `doctor` need them. Only this module knows their arguments and their output.

use std::path::Path;
use std::time::Duration;

use launchd::{Call, ConsoleUser, Host, HostError};

/// How long a small program may take.
const DEADLINE: Duration = Duration::from_secs(15);
/// How long a program may take that copies a file or looks at one as a whole.
const COPY_DEADLINE: Duration = Duration::from_mins(1);

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

    /// Copies a program by a temporary name, sees that it runs, and renames it. The file is a new one: macOS kills a program whose file
    /// is overwritten.
    pub(crate) async fn install_program(&self, from: &str, to: &str) -> Result<(), MacError> {
        let (directory, name) = to.rsplit_once('/').unwrap_or(("", to));
        let temporary = format!("{directory}/.{name}.new");
        self.stdout(&["/bin/mkdir", "-p", directory]).await?;
        self.stdout(&["/bin/rm", "-f", &temporary]).await?;
        self.run(&["/bin/cp", from, &temporary], COPY_DEADLINE).await?;
        self.stdout(&["/bin/chmod", "755", &temporary]).await?;
        self.run(&[&temporary, "--version"], COPY_DEADLINE).await?;
        self.stdout(&["/bin/mv", "-f", &temporary, to]).await.map(drop)
    }

    /// Whether two files have the same content.
    pub(crate) async fn is_same_file(&self, one: &str, other: &str) -> Result<bool, MacError> {
        let argv = ["/usr/bin/cmp", "-s", one, other];
        Ok(self.host.run(Call::new(&argv, COPY_DEADLINE)).await?.is_success())
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
