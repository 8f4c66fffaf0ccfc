//! The `tart-provider` program: from its arguments to its exit code.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use launchd::{AGENT_PLIST, Host};
use tokio::runtime::Builder;
use tracing_subscriber::EnvFilter;

use crate::artifact::Artifact;
use crate::cli::{Cli, ConfigArgs, HostCommand, ManagerArgs, SshArgs, SubCommand, password};
use crate::error_chain::chain;
use crate::host::firewall::FirewallConfig;
use crate::host::{
    AgentSettings, Credential, HostConfig, Inputs, Mode, NodeExporter, Secret, Step, Tart, converge,
    prepare_steps,
};
use crate::manager::{self, ApiMachines};
use crate::pool::Machines;
use crate::progress;
use crate::ssh::{Connection, HostKeyPolicy, SshError, SshKey};

/// Runs what the command line asks for.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let level = match &cli.command {
        SubCommand::Host(_) => "warn",
        SubCommand::Manager(_) => "info",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let runtime = match Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}")),
    };
    let ended = runtime.block_on(async {
        match cli.command {
            SubCommand::Host(command) => run_host(command).await,
            SubCommand::Manager(args) => Box::pin(run_manager(*args)).await.map(|()| true),
        }
    });
    // Work that is broken off is safe to repeat.
    runtime.shutdown_background();
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => fail(&message),
    }
}

fn fail(message: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "tart-provider: {message}");
    ExitCode::from(2)
}

/// Runs until it is told to end.
async fn run_manager(args: ManagerArgs) -> Result<(), String> {
    let client = match &args.kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| chain(&error))?;
            let config =
                kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
            Client::try_from(config.map_err(|error| chain(&error))?)
        }
        None => Client::try_default().await,
    };
    let client = client.map_err(|error| chain(&error))?;
    let machines: Arc<dyn Machines> = Arc::new(ApiMachines(client.clone()));
    let pool = args.pool(&client, Arc::clone(&machines))?;
    Box::pin(manager::run(args.config()?, client, pool, machines)).await
}

/// Whether the Mac is as it should be at the end.
async fn run_host(command: HostCommand) -> Result<bool, String> {
    match command {
        HostCommand::Prepare(args) => {
            let steps = prepare_steps(&args.ssh.ssh.user);
            let read = if args.password_stdin {
                password::from_stdin()
            } else {
                password::ask(&format!("password of {}", args.ssh.ssh))
            };
            let inputs = Inputs { password: Some(read.map_err(|error| chain(&error))?) };
            take(&args.ssh, connect(&args.ssh).await?, &steps, Mode::Apply(inputs)).await
        }
        HostCommand::Plan(args) => {
            let steps = steps(&args)?;
            take(&args.ssh, connect(&args.ssh).await?, &steps, Mode::Plan).await
        }
        HostCommand::Roll(args) => {
            let steps = steps(&args)?;
            let mac = connect(&args.ssh).await?;
            let plist = mac.read_file(AGENT_PLIST).await.map_err(|error| chain(&error))?;
            if plist.is_none() {
                return Err(format!(
                    "{} has no agent yet; `tart-provider host apply` installs it",
                    mac.address()
                ));
            }
            take(&args.ssh, mac, &steps, Mode::Apply(Inputs::default())).await
        }
        HostCommand::Apply(args) => {
            let read = args.password_stdin.then(password::from_stdin).transpose();
            let inputs = Inputs { password: read.map_err(|error| chain(&error))? };
            let (ssh, steps) = (&args.config.ssh, steps(&args.config)?);
            take(ssh, connect(ssh).await?, &steps, Mode::Apply(inputs)).await
        }
    }
}

/// The steps for a Mac. The hash tells two configurations apart, in logs and by eye.
fn steps(args: &ConfigArgs) -> Result<Vec<Step>, String> {
    let config = config(args)?;
    let _ = writeln!(io::stdout(), "configuration {}", config.hash().short());
    Ok(config.steps())
}

/// Reads everything that the Mac should get.
fn config(args: &ConfigArgs) -> Result<HostConfig, String> {
    let artifact = |path| Artifact::read(path).map_err(|error| chain(&error));
    let secret = |path: &std::path::Path| {
        let bytes =
            std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Ok::<_, String>(Secret::new(bytes))
    };
    let credential = match (&args.credential.kubeconfig, &args.credential.bootstrap_kubeconfig) {
        (Some(path), _) => Credential::Kubeconfig(secret(path)?),
        (None, Some(path)) => Credential::Bootstrap(secret(path)?),
        (None, None) => return Err("--kubeconfig or --bootstrap-kubeconfig is missing".to_owned()),
    };
    let tart = match (&args.tart_archive, &args.tart_version) {
        (Some(archive), Some(version)) => {
            Tart::Archive { archive: artifact(archive)?, version: version.clone() }
        }
        _ => Tart::Installed(args.tart_binary.clone()),
    };
    let node_exporter = match &args.node_exporter {
        Some(program) => {
            Some(NodeExporter { program: artifact(program)?, listen: args.node_exporter_listen.clone() })
        }
        None => None,
    };
    Ok(HostConfig {
        user: args.ssh.ssh.user.clone(),
        node_name: args.node_name.clone(),
        credential,
        agent: artifact(&args.agent_binary)?,
        settings: AgentSettings {
            provider_id: args.provider_id.clone(),
            node_labels: args.node_labels.clone(),
            max_pods: args.max_pods,
            is_builder: args.builder,
            further: args.agent_flag.clone(),
        },
        tart,
        firewall: FirewallConfig { allowed: args.allow_vm_destination.clone(), ..FirewallConfig::default() },
        dhcp_lease_seconds: args.dhcp_lease_time,
        node_exporter,
    })
}

/// Takes the Mac through the steps, and prints how each goes. Whether none failed.
async fn take(args: &SshArgs, mac: Connection, steps: &[Step], mode: Mode) -> Result<bool, String> {
    let mut out = io::stdout();
    let host_key = match args.host_key {
        Some(_) => String::new(),
        None => format!(" (trusted with the host key {}; --host-key pins it)", mac.fingerprint()),
    };
    let _ = writeln!(out, "{}{host_key}", mac.address());
    let report = converge(&mac, steps, &mode, |name, outcome| match outcome {
        Some(outcome) => progress::print_outcome(&mut io::stdout(), name, outcome),
        None => progress::print_start(&mut io::stdout(), name),
    })
    .await;
    mac.close().await;
    let _ = writeln!(out, "{}", progress::summary(&report, &mode));
    Ok(report.failed() == 0)
}

async fn connect(args: &SshArgs) -> Result<Connection, String> {
    let key = SshKey::read(&args.identity).map_err(|error| chain(&error))?;
    let policy = args.host_key.clone().map_or(HostKeyPolicy::TrustOnFirstUse, HostKeyPolicy::Pinned);
    Connection::open(&args.ssh, &key, &policy).await.map_err(|error| match &error {
        SshError::KeyRefused { key, .. } => format!("{error}.\n{}", progress::recovery(key)),
        _ => chain(&error),
    })
}
