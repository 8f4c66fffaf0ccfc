//! `tart-kubelet join`, `install` and `leave`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use clap::builder::Resettable;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use launchd::{AGENT_BINARY, AGENT_KUBECONFIG, AGENT_PLIST, Host, Job, LocalHost};

use super::install::{DoctorArgs, InstallArgs, InstallOptions, JoinArgs, LeaveArgs, StatusArgs};
use super::{AgentArgs, Cli, agent_flags};
use crate::install::AgentSettings;
use crate::install::apply::{InstallError, InstallOutcome, install};
use crate::install::credentials::{self, Credentials, CredentialsError};
use crate::install::discovery::{BadToken, BootstrapToken, Discovery, DiscoveryError, discover};
use crate::install::doctor::{Finding, Fix, Level, judge, mend, observe, render};
use crate::install::leave::{LeaveError, LeaveOptions, LeaveOutcome, leave};
use crate::install::status::Status;
use crate::names::BadNodeName;
use crate::os::host::HostFacts;
use crate::state::StateDir;

/// A bootstrap token is 23 bytes long.
const MAX_TOKEN: u64 = 4096;

/// Why a Mac does not join or leave.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// There is no token.
    #[error("give the bootstrap token with --token, or with --token-file, where `-` is standard input")]
    NoToken,
    /// The token's file cannot be read.
    #[error("cannot read the token from {0}")]
    TokenFile(String, #[source] io::Error),
    /// The token is none.
    #[error(transparent)]
    Token(#[from] BadToken),
    /// `join` writes the kubeconfig itself.
    #[error("`join` gets the credentials from the cluster; to give a kubeconfig use `tart-kubelet install`")]
    KubeconfigGiven,
    /// `install` has no kubeconfig.
    #[error("give a kubeconfig with --kubeconfig or --bootstrap-kubeconfig, or use `tart-kubelet join`")]
    NoKubeconfig,
    /// The job that is installed has no flags of an agent.
    #[error("cannot read the flags of the installed job {AGENT_PLIST}")]
    Flags,
    /// This machine's name is not one for a Node.
    #[error("this machine's name cannot be a Node's; give one with --node-name")]
    NodeName(#[from] BadNodeName),
    /// The cluster is not known.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// This Mac cannot run VMs.
    #[error(
        "this Mac is not ready to be a Node: {0} (`tart-kubelet doctor` looks again; --ignore-preflight-errors goes on)"
    )]
    Preflight(String),
    /// The installation failed.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The Mac has not left.
    #[error(transparent)]
    Leave(#[from] LeaveError),
}

/// Joins a cluster by a bootstrap token.
pub(crate) async fn join(
    args: &JoinArgs,
    matches: &ArgMatches,
    mut say: impl FnMut(&str),
) -> Result<(), JoinError> {
    if agent_flags::is_given(matches, "kubeconfig") || agent_flags::is_given(matches, "bootstrap_kubeconfig")
    {
        return Err(JoinError::KubeconfigGiven);
    }
    let settings = settings(&args.agent, agent_flags::given(matches)).await?;
    let token = token(args)?;
    let discovery = Discovery {
        endpoint: args.api_server.clone(),
        token: token.clone(),
        ca_cert_hashes: args.discovery_token_ca_cert_hash.clone(),
        skips_ca_verification: args.discovery_token_unsafe_skip_ca_verification,
    };
    say(&format!("asking {} for the cluster's information", args.api_server));
    let found = discover(&discovery).await?;
    say(&format!("the token {} and the CA are those of the cluster {}", token.id(), found.server()));
    let credentials = Credentials::Bootstrap(found.bootstrap_kubeconfig(&token));
    run(&settings, &credentials, &args.options, say).await
}

/// Installs the agent with a kubeconfig.
pub(crate) async fn install_with_kubeconfig(
    args: &InstallArgs,
    matches: &ArgMatches,
    say: impl FnMut(&str),
) -> Result<(), JoinError> {
    let settings = settings(&args.agent, agent_flags::given(matches)).await?;
    // A variable of the user's environment is not meant for the agent.
    let is_kubeconfig_given = agent_flags::is_given(matches, "kubeconfig");
    let credentials = match &args.agent.bootstrap_kubeconfig {
        Some(bootstrap) => Credentials::Bootstrap(credentials::read_bootstrap(bootstrap)?),
        None if is_kubeconfig_given => Credentials::Given(credentials::read(&args.agent.kubeconfig)?),
        None => return Err(JoinError::NoKubeconfig),
    };
    run(&settings, &credentials, &args.options, say).await
}

async fn run(
    settings: &AgentSettings,
    credentials: &Credentials,
    options: &InstallOptions,
    mut say: impl FnMut(&str),
) -> Result<(), JoinError> {
    let node = &settings.node;
    if options.dry_run {
        let server = credentials.server().unwrap_or_default();
        say(&format!("this Mac would join {server} as the Node {node}; nothing has been changed"));
        return Ok(());
    }
    require_root()?;
    preflight(settings, options.ignore_preflight_errors, &mut say).await?;
    let is_cordoned = match install(&LocalHost, settings, credentials, options.timeout, &mut say).await? {
        InstallOutcome::AlreadyJoined { server, is_cordoned } => {
            say(&format!(
                "this Mac has joined {server} already, as the Node {node}; nothing has been changed"
            ));
            is_cordoned
        }
        InstallOutcome::Ready { server, is_cordoned } => {
            say(&format!("this Mac has joined {server}: the Node {node} is ready"));
            is_cordoned
        }
    };
    if is_cordoned {
        say(&format!("the Node is cordoned, and gets no Pods: `kubectl uncordon {node}` ends that"));
    }
    Ok(())
}

/// Looks whether this Mac can run VMs, and tells what it lacks.
async fn preflight(
    settings: &AgentSettings,
    ignores_errors: bool,
    mut say: impl FnMut(&str),
) -> Result<(), JoinError> {
    let findings = judge(&observe(&LocalHost, settings).await.map_err(InstallError::from)?);
    // The agent is about to be installed, and to get credentials.
    let is_cured = |finding: &Finding| finding.is_cured_by_install() || finding.is_of_credentials();
    let lacks = findings.into_iter().filter(|finding| finding.level != Level::Ok && !is_cured(finding));
    let (broken, warnings): (Vec<Finding>, Vec<Finding>) =
        lacks.partition(|finding| finding.level == Level::Broken && !ignores_errors);
    for finding in warnings {
        say(&format!("warning: {finding}"));
    }
    if broken.is_empty() {
        return Ok(());
    }
    let broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
    Err(JoinError::Preflight(broken.join("; ")))
}

/// Says how this Mac is: whether it has all that a Node needs. With `fix`, mends what can be mended first.
pub(crate) async fn doctor(args: &DoctorArgs) -> Result<(String, bool), JoinError> {
    let settings = installed_settings(&LocalHost).await?;
    let mut findings = judge(&observe(&LocalHost, &settings).await.map_err(InstallError::from)?);
    let fixes: Vec<Fix> = findings.iter().filter_map(|finding| finding.fix).collect();
    if args.fix && !fixes.is_empty() {
        require_root()?;
        for fix in fixes {
            mend(&LocalHost, fix).await.map_err(InstallError::from)?;
        }
        findings = judge(&observe(&LocalHost, &settings).await.map_err(InstallError::from)?);
    }
    let is_well = findings.iter().all(|finding| finding.level != Level::Broken);
    Ok((render(&findings, args.output), is_well))
}

/// Says how the agent of this Mac and its Node are.
pub(crate) async fn status(args: &StatusArgs) -> Result<String, JoinError> {
    let settings = installed_settings(&LocalHost).await?;
    let status = Status::observe(&LocalHost, &settings).await?;
    Ok(status.render(args.output))
}

/// Leaves the cluster.
pub(crate) async fn leave_cluster(args: &LeaveArgs, mut say: impl FnMut(&str)) -> Result<(), JoinError> {
    require_root()?;
    let settings = installed_settings(&LocalHost).await?;
    let options = LeaveOptions { drain: args.drain.then_some(args.drain_timeout), is_forced: args.force };
    match leave(&LocalHost, &settings, options, &mut say).await? {
        LeaveOutcome::NotJoined => say("this Mac has not joined a cluster"),
        LeaveOutcome::Left { is_cordoned } => {
            let node = &settings.node;
            say(&format!(
                "this Mac has left; `kubectl delete node {node}` removes its Node. Images of VMs stay in tart's cache, and so does the \
                 program {AGENT_BINARY}"
            ));
            if is_cordoned {
                say(&format!(
                    "the Node stays cordoned: if this Mac joins again, `kubectl uncordon {node}` lets Pods come"
                ));
            }
        }
    }
    Ok(())
}

fn require_root() -> Result<(), InstallError> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(InstallError::NotRoot) }
}

fn token(args: &JoinArgs) -> Result<BootstrapToken, JoinError> {
    let text = match (&args.token, &args.token_file) {
        (Some(token), _) => token.clone(),
        (None, Some(path)) => {
            read_token(path).map_err(|source| JoinError::TokenFile(path.display().to_string(), source))?
        }
        (None, None) => return Err(JoinError::NoToken),
    };
    Ok(text.parse()?)
}

fn read_token(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().take(MAX_TOKEN).read_to_string(&mut text)?;
    } else {
        File::open(path)?.take(MAX_TOKEN).read_to_string(&mut text)?;
    }
    Ok(text)
}

async fn settings(args: &AgentArgs, flags: Vec<String>) -> Result<AgentSettings, BadNodeName> {
    // Homebrew puts it there on Macs with Apple silicon.
    let homebrew = Path::new("/opt/homebrew/bin/tart");
    let is_named = flags.iter().any(|flag| flag.starts_with("--tart-binary"));
    let is_homebrew = !is_named && !args.tart_binary.exists() && homebrew.exists();
    // An agent that ran here before keeps its Node.
    let kept = StateDir::at(&args.state_dir).node_name().ok().flatten();
    Ok(AgentSettings {
        node: args.node_name(kept, &HostFacts::discover().await.hostname)?,
        kubeconfig: AGENT_KUBECONFIG.into(),
        state_dir: args.state_dir.clone(),
        tart: if is_homebrew { homebrew.to_owned() } else { args.tart_binary.clone() },
        metrics: args.host.metrics_bind_address.0,
        flags,
    })
}

/// The settings of the agent that is installed on a Mac: the flags of its job, or the usual ones.
pub(crate) async fn installed_settings<H: Host>(host: &H) -> Result<AgentSettings, JoinError> {
    let plist = host.read_file(AGENT_PLIST).await.map_err(InstallError::from)?;
    let job = plist.and_then(|plist| Job::from_plist(&plist).ok());
    let arguments = job.map_or_else(|| vec!["tart-kubelet".to_owned()], |job| job.program_arguments);
    // A job of another release may have flags that this one does not know.
    let usual = || agent_args(&["tart-kubelet".to_owned()]);
    let args = agent_args(&arguments).or_else(usual).ok_or(JoinError::Flags)?;
    let kubeconfig = args.kubeconfig.clone();
    Ok(AgentSettings { kubeconfig, ..settings(&args, arguments[1..].to_vec()).await? })
}

/// The agent's flags of a command line. Variables of the user's environment are not the job's.
fn agent_args(arguments: &[String]) -> Option<AgentArgs> {
    let command = Cli::command().mut_args(|argument| argument.env(Resettable::Reset));
    let matches = command.try_get_matches_from(arguments).ok()?;
    Some(Cli::from_arg_matches(&matches).ok()?.agent)
}
