//! What a Mac should be like: one value that renders, hashes and pushes everything.

use std::time::Duration;

use launchd::{
    AGENT_BINARY, AGENT_KUBECONFIG, AGENT_LOG, AGENT_NEWSYSLOG, AGENT_PLIST, AGENT_STATE_DIR, ConsoleUser,
    Job, Label, Owner, ProcessType, agent_job, newsyslog_entry,
};
use serde::Serialize;

use super::Secret;
use super::part::{
    AutoLogin, Binary, Bundle, Contents, Directory, File, JobPart, Part, Reading, Removed, Setting,
    SettingOf, Sudo,
};
use super::step::Step;
use crate::artifact::{Artifact, Sha256Hash};

const PROGRAMS: &str = "/usr/local/bin";
const AGENT_DIRECTORY: &str = "/etc/tart-kubelet";
const BOOTSTRAP_KUBECONFIG: &str = "/etc/tart-kubelet/bootstrap-kubeconfig";
const NODE_EXPORTER_LABEL: &str = "dev.tuist.node-exporter";
const NODE_EXPORTER_PLIST: &str = "/Library/LaunchDaemons/dev.tuist.node-exporter.plist";
const NODE_EXPORTER_LOG: &str = "/var/log/tart-node-exporter.log";
/// What `node_exporter` can measure on macOS without a C library of its own.
const COLLECTORS: [&str; 9] =
    ["cpu", "diskstats", "filesystem", "loadavg", "meminfo", "netdev", "os", "time", "uname"];

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
    /// For how many seconds macOS lends an address to a VM.
    pub(crate) dhcp_lease_seconds: u32,
    /// The exporter of the Mac's metrics.
    pub(crate) node_exporter: Option<NodeExporter>,
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
    /// Whether people or programs make VMs on this Mac themselves, as on a builder: the agent collects none then.
    pub(crate) is_builder: bool,
    /// Any others.
    pub(crate) further: Vec<String>,
}

/// The exporter of a Mac's metrics.
#[derive(Debug, Clone)]
pub(crate) struct NodeExporter {
    /// Its program.
    pub(crate) program: Artifact,
    /// Where it listens.
    pub(crate) listen: String,
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

fn step(name: &'static str, parts: Vec<Part>) -> Step {
    Step { name, parts, is_required: false, is_first: false, deadline: SHORT }
}

impl HostConfig {
    /// The steps that make a Mac like this, in order. A first bootstrap and every later roll take all of them.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps = prepare_steps(&self.user);
        steps.extend([
            step("no sleep", no_sleep()),
            step("host name", self.host_name()),
            step("addresses for VMs", vec![self.dhcp_lease_time()]),
            step("local network", local_network()),
        ]);
        if let Some(parts) = self.tart() {
            steps.push(Step { deadline: LONG, ..step("tart", parts) });
        }
        steps.extend([
            Step { is_required: true, ..step("agent's files", self.agent_files()) },
            Step {
                is_required: true,
                deadline: LONG,
                ..step("agent's binary", vec![Part::Binary(self.binary())])
            },
            step("agent", vec![Part::Job(self.agent_job())]),
            // Last, so that it holds nothing up.
            Step { deadline: LONG, ..step("node_exporter", self.node_exporter()) },
        ]);
        steps
    }

    /// The hash of everything that the steps put on a Mac.
    pub(crate) fn hash(&self) -> Sha256Hash {
        hash(&self.steps())
    }

    fn owner(&self) -> Owner {
        Owner::User(self.user.clone())
    }

    fn host_name(&self) -> Vec<Part> {
        // A name in the local network is one label.
        let local = self.node_name.replace('.', "-");
        let names = [
            ("HostName", self.node_name.clone(), "host name"),
            ("LocalHostName", local, "name in the local network"),
            ("ComputerName", self.node_name.clone(), "name that people see"),
        ];
        let setting = |(key, wanted, what): (&str, String, &'static str)| {
            Part::Setting(Setting {
                what,
                of: SettingOf::Mac,
                read: argv(&["/usr/sbin/scutil", "--get", key]),
                reading: Reading::Whole,
                write: argv(&["/usr/sbin/scutil", "--set", key, &wanted]),
                wanted,
            })
        };
        names.into_iter().map(setting).collect()
    }

    /// macOS lends addresses for a day unless it is told otherwise, and has about 250 of them.
    fn dhcp_lease_time(&self) -> Part {
        const DOMAIN: &str =
            "/Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist";
        let seconds = self.dhcp_lease_seconds.to_string();
        Part::Setting(Setting {
            what: "seconds for which macOS lends an address to a VM",
            of: SettingOf::Mac,
            read: argv(&["/usr/bin/defaults", "read", DOMAIN, "bootpd"]),
            reading: Reading::Key("DHCPLeaseTimeSecs"),
            // Whatever else is set for bootpd stays.
            write: argv(&[
                "/usr/bin/defaults",
                "write",
                DOMAIN,
                "bootpd",
                "-dict-add",
                "DHCPLeaseTimeSecs",
                "-int",
                &seconds,
            ]),
            wanted: seconds,
        })
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
        Binary { name, directory: PROGRAMS.to_owned(), artifact: self.agent.clone() }
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
        }
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
        if settings.is_builder {
            flags.push("--disable-vm-gc".to_owned());
        }
        flags.extend(settings.further.iter().cloned());
        flags
    }

    fn node_exporter(&self) -> Vec<Part> {
        let label = node_exporter_label();
        let Some(NodeExporter { program, listen }) = &self.node_exporter else {
            let files = [NODE_EXPORTER_PLIST, "/usr/local/bin/node_exporter", NODE_EXPORTER_LOG]
                .map(str::to_owned)
                .to_vec();
            return vec![Part::Removed(Removed { label, files })];
        };
        let binary = Binary {
            name: "node_exporter".to_owned(),
            directory: PROGRAMS.to_owned(),
            artifact: program.clone(),
        };
        let collectors = COLLECTORS.iter().map(|name| format!("--collector.{name}"));
        let flags = [format!("--web.listen-address={listen}"), "--collector.disable-defaults".to_owned()];
        let arguments = std::iter::once(binary.path()).chain(flags).chain(collectors).collect();
        let job = JobPart {
            job: daemon(label, arguments, NODE_EXPORTER_LOG),
            plist: NODE_EXPORTER_PLIST.to_owned(),
            restart_for: program.sha256().clone(),
            previous: Some(binary.previous()),
        };
        vec![Part::Binary(binary), Part::Job(job)]
    }
}

fn node_exporter_label() -> Label {
    #[expect(clippy::expect_used, reason = "the constant is a label, and every test of the steps says so")]
    NODE_EXPORTER_LABEL.parse().expect("a label")
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

/// A Mac that sleeps, locks its screen or logs its user out runs no VMs.
fn no_sleep() -> Vec<Part> {
    let power = |key: &'static str, what, wanted: &str| {
        Part::Setting(Setting {
            what,
            of: SettingOf::Mac,
            read: argv(&["/usr/bin/pmset", "-g"]),
            reading: Reading::Word(key),
            wanted: wanted.to_owned(),
            write: argv(&["/usr/bin/pmset", "-a", key, wanted]),
        })
    };
    let preference = |of, what, host: &[&str], domain: &str, key: &str| {
        let command = |verb, value: &[&str]| {
            argv(&[&["/usr/bin/defaults"][..], host, &[verb, domain, key], value].concat())
        };
        Part::Setting(Setting {
            what,
            of,
            read: command("read", &[]),
            reading: Reading::Whole,
            wanted: "0".to_owned(),
            write: command("write", &["-int", "0"]),
        })
    };
    let screensaver = "com.apple.screensaver";
    let global = "/Library/Preferences/.GlobalPreferences";
    vec![
        power("sleep", "minutes until the Mac sleeps", "0"),
        power("displaysleep", "minutes until the screen sleeps", "0"),
        power("disksleep", "minutes until the disk sleeps", "0"),
        power("autorestart", "restart after a power failure", "1"),
        preference(
            SettingOf::User,
            "seconds until the screen saver",
            &["-currentHost"],
            screensaver,
            "idleTime",
        ),
        preference(SettingOf::User, "password after the screen saver", &[], screensaver, "askForPassword"),
        preference(
            SettingOf::Mac,
            "seconds until the user is logged out",
            &[],
            global,
            "com.apple.autologout.AutoLogOutDelay",
        ),
    ]
}

/// Private addresses that programs may reach without asking at the screen. It takes effect at the next boot; the agent itself, a daemon, needs
/// none of it.
fn local_network() -> Vec<Part> {
    const DOMAIN: &str = "com.apple.network.local-network";
    const PRIVATE: [&str; 3] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"];
    let keys = [
        (
            "AllowedEthernetLocalNetworkAddresses",
            "private addresses that programs reach by Ethernet without asking",
        ),
        ("AllowedWiFiLocalNetworkAddresses", "private addresses that programs reach by Wi-Fi without asking"),
    ];
    let setting = |(key, what): (&str, &'static str)| {
        Part::Setting(Setting {
            what,
            of: SettingOf::Mac,
            read: argv(&["/usr/bin/defaults", "read", DOMAIN, key]),
            reading: Reading::Elements,
            wanted: PRIVATE.join(" "),
            write: argv(&[&["/usr/bin/defaults", "write", DOMAIN, key, "-array"][..], &PRIVATE].concat()),
        })
    };
    keys.into_iter().map(setting).collect()
}

fn argv(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// The hash of plain data.
fn hash(data: &impl Serialize) -> Sha256Hash {
    // Serializing plain data to memory does not fail.
    Sha256Hash::of(&serde_json::to_vec(data).unwrap_or_default())
}
