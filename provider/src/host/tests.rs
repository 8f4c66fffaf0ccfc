//! The steps on a Mac in memory, with tokio's clock stopped.

use std::path::PathBuf;

use launchd::{AGENT_BINARY, AGENT_KUBECONFIG, AGENT_LABEL};
use tempfile::TempDir;

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
            dhcp_lease_seconds: 600,
            node_exporter: None,
        }
    }

    /// Configs that differ from the first one in one field each. The pattern names every field: who adds one must add a variation.
    fn variations(&self) -> Vec<(&'static str, HostConfig)> {
        let HostConfig {
            user: _, // It is the user of the connection, which is another Mac's in effect.
            node_name: _,
            credential: _,
            agent: _,
            settings: AgentSettings { provider_id: _, node_labels: _, max_pods: _, is_builder: _, further: _ },
            tart: _,
            dhcp_lease_seconds: _,
            node_exporter: _,
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
            ("dhcp_lease_seconds", HostConfig { dhcp_lease_seconds: 60, ..base() }),
            ("node_exporter", HostConfig { node_exporter: Some(exporter), ..base() }),
            ("node_exporter's address", HostConfig { node_exporter: Some(listen), ..base() }),
        ]
    }
}

async fn apply(mac: &MemoryMac, config: &HostConfig) -> Report {
    let password = Some(Secret::new(b"canary-password".to_vec()));
    converge(mac, &config.steps(), &Mode::Apply(Inputs { password }), |_, _| ()).await
}

async fn roll(mac: &MemoryMac, config: &HostConfig) -> Report {
    mac.state().pushes.clear();
    converge(mac, &config.steps(), &Mode::Apply(Inputs::default()), |_, _| ()).await
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
    let base = files.config();
    for (field, config) in files.variations() {
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

#[tokio::test(start_paused = true)]
async fn no_file_is_pushed_that_is_not_in_the_steps() {
    let files = Files::new();
    for (field, config) in files.variations() {
        let mac = bootstrapped(&config).await;
        let steps = serde_json::to_string(&config.steps()).unwrap();
        for path in mac.state().paths() {
            let name = path.rsplit('/').next().unwrap();
            // The notes say what was pushed; the password's file is made from no config.
            let is_own = path.starts_with("/var/db/dev.tuist.tart-provider") || path == "/etc/kcpassword";
            assert!(
                is_own || steps.contains(name) || config_directory(&path),
                "{field}: {path} is in no step"
            );
        }
    }
}

/// Directories above files of the steps.
fn config_directory(path: &str) -> bool {
    ["/etc/newsyslog.d", "/usr/local/bin", "/usr/local/lib/tart", "/etc/tart-kubelet"].contains(&path)
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

/// Wherever the connection is cut, the next run finishes what was begun.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_cut_anywhere_in_a_roll_is_healed_by_the_next_run() {
    let files = Files::new();
    let second = HostConfig {
        agent: files.artifact(b"agent 2"),
        settings: AgentSettings { max_pods: Some(1), ..AgentSettings::default() },
        ..files.config()
    };
    for cut_at in [
        "shasum",
        ".tart-kubelet.staged",
        "codesign",
        "--version",
        "/bin/ln",
        "/bin/mv",
        "dev.tuist.tart-provider/tart-kubelet",
        "dev.tuist.tart-kubelet.plist",
        "enable",
        "bootout",
        "bootstrap",
        "dev.tuist.tart-kubelet.rolled",
        ".tart-kubelet.previous",
    ] {
        let mac = bootstrapped(&files.config()).await;
        mac.state().cut_at = Some(cut_at);
        let report = roll(&mac, &second).await;
        assert!(report.failed() > 0, "{cut_at}: {report:?}");
        mac.state().cut_at = None;
        let report = roll(&mac, &second).await;
        assert_eq!(report.failed(), 0, "{cut_at}: {report:?}");
        assert_eq!(mac.bytes(AGENT_BINARY).unwrap(), b"agent 2 signed", "{cut_at}");
        assert!(mac.arguments(AGENT_LABEL).contains(&"--max-pods=1".to_owned()), "{cut_at}");
        let fresh = roll(&mac, &second).await;
        assert_eq!(fresh.changed(), 0, "{cut_at}: {fresh:?}");
    }
}

/// The binary is in place, and the connection is cut before the restart: the bytes on the disk alone would say that all is done.
#[tokio::test(start_paused = true)]
async fn an_agent_that_runs_an_old_binary_is_restarted_by_the_next_run() {
    let files = Files::new();
    let mac = bootstrapped(&files.config()).await;
    let pid = mac.pid(AGENT_LABEL);
    let second = HostConfig { agent: files.artifact(b"agent 2"), ..files.config() };
    mac.state().cut_at = Some("kickstart");
    assert!(roll(&mac, &second).await.failed() > 0);
    assert_eq!((mac.bytes(AGENT_BINARY).unwrap(), mac.pid(AGENT_LABEL)), (b"agent 2 signed".to_vec(), pid));
    mac.state().cut_at = None;
    assert_eq!(roll(&mac, &second).await.failed(), 0);
    assert_ne!(mac.pid(AGENT_LABEL), pid);
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
    assert_eq!(report.0.len(), report.failed(), "{report:?}");
    assert_eq!(mac.state().pushes, [""; 0]);
    let Outcome::Failed(error) = &report.0[0] else { panic!("{report:?}") };
    assert!(error.to_string().contains("tart-provider host prepare"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_in_a_command_line_or_in_words() {
    let files = Files::new();
    for (field, config) in files.variations() {
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
