//! What an installation is to be: the job, its directories and its files. And what is to be done with one that is there.

use launchd::{
    AGENT_KUBECONFIG, AGENT_LOG, AGENT_NEWSYSLOG, Access, ConsoleUser, Job, agent_job, newsyslog_entry,
};

use super::AgentSettings;
use super::credentials::{Credentials, CredentialsError};

/// An installation.
#[derive(Debug, Clone)]
pub(crate) struct InstallPlan {
    /// The user that the agent runs as.
    pub(crate) user: ConsoleUser,
    /// The agent's job.
    pub(crate) job: Job,
    /// Directories of the user, which only the user can read.
    pub(crate) directories: Vec<String>,
    /// Files, in the order in which they are written.
    pub(crate) files: Vec<PlannedFile>,
    /// The kubeconfig, or that of the bootstrap. It is written last: with it the Mac counts as joined.
    pub(crate) credentials: PlannedFile,
    /// Whether the agent uses these credentials as they are.
    pub(crate) is_given: bool,
}

/// A file of an installation.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PlannedFile {
    pub(crate) path: String,
    pub(crate) contents: String,
    pub(crate) access: Access,
    /// Whether a file that is there stays as it is.
    pub(crate) is_kept: bool,
}

impl std::fmt::Debug for PlannedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Some have credentials.
        f.debug_struct("PlannedFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Plans an installation for a user.
pub(crate) fn plan(
    settings: &AgentSettings,
    user: ConsoleUser,
    credentials: &Credentials,
) -> Result<InstallPlan, CredentialsError> {
    let bootstrap = settings.bootstrap_kubeconfig();
    let (bootstrap, kubeconfig) = (text(&bootstrap), text(&settings.kubeconfig));
    let mut flags = settings.flags.clone();
    if !has_flag(&flags, "--node-name") {
        // The host name may change with the network; the Node's may not.
        flags.push(format!("--node-name={}", settings.node));
    }
    if !has_flag(&flags, "--tart-binary") {
        flags.push(format!("--tart-binary={}", settings.tart.display()));
    }
    flags.push(format!("--kubeconfig={kubeconfig}"));
    let own = |contents: String, path: String, is_kept| PlannedFile {
        path,
        contents,
        access: Access::user(&user.name, 0o600),
        is_kept,
    };
    let is_given = matches!(credentials, Credentials::Given(_));
    let credentials = match credentials {
        Credentials::Bootstrap(_) => {
            flags.push(format!("--bootstrap-kubeconfig={bootstrap}"));
            own(credentials.text()?, bootstrap, false)
        }
        Credentials::Given(_) => own(credentials.text()?, kubeconfig, false),
    };
    // The user cannot make a file there.
    let log = own(String::new(), AGENT_LOG.to_owned(), true);
    let newsyslog = PlannedFile {
        path: AGENT_NEWSYSLOG.to_owned(),
        contents: newsyslog_entry(&user),
        access: Access::root(0o644),
        is_kept: false,
    };
    let directory = AGENT_KUBECONFIG.rsplit_once('/').map_or("/", |(directory, _)| directory);
    Ok(InstallPlan {
        job: agent_job(&user, flags),
        directories: vec![directory.to_owned(), text(&settings.state_dir)],
        files: vec![log, newsyslog],
        credentials,
        is_given,
        user,
    })
}

fn has_flag(flags: &[String], name: &str) -> bool {
    flags.iter().any(|flag| flag.split('=').next() == Some(name))
}

fn text(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}

/// What is on the Mac already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Installed {
    /// The API server of the agent's kubeconfig, or of the one for its bootstrap.
    pub(crate) server: Option<String>,
    /// Whether the agent has its own credentials, and they are not to be replaced by others.
    pub(crate) has_credentials: bool,
    /// Whether the Node is Ready with them.
    pub(crate) is_ready: bool,
    /// Whether launchd runs the job as it is to be.
    pub(crate) is_running_as_wanted: bool,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InstallDecision {
    /// Everything.
    Install,
    /// The credentials stay; all else is brought up to date.
    Update,
    /// Nothing.
    AlreadyJoined,
    /// Nothing, because this Mac is a Node of another cluster.
    OtherCluster(String),
}

/// Decides what is to be done on a Mac that is to join `server`.
pub(crate) fn decide(installed: &Installed, server: &str) -> InstallDecision {
    match &installed.server {
        Some(other) if !is_same_server(other, server) => InstallDecision::OtherCluster(other.clone()),
        // Credentials of an agent whose Node is not Ready may be the reason.
        Some(_) if installed.has_credentials && installed.is_ready => {
            if installed.is_running_as_wanted {
                InstallDecision::AlreadyJoined
            } else {
                InstallDecision::Update
            }
        }
        _ => InstallDecision::Install,
    }
}

fn is_same_server(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::config::Kubeconfig;

    fn settings(flags: &[&str]) -> AgentSettings {
        AgentSettings {
            node: "mac-1".parse().unwrap(),
            kubeconfig: AGENT_KUBECONFIG.into(),
            state_dir: "/var/lib/tart-kubelet".into(),
            tart: "/opt/homebrew/bin/tart".into(),
            metrics: None,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
        }
    }

    fn arguments(flags: &[&str], credentials: &Credentials) -> Vec<String> {
        let plan = plan(&settings(flags), ConsoleUser::named("m1"), credentials).unwrap();
        plan.job.program_arguments[1..].to_vec()
    }

    #[test]
    fn the_job_has_the_flags_that_were_given_and_those_that_must_not_change() {
        let bootstrap = Credentials::Bootstrap(Kubeconfig::default());
        assert_eq!(
            arguments(&["--max-pods=1"], &bootstrap),
            [
                "--log-file=/var/log/tart-kubelet.log",
                "--max-pods=1",
                "--node-name=mac-1",
                "--tart-binary=/opt/homebrew/bin/tart",
                "--kubeconfig=/etc/tart-kubelet/kubeconfig",
                "--bootstrap-kubeconfig=/etc/tart-kubelet/bootstrap-kubeconfig",
            ]
        );
        let given = Credentials::Given(Kubeconfig::default());
        let flags = ["--node-name=other", "--tart-binary=/t"];
        assert_eq!(
            arguments(&flags, &given),
            [
                "--log-file=/var/log/tart-kubelet.log",
                "--node-name=other",
                "--tart-binary=/t",
                "--kubeconfig=/etc/tart-kubelet/kubeconfig",
            ]
        );
    }

    #[test]
    fn files_with_credentials_are_the_users_alone_and_no_debug_output_shows_them() {
        let credentials = Credentials::Bootstrap(Kubeconfig::default());
        let plan = plan(&settings(&[]), ConsoleUser::named("m1"), &credentials).unwrap();
        let [log, newsyslog] = &plan.files[..] else { panic!("{plan:?}") };
        let kubeconfig = &plan.credentials;
        assert_eq!(kubeconfig.path, "/etc/tart-kubelet/bootstrap-kubeconfig");
        assert_eq!(kubeconfig.access, Access::user("m1", 0o600));
        assert!(log.is_kept && log.access == Access::user("m1", 0o600));
        assert_eq!(newsyslog.access, Access::root(0o644));
        assert_eq!(plan.directories, ["/etc/tart-kubelet", "/var/lib/tart-kubelet"]);
        assert!(!format!("{kubeconfig:?}").contains("apiVersion"));
    }

    #[test]
    fn what_is_done_depends_on_what_is_there() {
        let server = "https://a:6443";
        let installed = |server: Option<&str>, has_credentials, is_ready, is_running_as_wanted| Installed {
            server: server.map(str::to_owned),
            has_credentials,
            is_ready,
            is_running_as_wanted,
        };
        let other = || InstallDecision::OtherCluster("https://b:6443".into());
        for (there, expected) in [
            (installed(None, false, false, false), InstallDecision::Install),
            // A join that broke off before the certificate came.
            (installed(Some(server), false, false, false), InstallDecision::Install),
            (installed(Some(server), false, false, true), InstallDecision::Install),
            (installed(Some("https://a:6443/"), true, true, true), InstallDecision::AlreadyJoined),
            (installed(Some(server), true, true, false), InstallDecision::Update),
            // Its certificate has expired, or it has never become Ready.
            (installed(Some(server), true, false, true), InstallDecision::Install),
            (installed(Some(server), true, false, false), InstallDecision::Install),
            (installed(Some("https://b:6443"), true, true, true), other()),
            (installed(Some("https://b:6443"), false, false, false), other()),
        ] {
            assert_eq!(decide(&there, server), expected, "{there:?}");
        }
    }
}
