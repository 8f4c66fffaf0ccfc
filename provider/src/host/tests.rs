//! The steps on a Mac in memory, with tokio's clock stopped.

mod broken_off;

use std::path::PathBuf;

use launchd::{AGENT_BINARY, AGENT_KUBECONFIG, AGENT_LABEL};
use proptest::prelude::*;
use tempfile::TempDir;

use super::firewall::FirewallConfig;
use super::memory_mac::{BROKEN, MemoryMac};
use super::*;
use crate::host::part::Inputs;

/// The files of the machine that the provider runs on.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn artifact(&self, contents: &[u8]) -> Artifact {
        let path: PathBuf = self.0.path().join(format!("{}", contents.len()));
        let path = path.with_extension(String::from_utf8_lossy(contents).replace('/', "_"));
        std::fs::write(&path, contents).unwrap();
        Artifact::read(&path).unwrap()
    }

    fn config(&self) -> HostConfig {
        HostConfig {
            user: "m1".to_owned(),
            node_name: "mac-1.example".to_owned(),
            credential: Credential::Kubeconfig(Secret::new(b"canary-kubeconfig".to_vec())),
            agent: self.artifact(b"agent 1"),
            settings: AgentSettings::default(),
            tart: Tart::Archive { archive: self.artifact(b"2.32.1"), version: "2.32.1".to_owned() },
            firewall: FirewallConfig::default(),
            dhcp_lease_seconds: 600,
            node_exporter: None,
            tailscale: None,
            actions_runner: None,
        }
    }

    fn tailscale(&self) -> Tailscale {
        Tailscale {
            tailscale: self.artifact(b"tailscale"),
            tailscaled: self.artifact(b"tailscaled"),
            tags: vec!["tag:mac".to_owned()],
            accept_routes: false,
        }
    }

    fn actions_runner(&self) -> ActionsRunner {
        ActionsRunner {
            archive: self.artifact(b"runner"),
            url: "https://github.com/tuist".to_owned(),
            labels: vec!["mac".to_owned()],
        }
    }

    /// A config with everything that can be switched on.
    fn rich_config(&self) -> HostConfig {
        let program = self.artifact(b"exporter");
        let node_exporter = Some(NodeExporter { program, listen: "127.0.0.1:9100".to_owned() });
        let (tailscale, actions_runner) = (Some(self.tailscale()), Some(self.actions_runner()));
        HostConfig { node_exporter, tailscale, actions_runner, ..self.config() }
    }

    /// Pairs of configs that differ in one field each. The patterns name every field: who adds one must add a variation.
    fn variations(&self) -> Vec<(&'static str, HostConfig, HostConfig)> {
        let of_base = self.variations_of_base().into_iter();
        let of_rich = self.variations_of_rich().into_iter();
        of_base
            .map(|(field, config)| (field, self.config(), config))
            .chain(of_rich.map(|(field, config)| (field, self.rich_config(), config)))
            .collect()
    }

    /// Each differs from the rich config in one field of what can be switched on.
    fn variations_of_rich(&self) -> Vec<(&'static str, HostConfig)> {
        let Tailscale { tailscale: _, tailscaled: _, tags: _, accept_routes: _ } = self.tailscale();
        // The archive is for Macs that have no runner yet.
        let ActionsRunner { archive: _, url: _, labels: _ } = self.actions_runner();
        let tailscale = |tailscale| HostConfig { tailscale: Some(tailscale), ..self.rich_config() };
        let runner = |runner| HostConfig { actions_runner: Some(runner), ..self.rich_config() };
        let tags = vec!["tag:other".to_owned()];
        vec![
            ("node_name", HostConfig { node_name: "mac-2".to_owned(), ..self.rich_config() }),
            (
                "tailscale's program",
                tailscale(Tailscale { tailscale: self.artifact(b"tailscale 2"), ..self.tailscale() }),
            ),
            (
                "tailscaled",
                tailscale(Tailscale { tailscaled: self.artifact(b"tailscaled 2"), ..self.tailscale() }),
            ),
            ("tailscale's tags", tailscale(Tailscale { tags, ..self.tailscale() })),
            ("tailscale's routes", tailscale(Tailscale { accept_routes: true, ..self.tailscale() })),
            ("no tailscale", HostConfig { tailscale: None, ..self.rich_config() }),
            (
                "runner's URL",
                runner(ActionsRunner { url: "https://github.com/other".to_owned(), ..self.actions_runner() }),
            ),
            (
                "runner's labels",
                runner(ActionsRunner { labels: vec!["other".to_owned()], ..self.actions_runner() }),
            ),
            ("no runner", HostConfig { actions_runner: None, ..self.rich_config() }),
        ]
    }

    /// Each differs from the first config in one field.
    fn variations_of_base(&self) -> Vec<(&'static str, HostConfig)> {
        let HostConfig {
            user: _, // It is the user of the connection, which is another Mac's in effect.
            node_name: _,
            credential: _,
            agent: _,
            settings: AgentSettings { provider_id: _, node_labels: _, max_pods: _, is_builder: _, further: _ },
            tart: _,
            firewall: FirewallConfig { vm_network: _, allowed: _ },
            dhcp_lease_seconds: _,
            node_exporter: _,
            tailscale: _,
            actions_runner: _,
        } = self.config();
        let base = || self.config();
        let settings = |settings| HostConfig { settings, ..base() };
        let blank = AgentSettings::default;
        let exporter =
            NodeExporter { program: self.artifact(b"exporter"), listen: "127.0.0.1:9100".to_owned() };
        let listen = NodeExporter { listen: "10.0.0.1:9100".to_owned(), ..exporter.clone() };
        vec![
            ("node_name", HostConfig { node_name: "mac-2".to_owned(), ..base() }),
            (
                "credential",
                HostConfig {
                    credential: Credential::Kubeconfig(Secret::new(b"canary-other".to_vec())),
                    ..base()
                },
            ),
            (
                "bootstrap credential",
                HostConfig {
                    credential: Credential::Bootstrap(Secret::new(b"canary-token".to_vec())),
                    ..base()
                },
            ),
            ("agent", HostConfig { agent: self.artifact(b"agent 2"), ..base() }),
            ("provider_id", settings(AgentSettings { provider_id: Some("x://1".to_owned()), ..blank() })),
            ("node_labels", settings(AgentSettings { node_labels: Some("a=b".to_owned()), ..blank() })),
            ("max_pods", settings(AgentSettings { max_pods: Some(1), ..blank() })),
            ("is_builder", settings(AgentSettings { is_builder: true, ..blank() })),
            ("further", settings(AgentSettings { further: vec!["--x".to_owned()], ..blank() })),
            (
                "tart",
                HostConfig {
                    tart: Tart::Archive { archive: self.artifact(b"2.33.0"), version: "2.33.0".to_owned() },
                    ..base()
                },
            ),
            (
                "tart's place",
                HostConfig { tart: Tart::Installed("/opt/homebrew/bin/tart".to_owned()), ..base() },
            ),
            (
                "firewall's network",
                HostConfig {
                    firewall: FirewallConfig {
                        vm_network: "192.168.80.0/22".parse().unwrap(),
                        ..FirewallConfig::default()
                    },
                    ..base()
                },
            ),
            (
                "firewall's exceptions",
                HostConfig {
                    firewall: FirewallConfig {
                        allowed: vec!["tcp 10.1.2.3 443".parse().unwrap()],
                        ..FirewallConfig::default()
                    },
                    ..base()
                },
            ),
            ("dhcp_lease_seconds", HostConfig { dhcp_lease_seconds: 60, ..base() }),
            ("node_exporter", HostConfig { node_exporter: Some(exporter), ..base() }),
            ("node_exporter's address", HostConfig { node_exporter: Some(listen), ..base() }),
            ("tailscale", HostConfig { tailscale: Some(self.tailscale()), ..base() }),
            ("actions_runner", HostConfig { actions_runner: Some(self.actions_runner()), ..base() }),
        ]
    }
}

/// Everything that a step may ask for.
fn inputs() -> Inputs {
    let secret = |text: &str| Some(Secret::new(text.as_bytes().to_vec()));
    Inputs {
        password: secret("canary-password"),
        tailscale_auth_key: secret("tskey-client-canary"),
        runner_token: secret("canary-token"),
    }
}

async fn apply(mac: &MemoryMac, config: &HostConfig) -> Report {
    converge(mac, &config.steps(), &Mode::Apply(inputs()), |_, _| ()).await
}

/// A roll has no password.
async fn roll(mac: &MemoryMac, config: &HostConfig) -> Report {
    mac.state().pushes.clear();
    let inputs = Inputs { password: None, ..inputs() };
    converge(mac, &config.steps(), &Mode::Apply(inputs), |_, _| ()).await
}

async fn bootstrapped(config: &HostConfig) -> MemoryMac {
    let mac = MemoryMac::new();
    let report = apply(&mac, config).await;
    assert_eq!(report.failed(), 0, "{report:?}");
    mac
}

#[tokio::test(start_paused = true)]
async fn a_new_mac_gets_everything_and_a_second_run_changes_nothing() {
    let files = Files::new();
    let mac = bootstrapped(&files.config()).await;
    assert_eq!(mac.bytes(AGENT_BINARY).unwrap(), b"agent 1 signed");
    assert_eq!(mac.bytes(AGENT_KUBECONFIG).unwrap(), b"canary-kubeconfig");
    let pid = mac.pid(AGENT_LABEL).unwrap();
    let report = roll(&mac, &files.config()).await;
    assert_eq!((report.changed(), report.failed()), (0, 0), "{report:?}");
    assert_eq!(mac.state().pushes, [""; 0]);
    assert_eq!(mac.pid(AGENT_LABEL), Some(pid));
}

#[tokio::test(start_paused = true)]
async fn a_plan_changes_nothing_and_names_every_difference() {
    let files = Files::new();
    let mac = bootstrapped(&files.config()).await;
    mac.state().pushes.clear();
    let other = HostConfig { node_name: "mac-2".to_owned(), ..files.config() };
    let report = converge(&mac, &other.steps(), &Mode::Plan, |_, _| ()).await;
    assert_eq!((report.changed(), report.failed()), (2, 0), "{report:?}");
    assert_eq!(mac.state().pushes, [""; 0]);
    let words = format!("{report:?}");
    assert!(words.contains("+\\t\\t<string>--node-name=mac-2</string>"), "{words}");
}

/// What is hashed is what is pushed: another hash changes the Mac, the same hash does not, and a Mac that is bootstrapped is the same as one
/// that was rolled.
#[tokio::test(start_paused = true)]
async fn every_hashed_part_reaches_the_mac_and_every_pushed_part_is_in_the_hash_on_both_paths() {
    let files = Files::new();
    for (field, base, config) in files.variations() {
        assert_ne!(config.hash(), base.hash(), "{field} is not in the hash");
        let rolled = bootstrapped(&base).await;
        let report = roll(&rolled, &config).await;
        assert_eq!(report.failed(), 0, "{field}: {report:?}");
        assert!(!rolled.state().pushes.is_empty(), "{field} does not reach a Mac that is rolled");
        let fresh = bootstrapped(&config).await;
        assert_eq!(
            rolled.settings_and_jobs(),
            fresh.settings_and_jobs(),
            "{field}: bootstrap and roll differ"
        );
        // A roll leaves old versions of tart alone, and an old kubeconfig, beside which no bootstrap kubeconfig is needed. It lacks
        // nothing else.
        let is_needed = |path: &str| !path.ends_with("/bootstrap-kubeconfig");
        for (path, entry) in fresh.state().files.iter().filter(|(path, _)| is_needed(path)) {
            assert_eq!(rolled.state().files.get(path), Some(entry), "{field}: {path}");
        }
        let report = roll(&rolled, &config).await;
        assert_eq!((report.changed(), rolled.state().pushes.len()), (0, 0), "{field}: {report:?}");
        // And back again: what was switched on is gone.
        let report = roll(&rolled, &base).await;
        assert_eq!(report.failed(), 0, "{field}: {report:?}");
        let fresh = bootstrapped(&base).await;
        assert_eq!(rolled.settings_and_jobs(), fresh.settings_and_jobs(), "{field}: the roll back differs");
    }
}

/// A config in which each field has one of two values, as the bits say.
fn chosen(files: &Files, bits: u32) -> HostConfig {
    let is = |bit: u32| bits & (1 << bit) != 0;
    let text = |bit, no: &str, yes: &str| if is(bit) { yes.to_owned() } else { no.to_owned() };
    let artifact = |bit, no: &[u8], yes: &[u8]| files.artifact(if is(bit) { yes } else { no });
    let version = text(0, "2.32.1", "2.33.0");
    let tart = Tart::Archive { archive: files.artifact(version.as_bytes()), version };
    let allowed = if is(1) { vec!["tcp 10.1.2.3 443".parse().unwrap()] } else { Vec::new() };
    let tailscale = is(2).then(|| Tailscale {
        tailscale: artifact(3, b"tailscale", b"tailscale 2"),
        tailscaled: artifact(4, b"tailscaled", b"tailscaled 2"),
        tags: vec![text(5, "tag:mac", "tag:other")],
        accept_routes: is(6),
    });
    let actions_runner = is(7).then(|| ActionsRunner {
        archive: files.artifact(b"runner"),
        url: text(8, "https://github.com/tuist", "https://github.com/other"),
        labels: vec![text(9, "mac", "builder")],
    });
    let node_exporter = is(10).then(|| NodeExporter {
        program: artifact(11, b"exporter", b"exporter 2"),
        listen: text(12, "127.0.0.1:9100", "10.0.0.1:9100"),
    });
    let settings = AgentSettings {
        provider_id: is(13).then(|| "x://1".to_owned()),
        node_labels: is(14).then(|| "a=b".to_owned()),
        max_pods: is(15).then_some(1),
        is_builder: is(16),
        further: is(17).then(|| "--x".to_owned()).into_iter().collect(),
    };
    HostConfig {
        user: "m1".to_owned(),
        node_name: text(18, "mac-1", "mac-2"),
        credential: Credential::Kubeconfig(Secret::new(text(19, "canary 1", "canary 2").into_bytes())),
        agent: artifact(20, b"agent 1", b"agent 2"),
        settings,
        tart: if is(21) { Tart::Installed("/opt/homebrew/bin/tart".to_owned()) } else { tart },
        firewall: FirewallConfig { allowed, ..FirewallConfig::default() },
        dhcp_lease_seconds: if is(22) { 60 } else { 600 },
        node_exporter,
        tailscale,
        actions_runner,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Two configs have one hash exactly when nothing has to be pushed from one to the other, and a roll leads to where a bootstrap does.
    #[test]
    fn a_roll_pushes_something_exactly_when_the_hash_differs(before in 0_u32..1 << 23, change in prop_oneof![Just(0), 0_u32..1 << 23]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let files = Files::new();
            let (old, new) = (chosen(&files, before), chosen(&files, before ^ change));
            let mac = bootstrapped(&old).await;
            let report = roll(&mac, &new).await;
            assert_eq!(report.failed(), 0, "{report:?}");
            assert_eq!(mac.state().pushes.is_empty(), old.hash() == new.hash(), "{:?}", mac.state().pushes);
            assert_eq!(mac.settings_and_jobs(), bootstrapped(&new).await.settings_and_jobs());
            let again = roll(&mac, &new).await;
            assert_eq!((again.changed(), mac.state().pushes.len()), (0, 0), "{again:?}");
        });
    }
}

#[tokio::test(start_paused = true)]
async fn no_file_is_pushed_that_is_not_in_the_steps() {
    let files = Files::new();
    for (field, _, config) in files.variations() {
        let mac = bootstrapped(&config).await;
        let steps = serde_json::to_string(&config.steps()).unwrap();
        for path in mac.state().paths() {
            let name = path.rsplit('/').next().unwrap();
            // The notes say what was pushed; the password's file is made from no config.
            // What the runner makes of its archive is its own.
            let is_runner = path.starts_with("/opt/actions-runner") || path.contains("/LaunchAgents/");
            let is_own =
                path.starts_with("/var/db/dev.tuist.tart-provider") || path == "/etc/kcpassword" || is_runner;
            assert!(
                is_own || steps.contains(name) || config_directory(&path),
                "{field}: {path} is in no step"
            );
        }
    }
}

/// Directories above files of the steps.
fn config_directory(path: &str) -> bool {
    let made = ["/etc/newsyslog.d", "/usr/local/bin", "/usr/local/lib/tart", "/etc/tart-kubelet"];
    // What the firewall's own job writes, or is made for it.
    made.contains(&path)
        || path.starts_with("/var/run/")
        || ["/usr/local/libexec", "/etc/pf.anchors"].contains(&path)
}

#[tokio::test(start_paused = true)]
async fn only_a_builder_keeps_its_vms_from_the_agent_on_both_paths() {
    let files = Files::new();
    let plain = files.config();
    let builder = HostConfig {
        settings: AgentSettings { is_builder: true, ..AgentSettings::default() },
        ..files.config()
    };
    let has_flag = |mac: &MemoryMac| mac.arguments(AGENT_LABEL).contains(&"--disable-vm-gc".to_owned());
    let mac = bootstrapped(&builder).await;
    assert!(has_flag(&mac));
    // A roll to another binary must not bring the collector back.
    roll(&mac, &HostConfig { agent: files.artifact(b"agent 2"), ..builder }).await;
    assert!(has_flag(&mac));
    roll(&mac, &plain).await;
    assert!(!has_flag(&mac));
    assert!(!has_flag(&bootstrapped(&plain).await));
}

#[tokio::test(start_paused = true)]
async fn a_new_binary_restarts_the_agent_in_place() {
    let files = Files::new();
    let mac = bootstrapped(&files.config()).await;
    let pid = mac.pid(AGENT_LABEL);
    roll(&mac, &HostConfig { agent: files.artifact(b"agent 2"), ..files.config() }).await;
    assert_ne!(mac.pid(AGENT_LABEL), pid);
    let pushes = mac.state().pushes.join("\n");
    assert!(pushes.contains("kickstart -k system/dev.tuist.tart-kubelet"), "{pushes}");
    assert!(
        !pushes.contains("bootout") && !pushes.contains("bootstrap") && !pushes.contains(".plist"),
        "{pushes}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_broken_binary_leaves_the_old_one_and_its_process() {
    let files = Files::new();
    let mac = bootstrapped(&files.config()).await;
    let pid = mac.pid(AGENT_LABEL);
    let report = roll(&mac, &HostConfig { agent: files.artifact(BROKEN), ..files.config() }).await;
    assert!(report.failed() > 0, "{report:?}");
    let words = format!("{report:?}");
    assert!(words.contains("Broken"), "{words}");
    assert_eq!(mac.bytes(AGENT_BINARY).unwrap(), b"agent 1 signed");
    assert_eq!(mac.pid(AGENT_LABEL), pid);
    assert!(!mac.state().paths().contains("/usr/local/bin/.tart-kubelet.staged"));
}

#[tokio::test(start_paused = true)]
async fn a_bootstrap_credential_is_pushed_until_the_agent_has_its_own() {
    let files = Files::new();
    let with = |token: &[u8]| HostConfig {
        credential: Credential::Bootstrap(Secret::new(token.to_vec())),
        ..files.config()
    };
    let place = "/etc/tart-kubelet/bootstrap-kubeconfig";
    let mac = bootstrapped(&with(b"canary 1")).await;
    roll(&mac, &with(b"canary 2")).await;
    assert_eq!(mac.bytes(place).unwrap(), b"canary 2");
    // A token for each attempt is no drift.
    assert_eq!(with(b"canary 1").hash(), with(b"canary 2").hash());
    mac.write_file(AGENT_KUBECONFIG, b"own", &launchd::Access::root(0o600)).await.unwrap();
    roll(&mac, &with(b"canary 3")).await;
    assert_eq!(mac.bytes(place).unwrap(), b"canary 2");
}

#[tokio::test(start_paused = true)]
async fn without_a_password_a_new_mac_is_refused_in_words_and_untouched() {
    let files = Files::new();
    let mac = MemoryMac::new();
    let report = roll(&mac, &files.config()).await;
    assert_eq!((report.failed(), report.skipped()), (1, report.0.len() - 1), "{report:?}");
    assert_eq!(mac.state().pushes, [""; 0]);
    let Outcome::Failed(error) = &report.0[0] else { panic!("{report:?}") };
    assert!(error.to_string().contains("tart-provider host prepare"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_in_a_command_line_or_in_words() {
    let files = Files::new();
    for (field, _, config) in files.variations() {
        let mac = MemoryMac::new();
        let report = apply(&mac, &config).await;
        let words = format!(
            "{:?} {report:?} {config:?} {}",
            mac.state().argvs,
            serde_json::to_string(&config.steps()).unwrap()
        );
        assert!(!words.contains("canary"), "{field}: {words}");
    }
}
