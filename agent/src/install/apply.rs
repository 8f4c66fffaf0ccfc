//! Makes this Mac a Node: observe, decide, act, and wait until the Node is Ready.

use std::path::Path;
use std::time::Duration;

use kube::config::Kubeconfig;
use launchd::{
    AGENT_BINARY, AGENT_LABEL, AGENT_PLIST, Access, Host, HostError, Label, Launchctl, LaunchctlError,
    Outdated, Roll, RollError, Rolled, roll,
};
use tokio::time::{Instant, sleep};

use super::AgentSettings;
use super::credentials::{Credentials, CredentialsError, server};
use super::mac::{MacError, MacPrograms};
use super::node_watch::{Progress, look, renewal};
use super::plan::{InstallDecision, InstallPlan, Installed, PlannedFile, decide, plan};
use super::started::{self, Started};

/// How often the API server is asked whether the Node is Ready.
const POLL: Duration = Duration::from_secs(1);

/// Why this Mac is no Node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    /// The user is not root.
    #[error("only root can install a launchd job: run it again with sudo")]
    NotRoot,
    /// No user is logged in at the screen.
    #[error(
        "no user is logged in at this Mac's screen, and macOS starts VMs only for one who is: log in there, and switch automatic login \
         on in System Settings > Users & Groups, so that a user is logged in after each restart"
    )]
    NoConsoleUser,
    /// This Mac is a Node of another cluster.
    #[error("this Mac has joined another cluster, {server}: leave it first with `sudo tart-kubelet leave`")]
    OtherCluster {
        /// The API server of that cluster.
        server: String,
    },
    /// The credentials cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The credentials name no API server.
    #[error("the kubeconfig names no API server")]
    NoServer,
    /// A program of macOS failed.
    #[error(transparent)]
    Mac(#[from] MacError),
    /// A file could not be read or written.
    #[error(transparent)]
    Host(#[from] HostError),
    /// `launchctl` failed.
    #[error(transparent)]
    Launchctl(#[from] LaunchctlError),
    /// The job does not run.
    #[error(transparent)]
    Roll(#[from] RollError),
    /// The job has no property list.
    #[error(transparent)]
    Job(#[from] launchd::JobError),
    /// The Node is not Ready in time. The job stays.
    #[error("after {} s {progress}. The agent goes on trying; `tart-kubelet status` shows how it is, and {log} what it does", timeout.as_secs())]
    NotReady {
        /// How long it was waited for.
        timeout: Duration,
        /// How far it came.
        progress: Progress,
        /// The agent's log.
        log: &'static str,
    },
}

/// What has been done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InstallOutcome {
    /// This Mac was a Node already.
    AlreadyJoined {
        /// The cluster.
        server: String,
        /// Whether the Node gets no Pods.
        is_cordoned: bool,
    },
    /// This Mac has become a Node, or its agent was brought up to date.
    Ready {
        /// The cluster.
        server: String,
        /// Whether the Node gets no Pods.
        is_cordoned: bool,
    },
}

/// Installs the agent on a Mac, and tells each step by `say`. Safe to repeat: a run that breaks off is finished by the next.
pub(crate) async fn install<H: Host>(
    host: &H,
    settings: &AgentSettings,
    credentials: &Credentials,
    timeout: Duration,
    mut say: impl FnMut(&str),
) -> Result<InstallOutcome, InstallError> {
    let installer = Installer { host, mac: MacPrograms::of(host), settings };
    let server = credentials.server().ok_or(InstallError::NoServer)?.to_owned();
    let user = installer.mac.console_user().await?.ok_or(InstallError::NoConsoleUser)?;
    let plan = plan(settings, user, credentials)?;
    let program = Program::observe(&installer.mac).await?;
    let (installed, progress) = installer.observe(&plan, &program).await?;
    let is_cordoned = progress == Progress::Ready { is_cordoned: true };
    let decision = decide(&installed, &server);
    match &decision {
        InstallDecision::AlreadyJoined => {
            return Ok(InstallOutcome::AlreadyJoined { server, is_cordoned });
        }
        InstallDecision::OtherCluster(server) => {
            return Err(InstallError::OtherCluster { server: server.clone() });
        }
        InstallDecision::Update => say("this Mac has joined already: bringing its agent up to date"),
        InstallDecision::Install => say(&format!("installing the agent for the user {}", plan.user.name)),
    }
    installer.write_files(&plan).await?;
    if decision == InstallDecision::Install {
        installer.write(&plan.credentials).await?;
    }
    if let Some(from) = &program.newer {
        installer.mac.install_program(from, AGENT_BINARY, PREVIOUS).await?;
    }
    let (pid, renewal) = installer.roll(&plan, decision == InstallDecision::Install).await?;
    say(&format!(
        "launchd runs the agent as process {pid}; waiting until the Node {} is ready",
        settings.node
    ));
    let is_cordoned = wait_until_ready(settings, renewal.as_deref(), timeout, say).await?;
    Ok(InstallOutcome::Ready { server, is_cordoned })
}

/// The program that an update replaced, until the new one has proved itself.
pub(super) const PREVIOUS: &str = "/usr/local/bin/.tart-kubelet.previous";

struct Installer<'a, H> {
    host: &'a H,
    mac: MacPrograms<'a, H>,
    settings: &'a AgentSettings,
}

/// The agent's program.
struct Program {
    /// The file of this program, if the installed one differs from it.
    newer: Option<String>,
}

impl Program {
    async fn observe<H: Host>(mac: &MacPrograms<'_, H>) -> Result<Self, InstallError> {
        let own = std::env::current_exe().and_then(|path| path.canonicalize());
        let own = own.ok().and_then(|path| path.to_str().map(str::to_owned));
        let Some(own) = own.filter(|own| own != AGENT_BINARY) else { return Ok(Self { newer: None }) };
        let is_same = mac.is_same_file(&own, AGENT_BINARY).await?;
        Ok(Self { newer: (!is_same).then_some(own) })
    }
}

impl<H: Host> Installer<'_, H> {
    async fn observe(
        &self,
        plan: &InstallPlan,
        program: &Program,
    ) -> Result<(Installed, Progress), InstallError> {
        let own = self.server_of(&self.settings.kubeconfig).await?;
        let bootstrap = self.server_of(&self.settings.bootstrap_kubeconfig()).await?;
        let is_written = self.host.read_file(AGENT_PLIST).await? == Some(plan.job.to_plist()?);
        let registration = Launchctl::of(self.host).print(&agent_label()).await?;
        let is_started = self.wanted(plan).await?.outdated(self.started().await?.as_ref())
            == Outdated::Nothing
            && !self.mac.exists(PREVIOUS).await?;
        let has_others = plan.is_given
            && self.host.read_file(&plan.credentials.path).await?.as_deref()
                != Some(plan.credentials.contents.as_bytes());
        let progress = if own.is_some() { look(self.settings, None).await } else { Progress::NoCertificate };
        let installed = Installed {
            has_credentials: own.is_some() && !has_others,
            is_ready: matches!(progress, Progress::Ready { .. }),
            server: own.or(bootstrap),
            is_running_as_wanted: is_written
                && is_started
                && program.newer.is_none()
                && registration.pid().is_some(),
        };
        Ok((installed, progress))
    }

    /// What is to be started, with the program that is installed.
    async fn wanted(&self, plan: &InstallPlan) -> Result<Started, InstallError> {
        let program = self.mac.sha256(AGENT_BINARY).await?;
        let credentials = plan.is_given.then_some(plan.credentials.contents.as_str());
        Ok(Started::new(&program, &plan.job.to_plist()?, credentials))
    }

    /// What was started, as far as it was noted.
    async fn started(&self) -> Result<Option<Started>, InstallError> {
        let note = self.host.read_file(started::NOTE).await?;
        Ok(note.and_then(|bytes| Started::parse(&String::from_utf8_lossy(&bytes))))
    }

    async fn note(&self, started: &Started) -> Result<(), InstallError> {
        let access = Access::root(0o600);
        Ok(self.host.write_file(started::NOTE, started.to_string().as_bytes(), &access).await?)
    }

    /// Rolls the job. Returns its process, and the last renewal of the Lease by the process before it.
    async fn roll(
        &self,
        plan: &InstallPlan,
        has_new_credentials: bool,
    ) -> Result<(u32, Option<String>), InstallError> {
        let wanted = self.wanted(plan).await?;
        let has_previous = self.mac.exists(PREVIOUS).await?;
        let mut outdated = wanted.outdated(self.started().await?.as_ref());
        if outdated == Outdated::Nothing && (has_previous || has_new_credentials) {
            outdated = Outdated::Process;
        }
        // The note is taken back first: a roll that is broken off may have started another process than the one that it tells of.
        if outdated == Outdated::Definition {
            self.mac.remove(&[started::NOTE]).await?;
        } else {
            self.note(&wanted.with_unknown_program()).await?;
        }
        let previous_program = has_previous.then_some(PREVIOUS);
        let rolled =
            roll(self.host, &Roll { job: &plan.job, plist: AGENT_PLIST, outdated, previous_program }).await?;
        self.mac.remove(&[PREVIOUS]).await?;
        self.note(&wanted).await?;
        Ok(match rolled {
            Rolled::Unchanged { pid } => (pid, None),
            Rolled::Restarted { pid } | Rolled::Registered { pid } => (pid, renewal(self.settings).await),
        })
    }

    /// The API server of a kubeconfig on this Mac.
    async fn server_of(&self, path: &Path) -> Result<Option<String>, InstallError> {
        let Some(bytes) = self.host.read_file(&path.to_string_lossy()).await? else { return Ok(None) };
        let kubeconfig = Kubeconfig::from_yaml(&String::from_utf8_lossy(&bytes)).ok();
        Ok(kubeconfig.as_ref().and_then(server).map(str::to_owned))
    }

    /// Writes all but the credentials.
    async fn write_files(&self, plan: &InstallPlan) -> Result<(), InstallError> {
        for directory in &plan.directories {
            self.mac.make_directory(directory, &plan.user.name, "700").await?;
        }
        for file in &plan.files {
            if !file.is_kept || self.host.read_file(&file.path).await?.is_none() {
                self.write(file).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, file: &PlannedFile) -> Result<(), InstallError> {
        Ok(self.host.write_file(&file.path, file.contents.as_bytes(), &file.access).await?)
    }
}

/// The label of the agent's job.
pub(crate) fn agent_label() -> Label {
    #[expect(clippy::expect_used, reason = "the constant is a label, and a test of its crate says so")]
    AGENT_LABEL.parse().expect("a label")
}

/// Waits until the Node is Ready, and tells what it waits for whenever that changes. Returns whether the Node is cordoned.
async fn wait_until_ready(
    settings: &AgentSettings,
    renewal: Option<&str>,
    timeout: Duration,
    mut say: impl FnMut(&str),
) -> Result<bool, InstallError> {
    let start = Instant::now();
    let mut told = None;
    loop {
        let progress = look(settings, renewal).await;
        if let Progress::Ready { is_cordoned } = progress {
            return Ok(is_cordoned);
        }
        if start.elapsed() >= timeout {
            return Err(InstallError::NotReady { timeout, progress, log: launchd::AGENT_LOG });
        }
        if told.as_ref() != Some(&progress) {
            say(&progress.to_string());
            told = Some(progress);
        }
        sleep(POLL).await;
    }
}
