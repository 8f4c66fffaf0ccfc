//! The `tart-provider` program: from its arguments to its exit code.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use launchd::{AGENT_PLIST, Host};
use tokio::runtime::Builder;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::artifact::Artifact;
use crate::cli::{Cli, ConfigArgs, HostCommand, KeyArgs, ManagerArgs, SubCommand, password};
use crate::error_chain::chain;
use crate::host::firewall::FirewallConfig;
use crate::host::{
    ActionsRunner, AgentSettings, Credential, HostConfig, Inputs, Mode, NodeExporter, Secret, Step,
    Tailscale, Tart, converge, prepare_steps,
};
use crate::manager::{self, ApiMachines};
use crate::pool::Machines;
use crate::progress::{self, Printer};
use crate::rollout::{self, Fared};
use crate::ssh::{Connection, HostKeyPolicy, SshAddress, SshError, SshKey};

/// Runs what the command line asks for.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let level = match &cli.command {
        SubCommand::Host(_) => LevelFilter::WARN,
        SubCommand::Manager(_) => LevelFilter::INFO,
    };
    let chosen = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let filter = chosen.unwrap_or_else(|| Targets::new().with_default(level));
    registry().with(fmt::layer().with_writer(io::stderr)).with(filter).init();
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

/// Whether the Macs are as they should be at the end.
async fn run_host(command: HostCommand) -> Result<bool, String> {
    match command {
        HostCommand::Prepare(args) => {
            let steps = prepare_steps(&args.ssh.user);
            let read = if args.password_stdin {
                password::from_stdin()
            } else {
                password::ask(&format!("password of {}", args.ssh))
            };
            let inputs = Inputs { password: Some(read.map_err(|error| chain(&error))?), ..Inputs::default() };
            let mac = connect(&args.ssh, &args.keys).await?;
            Ok(take(mac, &steps, &Mode::Apply(inputs), &Printer::of_one()).await)
        }
        HostCommand::Plan(args) => on_macs(&args, &Mode::Plan, Begin::Anywhere).await,
        HostCommand::Roll(args) => {
            let mode = Mode::Apply(inputs(&args, None)?);
            on_macs(&args, &mode, Begin::WithAnAgent).await
        }
        HostCommand::Apply(args) => {
            if args.password_stdin && args.config.ssh.len() > 1 {
                return Err(
                    "--password-stdin is for one Mac; run `tart-provider host prepare` for each before"
                        .to_owned(),
                );
            }
            let read = args.password_stdin.then(password::from_stdin).transpose();
            let password = read.map_err(|error| chain(&error))?;
            on_macs(&args.config, &Mode::Apply(inputs(&args.config, password)?), Begin::Anywhere).await
        }
    }
}

/// What a Mac must have to be begun.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    Anywhere,
    WithAnAgent,
}

/// One Mac of those that the command line names.
struct Mac<'a> {
    address: &'a SshAddress,
    steps: Vec<Step>,
    printer: Printer,
}

/// Takes the Macs that the command line names through their steps.
async fn on_macs(args: &ConfigArgs, mode: &Mode, begin: Begin) -> Result<bool, String> {
    if args.ssh.len() > 1 && args.keys.host_key.is_some() {
        return Err("--host-key is for one Mac; --known-hosts has the keys of several".to_owned());
    }
    if args.ssh.len() > 1 && args.provider_id.is_some() {
        return Err("--provider-id is for one Mac: no two have the same".to_owned());
    }
    let config = config(args)?;
    let mut macs = Vec::new();
    for target in &args.ssh {
        let name = target.node.as_ref().or_else(|| args.node_name.as_ref().filter(|_| args.ssh.len() == 1));
        let name =
            name.ok_or_else(|| format!("{} has no name for its Node; put NODE= before it", target.address))?;
        let config =
            HostConfig { user: target.address.user.clone(), node_name: name.clone(), ..config.clone() };
        let printer = if args.ssh.len() > 1 { Printer::of_several(name) } else { Printer::of_one() };
        // The hash tells two configurations apart, in logs and by eye.
        printer.line(&format!("configuration {}", config.hash().short()));
        macs.push(Mac { address: &target.address, steps: config.steps(), printer });
    }
    let fared = rollout::each(&macs, args.concurrency.into(), args.keep_going, async |mac: &Mac<'_>| {
        let connection = connect(mac.address, &args.keys).await?;
        if begin == Begin::WithAnAgent {
            let plist = connection.read_file(AGENT_PLIST).await.map_err(|error| chain(&error))?;
            if plist.is_none() {
                let address = connection.address();
                return Err(format!("{address} has no agent yet; `tart-provider host apply` installs it"));
            }
        }
        Ok(take(connection, &mac.steps, mode, &mac.printer).await)
    })
    .await;
    if let [Fared::Refused(words)] = fared.as_slice() {
        return Err(words.clone());
    }
    for (mac, fared) in macs.iter().zip(&fared) {
        if let Fared::Refused(words) = fared {
            mac.printer.line(words);
        }
    }
    if macs.len() > 1 {
        let all: Vec<_> = macs.iter().map(|mac| mac.printer.name()).zip(&fared).collect();
        Printer::of_one().line(&progress::summary_of_several(&all));
    }
    if fared.iter().all(|fared| matches!(fared, Fared::Refused(_) | Fared::NotBegun)) {
        return Err("nothing could be done".to_owned());
    }
    Ok(fared.iter().all(|fared| *fared == Fared::Well))
}

/// What steps may need once.
fn inputs(args: &ConfigArgs, password: Option<Secret>) -> Result<Inputs, String> {
    let secret = |path: &Option<PathBuf>| path.as_deref().map(read_secret).transpose();
    Ok(Inputs {
        password,
        tailscale_auth_key: secret(&args.tailscale.tailscale_auth_key_file)?,
        runner_token: secret(&args.runner.actions_runner_token_file)?,
    })
}

fn read_secret(path: &Path) -> Result<Secret, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(Secret::new(bytes))
}

/// Reads everything that Macs should get. The name of the Node and the user are each Mac's own.
fn config(args: &ConfigArgs) -> Result<HostConfig, String> {
    let artifact = |path: &Path| Artifact::read(path).map_err(|error| chain(&error));
    let credential = match (&args.credential.kubeconfig, &args.credential.bootstrap_kubeconfig) {
        (Some(path), _) => Credential::Kubeconfig(read_secret(path)?),
        (None, Some(path)) => Credential::Bootstrap(read_secret(path)?),
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
    let tailscale = match (&args.tailscale.tailscale, &args.tailscale.tailscaled) {
        (Some(tailscale), Some(tailscaled)) => Some(Tailscale {
            tailscale: artifact(tailscale)?,
            tailscaled: artifact(tailscaled)?,
            tags: args.tailscale.tailscale_tag.clone(),
            accept_routes: args.tailscale.tailscale_accept_routes,
        }),
        _ => None,
    };
    let actions_runner = match (&args.runner.actions_runner, &args.runner.actions_runner_url) {
        (Some(archive), Some(url)) => Some(ActionsRunner {
            archive: artifact(archive)?,
            url: url.clone(),
            labels: args.runner.actions_runner_label.clone(),
        }),
        _ => None,
    };
    Ok(HostConfig {
        user: String::new(),
        node_name: String::new(),
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
        tailscale,
        actions_runner,
    })
}

/// Takes the Mac through the steps, and prints how each goes. Whether none failed.
async fn take(mut mac: Connection, steps: &[Step], mode: &Mode, printer: &Printer) -> bool {
    let host_key = if mac.is_learned() {
        format!(
            " (its host key {} is new here, is trusted from now on, and was added to ~/.ssh/known_hosts)",
            mac.fingerprint()
        )
    } else {
        String::new()
    };
    printer.line(&format!("{}{host_key}", mac.address()));
    mac.on_upload(printer.uploads());
    let report = converge(&mac, steps, mode, |name, outcome| match outcome {
        Some(outcome) => printer.outcome(name, outcome),
        None => printer.start(name),
    })
    .await;
    mac.close().await;
    printer.line(&progress::summary(&report, mode));
    report.failed() == 0
}

async fn connect(address: &SshAddress, keys: &KeyArgs) -> Result<Connection, String> {
    let key = SshKey::read(&keys.identity).map_err(|error| chain(&error))?;
    let policy = match (&keys.host_key, &keys.known_hosts) {
        (Some(fingerprint), _) => HostKeyPolicy::Pinned(fingerprint.clone()),
        (None, Some(path)) => HostKeyPolicy::KnownHosts(path.clone()),
        (None, None) => {
            let home = std::env::home_dir().filter(|home| home.is_absolute());
            let home =
                home.ok_or("there is no home directory with known hosts; give --known-hosts or --host-key")?;
            HostKeyPolicy::Learned(home.join(".ssh/known_hosts"))
        }
    };
    Connection::open(address, &key, &policy).await.map_err(|error| match &error {
        SshError::KeyRefused { key, .. } => format!("{error}.\n{}", progress::recovery(key)),
        _ => chain(&error),
    })
}
