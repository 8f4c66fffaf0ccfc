//! `launchctl`: its commands, exit codes and output. No other module knows what they look like.

mod exit_code;
mod print;
mod reload;

pub use exit_code::ExitCode;
pub use print::{LastExit, Registration, Service};
pub use reload::Reloaded;
pub(crate) use reload::reload_deadline;

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::host::{Call, Host, HostError};
use crate::label::Label;

const LAUNCHCTL: &str = "/bin/launchctl";
/// How long a question to launchd may take.
const QUERY_DEADLINE: Duration = Duration::from_secs(15);
/// How long a command may take that ends or starts a process.
const CHANGE_DEADLINE: Duration = Duration::from_mins(1);

/// How often launchd is asked whether a job is gone.
const POLL: Duration = Duration::from_millis(500);

/// `launchctl` on a Mac, for the jobs of one domain.
#[derive(Debug)]
pub struct Launchctl<'h, H> {
    host: &'h H,
    domain: Domain,
}

/// A part of launchd's name space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// The Mac's own: its jobs are there from the boot on.
    System,
    /// The session of this user at the screen: its jobs come and go with the session.
    Gui(u32),
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("system"),
            Self::Gui(uid) => write!(f, "gui/{uid}"),
        }
    }
}

/// A command of `launchctl` that did not work. It never has the command's standard output: `print` shows the environment of jobs.
#[derive(Debug, thiserror::Error)]
pub enum LaunchctlError {
    /// The command gave no answer.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The command failed.
    #[error("`launchctl {command}` failed: {message} ({code})")]
    Failed {
        /// The command.
        command: String,
        /// Its exit code.
        code: ExitCode,
        /// The last line of its standard error.
        message: String,
    },
}

impl LaunchctlError {
    /// The exit code of a command that failed.
    pub fn code(&self) -> Option<ExitCode> {
        match self {
            Self::Host(_) => None,
            Self::Failed { code, .. } => Some(*code),
        }
    }
}

impl<'h, H: Host> Launchctl<'h, H> {
    /// The `launchctl` of a Mac, for its own jobs.
    pub fn of(host: &'h H) -> Self {
        Self::in_domain(host, Domain::System)
    }

    /// The `launchctl` of a Mac, for the jobs of a domain.
    pub fn in_domain(host: &'h H, domain: Domain) -> Self {
        Self { host, domain }
    }

    /// A job as `launchctl` names it.
    fn target(&self, label: &Label) -> String {
        format!("{}/{label}", self.domain)
    }

    /// What launchd knows about a job.
    pub async fn print(&self, label: &Label) -> Result<Registration, LaunchctlError> {
        let target = self.target(label);
        let (code, stdout) = self.ask(&["print", &target], &[ExitCode::Success, ExitCode::NoService]).await?;
        match code {
            ExitCode::NoService => Ok(Registration::NotLoaded),
            _ => Ok(Registration::Loaded(Box::new(Service::parse(&stdout)))),
        }
    }

    /// Whether launchd would refuse to load a job because it has been disabled.
    pub async fn is_disabled(&self, label: &Label) -> Result<bool, LaunchctlError> {
        let (_, stdout) =
            self.ask(&["print-disabled", &self.domain.to_string()], &[ExitCode::Success]).await?;
        Ok(print::is_disabled(&stdout, label))
    }

    /// Takes back that a job is disabled. This outlives the job's property list.
    pub async fn enable(&self, label: &Label) -> Result<(), LaunchctlError> {
        self.change(&["enable", &self.target(label)], |code| code == ExitCode::Success).await
    }

    /// Tells launchd to end a job and to forget it. launchd answers at once; the job is gone when `print` no longer finds it. A job that is
    /// not loaded is no error.
    pub async fn bootout(&self, label: &Label) -> Result<(), LaunchctlError> {
        self.change(&["bootout", &self.target(label)], ExitCode::is_booted_out).await
    }

    /// Has launchd end a job and forget it, and waits until it is gone. A job that is still there after `patience` is the inner error.
    pub async fn unload(
        &self,
        label: &Label,
        patience: Duration,
    ) -> Result<Result<(), Registration>, LaunchctlError> {
        self.bootout(label).await?;
        let start = Instant::now();
        loop {
            match self.print(label).await? {
                Registration::NotLoaded => return Ok(Ok(())),
                seen if start.elapsed() >= patience => return Ok(Err(seen)),
                Registration::Loaded(_) => sleep(POLL).await,
            }
        }
    }

    /// Starts a loaded job that does not run. For one that runs this does nothing.
    pub async fn kickstart(&self, label: &Label) -> Result<(), LaunchctlError> {
        self.change(&["kickstart", &self.target(label)], |code| code == ExitCode::Success).await
    }

    /// Ends the process of a loaded job, if it has one, and starts another one at once.
    pub async fn restart(&self, label: &Label) -> Result<(), LaunchctlError> {
        self.change(&["kickstart", "-k", &self.target(label)], |code| code == ExitCode::Success).await
    }

    async fn change(
        &self,
        arguments: &[&str],
        is_done: impl Fn(ExitCode) -> bool,
    ) -> Result<(), LaunchctlError> {
        self.call(arguments, CHANGE_DEADLINE, is_done).await.map(drop)
    }

    async fn ask(
        &self,
        arguments: &[&str],
        answers: &[ExitCode],
    ) -> Result<(ExitCode, String), LaunchctlError> {
        self.call(arguments, QUERY_DEADLINE, |code| answers.contains(&code)).await
    }

    async fn call(
        &self,
        arguments: &[&str],
        deadline: Duration,
        is_answer: impl Fn(ExitCode) -> bool,
    ) -> Result<(ExitCode, String), LaunchctlError> {
        let argv: Vec<&str> = std::iter::once(LAUNCHCTL).chain(arguments.iter().copied()).collect();
        let output = self.host.run(Call::new(&argv, deadline)).await?;
        let code = ExitCode::from(output.code);
        if is_answer(code) {
            return Ok((code, output.stdout));
        }
        Err(LaunchctlError::Failed { command: arguments.join(" "), code, message: output.message() })
    }
}
