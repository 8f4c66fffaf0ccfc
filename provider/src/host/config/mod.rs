//! What a Mac should be like: one value that renders, hashes and pushes everything.

mod node_exporter;
mod settings;
mod tailscale;

pub(crate) use node_exporter::NodeExporter;
pub(crate) use tailscale::{Tailscale, tailnet_address};

use std::time::Duration;

use launchd::{
    AGENT_BINARY, AGENT_KUBECONFIG, AGENT_LOG, AGENT_NEWSYSLOG, AGENT_PLIST, AGENT_STATE_DIR, ConsoleUser,
    Job, Label, Owner, ProcessType, agent_job, newsyslog_entry,
};
use serde::Serialize;

use super::firewall::FirewallConfig;
use super::part::{
    ActionsRunnerPart, ActionsRunnerRemoved, AutoLogin, Binary, Bundle, Contents, Directory, File, JobPart,
    Part, Sudo, VmFirewall,
};
use super::step::Step;
use super::{Remote, Secret};
use crate::artifact::{Artifact, Sha256Hash};

const PROGRAMS: &str = "/usr/local/bin";
const AGENT_DIRECTORY: &str = "/etc/tart-kubelet";
const BOOTSTRAP_KUBECONFIG: &str = "/etc/tart-kubelet/bootstrap-kubeconfig";

const SHORT: Duration = Duration::from_mins(5);
const LONG: Duration = Duration::from_mins(20);

/// What a Mac should be like.
#[derive(Debug, Clone)]
pub(crate) struct HostConfig {
    /// The user that is logged in at the screen, and that the agent runs as.
    pub(crate) user: String,
    /// The Node's name, which is the Mac's name, too.
    pub(crate) node_name: String,
    /// How the agent joins the cluster.
    pub(crate) credential: Credential,
    /// The agent's program.
    pub(crate) agent: Artifact,
    /// The agent's flags.
    pub(crate) settings: AgentSettings,
    /// Where tart comes from.
    pub(crate) tart: Tart,
    /// What guests may reach.
    pub(crate) firewall: FirewallConfig,
    /// For how many seconds macOS lends an address to a VM.
    pub(crate) dhcp_lease_seconds: u32,
    /// The exporter of the Mac's metrics.
    pub(crate) node_exporter: Option<NodeExporter>,
    /// The Mac's place in a tailnet.
    pub(crate) tailscale: Option<Tailscale>,
    /// The runner of GitHub Actions. A Mac with one is a builder.
    pub(crate) actions_runner: Option<ActionsRunner>,
}

/// A runner of GitHub Actions.
#[derive(Debug, Clone)]
pub(crate) struct ActionsRunner {
    /// The archive of the runner for macOS.
    pub(crate) archive: Artifact,
    /// The organization or repository that it works for.
    pub(crate) url: String,
    /// Its labels beside those that GitHub gives it.
    pub(crate) labels: Vec<String>,
}

/// How the agent joins the cluster.
#[derive(Debug, Clone)]
pub(crate) enum Credential {
    /// With this kubeconfig.
    Kubeconfig(Secret),
    /// With a certificate that it asks for with this kubeconfig. It is needed until the agent has its own.
    Bootstrap(Secret),
}

/// Where tart comes from.
#[derive(Debug, Clone)]
pub(crate) enum Tart {
    /// It is there already, as this program.
    Installed(String),
    /// From this archive of `tart.app`.
    Archive {
        /// The archive.
        archive: Artifact,
        /// Its version.
        version: String,
    },
}

/// The agent's flags, as far as they differ between Macs.
#[derive(Debug, Clone, Default)]
pub(crate) struct AgentSettings {
    /// `--provider-id`.
    pub(crate) provider_id: Option<String>,
    /// `--node-labels`.
    pub(crate) node_labels: Option<String>,
    /// `--max-pods`.
    pub(crate) max_pods: Option<u32>,
    /// Whether people or programs make VMs on this Mac themselves, as on a builder: the agent collects none then. A Mac with an Actions runner
    /// is a builder in any case.
    pub(crate) is_builder: bool,
    /// Any others.
    pub(crate) further: Vec<String>,
}

/// The steps that need the password of the user: passwordless sudo and auto-login.
pub(crate) fn prepare_steps(user: &str) -> Vec<Step> {
    let auto_login = AutoLogin { user: user.to_owned() };
    vec![
        Step {
            name: "passwordless sudo",
            parts: vec![Part::Sudo(Sudo::of(user))],
            is_required: true,
            is_first: true,
            deadline: SHORT,
        },
        step("auto-login", vec![Part::AutoLogin(auto_login)]),
    ]
}

/// The steps that take a Mac out of what knows it beyond the cluster: its tailnet, and GitHub.
pub(crate) fn farewell_steps(user: &str) -> Vec<Step> {
    let runner = ActionsRunnerRemoved { user: user.to_owned() };
    vec![
        step("Actions runner", vec![Part::ActionsRunnerRemoved(runner)]),
        step("tailscale", tailscale::parts(None, "")),
    ]
}

fn step(name: &'static str, parts: Vec<Part>) -> Step {
    Step { name, parts, is_required: false, is_first: false, deadline: SHORT }
}

impl HostConfig {
    /// The steps that make a Mac like this, in order. A first bootstrap and every later roll take all of them.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps = prepare_steps(&self.user);
        steps.extend([
            step("no sleep", settings::no_sleep()),
            step("host name", settings::host_name(&self.node_name)),
            step("addresses for VMs", vec![settings::dhcp_lease_time(self.dhcp_lease_seconds)]),
            step("local network", settings::local_network()),
        ]);
        // No VM may start without it.
        let firewall = vec![Part::VmFirewall(VmFirewall::of(&self.firewall))];
        steps.push(Step { is_required: true, ..step("firewall of VMs", firewall) });
        if let Some(parts) = self.tart() {
            steps.push(Step { deadline: LONG, ..step("tart", parts) });
        }
        // The agent's address may be that of the tailnet.
        let tailnet = tailscale::parts(self.tailscale.as_ref(), &self.node_name);
        steps.push(Step { deadline: LONG, ..step("tailscale", tailnet) });
        steps.extend([
            Step { is_required: true, ..step("agent's files", self.agent_files()) },
            Step {
                is_required: true,
                deadline: LONG,
                ..step("agent's binary", vec![Part::Binary(self.binary())])
            },
            // A roll that fails takes its time, and the old agent must be put back within it.
            Step { deadline: LONG, ..step("agent", vec![Part::Job(self.agent_job())]) },
            // The last ones hold nothing up.
            Step { deadline: LONG, ..step("Actions runner", vec![self.runner()]) },
            Step {
                deadline: LONG,
                ..step("node_exporter", node_exporter::parts(self.node_exporter.as_ref()))
            },
        ]);
        steps
    }

    /// Whether the Actions runner has to be registered, for which a token is needed. What cannot be looked at before the first step has been
    /// taken is not there.
    pub(crate) async fn needs_runner_token<R: Remote>(&self, mac: &R) -> bool {
        let looked = match &self.actions_runner {
            Some(_) => step("Actions runner", vec![self.runner()]).check(mac).await,
            None => return false,
        };
        !looked.is_ok_and(|changes| changes.is_empty())
    }

    /// The hash of everything that the steps put on a Mac.
    pub(crate) fn hash(&self) -> Sha256Hash {
        hash(&self.steps())
    }

    fn owner(&self) -> Owner {
        Owner::User(self.user.clone())
    }

    fn bundle(archive: &Artifact, version: &str) -> Bundle {
        Bundle {
            directory: "/usr/local/lib/tart".to_owned(),
            version: version.to_owned(),
            program: "tart.app/Contents/MacOS/tart".to_owned(),
            archive: archive.clone(),
        }
    }

    /// tart in a directory for its version, and a script that starts it: its entitlements hold only for the path in its bundle. VMs that run
    /// keep their version.
    fn tart(&self) -> Option<Vec<Part>> {
        let Tart::Archive { archive, version } = &self.tart else { return None };
        let bundle = Self::bundle(archive, version);
        let script = File {
            path: self.tart_program(),
            contents: Contents::Text(format!("#!/bin/sh\nexec {} \"$@\"\n", bundle.program_path())),
            owner: Owner::Root,
            mode: 0o755,
        };
        Some(vec![Part::Bundle(bundle), Part::File(script)])
    }

    fn tart_program(&self) -> String {
        match &self.tart {
            Tart::Installed(program) => program.clone(),
            Tart::Archive { .. } => format!("{PROGRAMS}/tart"),
        }
    }

    /// What the agent finds when it starts. launchd opens the log as the user, who may not create files beside it.
    fn agent_files(&self) -> Vec<Part> {
        let user = ConsoleUser::named(&self.user);
        let directory = |path: &str| {
            Part::Directory(Directory { path: path.to_owned(), owner: self.owner(), mode: 0o700 })
        };
        let file = |path: &str, contents, owner, mode| {
            Part::File(File { path: path.to_owned(), contents, owner, mode })
        };
        let (path, contents) = match &self.credential {
            Credential::Kubeconfig(secret) => (AGENT_KUBECONFIG, Contents::Secret(secret.clone())),
            Credential::Bootstrap(secret) => {
                let (other, secret) = (AGENT_KUBECONFIG.to_owned(), secret.clone());
                (BOOTSTRAP_KUBECONFIG, Contents::Until { other, secret })
            }
        };
        vec![
            directory(AGENT_DIRECTORY),
            directory(AGENT_STATE_DIR),
            file(AGENT_LOG, Contents::Any, self.owner(), 0o600),
            file(AGENT_NEWSYSLOG, Contents::Text(newsyslog_entry(&user)), Owner::Root, 0o644),
            file(path, contents, self.owner(), 0o600),
        ]
    }

    fn binary(&self) -> Binary {
        let name = AGENT_BINARY.rsplit('/').next().unwrap_or(AGENT_BINARY).to_owned();
        Binary { name, directory: PROGRAMS.to_owned(), artifact: self.agent.clone(), has_job: true }
    }

    fn agent_job(&self) -> JobPart {
        let binary = self.binary();
        let credential = match &self.credential {
            Credential::Kubeconfig(secret) => Some(secret),
            // The agent watches the file that it makes of it.
            Credential::Bootstrap(_) => None,
        };
        JobPart {
            job: agent_job(&ConsoleUser::named(&self.user), self.agent_flags()),
            plist: AGENT_PLIST.to_owned(),
            restart_for: hash(&(self.agent.sha256(), credential)),
            previous: Some(binary.previous()),
            carries_tailnet: false,
        }
    }

    fn runner(&self) -> Part {
        let user = self.user.clone();
        match &self.actions_runner {
            None => Part::ActionsRunnerRemoved(ActionsRunnerRemoved { user }),
            Some(ActionsRunner { archive, url, labels }) => Part::ActionsRunner(ActionsRunnerPart {
                user,
                archive: archive.clone(),
                url: url.clone(),
                name: self.node_name.clone(),
                labels: labels.clone(),
            }),
        }
    }

    /// Whether people or programs make VMs on this Mac themselves.
    fn is_builder(&self) -> bool {
        self.settings.is_builder || self.actions_runner.is_some()
    }

    fn agent_flags(&self) -> Vec<String> {
        let settings = &self.settings;
        let mut flags = vec![
            format!("--node-name={}", self.node_name),
            format!("--kubeconfig={AGENT_KUBECONFIG}"),
            format!("--state-dir={AGENT_STATE_DIR}"),
            format!("--tart-binary={}", self.tart_program()),
        ];
        if let Credential::Bootstrap(_) = self.credential {
            flags.push(format!("--bootstrap-kubeconfig={BOOTSTRAP_KUBECONFIG}"));
        }
        flags.extend(settings.provider_id.as_ref().map(|id| format!("--provider-id={id}")));
        flags.extend(settings.node_labels.as_ref().map(|labels| format!("--node-labels={labels}")));
        flags.extend(settings.max_pods.map(|max| format!("--max-pods={max}")));
        if self.tailscale.is_some() {
            flags.push("--node-ip-source=tailscale".to_owned());
        }
        if self.is_builder() {
            flags.push("--disable-vm-gc".to_owned());
        }
        flags.extend(settings.further.iter().cloned());
        flags
    }
}

fn label(text: &str) -> Label {
    #[expect(clippy::expect_used, reason = "the constants are labels, and every test of the steps says so")]
    text.parse().expect("a label")
}

/// A job of root that launchd keeps running.
fn daemon(label: Label, program_arguments: Vec<String>, log: &str) -> Job {
    Job {
        label,
        program_arguments,
        user_name: None,
        environment_variables: std::collections::BTreeMap::new(),
        run_at_load: true,
        keep_alive: true,
        start_interval: None,
        throttle_interval: Some(10),
        exit_time_out: 10,
        abandon_process_group: false,
        process_type: ProcessType::Standard,
        standard_out_path: Some(log.to_owned()),
        standard_error_path: Some(log.to_owned()),
        soft_resource_limits: None,
        hard_resource_limits: None,
        umask: Some(0o022),
    }
}

/// What a copy of programs leaves when it is broken off.
fn leftovers(names: &[&str]) -> Vec<String> {
    let of = |name: &&str| ["staged", "previous"].map(|state| format!("{PROGRAMS}/.{name}.{state}"));
    names.iter().flat_map(of).collect()
}

fn argv(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// The hash of plain data.
fn hash(data: &impl Serialize) -> Sha256Hash {
    // Serializing plain data to memory does not fail.
    Sha256Hash::of(&serde_json::to_vec(data).unwrap_or_default())
}
