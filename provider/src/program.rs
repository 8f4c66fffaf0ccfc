//! The `tart-provider` program: from its arguments to its exit code.

use std::cell::OnceCell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use launchd::{AGENT_PLIST, Host};
use tokio::runtime::Builder;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::artifact::Artifact;
use crate::cli::{Cli, ConfigArgs, Format, HostCommand, KeyArgs, ManagerArgs, SubCommand, password};
use crate::error_chain::chain;
use crate::host::firewall::FirewallConfig;
use crate::host::{
    ActionsRunner, AgentSettings, Credential, HostConfig, Inputs, Mode, NodeExporter, Secret, Step,
    Tailscale, Tart, converge, prepare_steps,
};
use crate::manager::{self, ApiMachines};
use crate::pool::Machines;
use crate::progress::{self, MacJson, MacsJson, Printer, Seen};
use crate::rollout::{self, Fared};
use crate::ssh::{Connection, HostKeyPolicy, SshAddress, SshError, SshKey};

/// Runs what the command line asks for. `version` is the program's.
pub fn run(version: &'static str) -> ExitCode {
    let definition = Cli::command().version(version);
    let parsed = definition.clone().try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        // Help, version, and what is wrong with the command line.
        Err(error) => error.exit(),
    };
    let level = match &cli.command {
        SubCommand::Manager(_) => LevelFilter::INFO,
        _ => LevelFilter::WARN,
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
            SubCommand::Completions { shell } => {
                let script = manual::completions(&definition, "tart-provider", shell);
                let printed = io::stdout().write_all(&script);
                printed.map(|()| true).map_err(|error| format!("cannot print: {error}"))
            }
            SubCommand::Man { directory } => {
                let written = manual::write_pages(definition, &directory).map(|()| true);
                written
                    .map_err(|error| format!("cannot write man pages into {}: {error}", directory.display()))
            }
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

/// How long the API server may say nothing on a connection. A watch ends by itself within five minutes; the first list of a watch has no other
/// deadline.
const READ_DEADLINE: Duration = Duration::from_secs(320);

/// How the API server is reached.
async fn api_server(kubeconfig: Option<&Path>) -> Result<kube::Config, String> {
    let mut config = match kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| chain(&error))?;
            let config =
                kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
            config.map_err(|error| chain(&error))?
        }
        None => kube::Config::infer().await.map_err(|error| chain(&error))?,
    };
    config.read_timeout = Some(READ_DEADLINE);
    // The time that a connection has lain idle before is not the answer's.
    config.reset_reader_on_write = true;
    Ok(config)
}

/// Runs until it is told to end.
async fn run_manager(args: ManagerArgs) -> Result<(), String> {
    let config = api_server(args.kubeconfig.as_deref()).await?;
    let client = Client::try_from(config).map_err(|error| chain(&error))?;
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
            let seen = take(mac, &steps, &Mode::Apply(inputs), &Printer::of_one()).await;
            Ok(seen.report.failed() == 0)
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
    node: &'a str,
    address: &'a SshAddress,
    /// What tells two configurations apart, in logs and by eye.
    hash: String,
    steps: Vec<Step>,
    printer: Printer,
    /// What was seen of it, once it was reached.
    seen: OnceCell<Seen>,
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
        let printer = match args.output {
            Format::Json => Printer::silent(),
            Format::Text if args.ssh.len() > 1 => Printer::of_several(name),
            Format::Text => Printer::of_one(),
        };
        let hash = config.hash().short().to_string();
        printer.line(&format!("configuration {hash}"));
        let (node, address, steps) = (name.as_str(), &target.address, config.steps());
        macs.push(Mac { node, address, hash, steps, printer, seen: OnceCell::new() });
    }
    let fared = rollout::each(&macs, args.concurrency.into(), args.keep_going, async |mac: &Mac<'_>| {
        let connection = connect(mac.address, &args.keys).await?;
        if begin == Begin::WithAnAgent {
            let plist = connection.read_file(AGENT_PLIST).await.map_err(|error| chain(&error))?;
            if plist.is_none() {
                let (address, new) = (connection.address(), learned(&connection));
                return Err(format!(
                    "{address} has no agent yet; `tart-provider host apply` installs it{new}"
                ));
            }
        }
        let seen = take(connection, &mac.steps, mode, &mac.printer).await;
        Ok(mac.seen.get_or_init(|| seen).report.failed() == 0)
    })
    .await;
    if args.output == Format::Json {
        print_json(&macs, &fared, mode);
    }
    if let [Fared::Refused(words)] = fared.as_slice() {
        return Err(words.clone());
    }
    for (mac, fared) in macs.iter().zip(&fared) {
        if let Fared::Refused(words) = fared {
            mac.printer.line(words);
        }
    }
    if macs.len() > 1 && args.output == Format::Text {
        let all: Vec<_> = macs.iter().map(|mac| mac.printer.name()).zip(&fared).collect();
        Printer::of_one().line(&progress::summary_of_several(&all));
    }
    if fared.iter().all(|fared| matches!(fared, Fared::Refused(_) | Fared::NotBegun)) {
        return Err("nothing could be done".to_owned());
    }
    Ok(fared.iter().all(|fared| *fared == Fared::Well))
}

/// Prints how the Macs fared as one object.
fn print_json(macs: &[Mac<'_>], fared: &[Fared], mode: &Mode) {
    let macs = macs.iter().zip(fared).map(|(mac, fared)| {
        let names = (mac.node, mac.address.to_string(), mac.hash.clone());
        MacJson::new(names, (fared, mode), (&mac.steps, mac.seen.get()))
    });
    let object = serde_json::to_string_pretty(&MacsJson { macs: macs.collect() }).unwrap_or_default();
    // A pipe that is gone changes nothing about the Macs.
    let _ = writeln!(io::stdout(), "{object}");
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

/// Takes the Mac through the steps, and prints how each goes. What was seen of it.
async fn take(mut mac: Connection, steps: &[Step], mode: &Mode, printer: &Printer) -> Seen {
    printer.line(&format!("{}{}", mac.address(), learned(&mac)));
    mac.on_upload(printer.uploads());
    let report = converge(&mac, steps, mode, |name, outcome| match outcome {
        Some(outcome) => printer.outcome(name, outcome),
        None => printer.start(name),
    })
    .await;
    let host_key = mac.fingerprint().clone();
    mac.close().await;
    printer.line(&progress::summary(&report, mode));
    Seen { host_key, report }
}

/// Words about a host key that was trusted because nothing was known of the Mac.
fn learned(mac: &Connection) -> String {
    if !mac.is_learned() {
        return String::new();
    }
    let key = mac.fingerprint();
    format!(" (its host key {key} is new here, is trusted from now on, and was added to ~/.ssh/known_hosts)")
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Watches are begun anew by kube after 290 s, and by the API server after some more.
    #[tokio::test]
    async fn an_api_server_that_says_nothing_is_given_up_but_not_before_a_watch_ends() {
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n- name: a\n  cluster: {server: 'https://127.0.0.1:1'}\n\
            users:\n- name: a\n  user: {token: a}\ncontexts:\n- name: a\n  context: {cluster: a, user: a}\n";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let config = api_server(Some(file.path())).await.unwrap();
        let deadline = config.read_timeout.unwrap();
        assert!((Duration::from_mins(5)..Duration::from_mins(10)).contains(&deadline), "{deadline:?}");
    }
}
