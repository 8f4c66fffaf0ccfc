//! What `doctor` thinks of what it sees: a table of checks.

use std::fmt;

use serde::Serialize;

use super::observation::{ApiAnswer, Observation, TartAnswer};
use crate::identity::KubeconfigFlaw;

/// Addresses run out when guests keep them for longer than this: macOS has 253 for VMs.
const MAX_LEASE_SECONDS: u32 = 3600;
/// macOS' own default: a day.
const DEFAULT_LEASE_SECONDS: u32 = 86400;
/// An image of macOS has about as much.
const MIN_DISK: u64 = 60 << 30;
/// Certificates of a cluster are valid from five minutes before they are made.
const MAX_CLOCK_SKEW: i64 = 60;

const LOCAL_NETWORK: &str = "Local Network privacy";
const SIGNATURE: &str = "code signature";
const KUBECONFIG: &str = "kubeconfig";
const API_SERVER: &str = "API server";

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// It is as it should be.
    Ok,
    /// It works now, and will not always.
    Warning,
    /// No VM can run, or no cluster can be reached.
    Broken,
}

/// What `doctor --fix` can mend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fix {
    /// The Mac never sleeps, and starts again after a power cut.
    NeverSleep,
    /// Guests give their addresses back after ten minutes.
    ShortLeases,
    /// The agent's program gets a signature.
    Sign,
    /// The Mac sets its clock by the network.
    NetworkTime,
}

/// One check and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// What was checked.
    pub(crate) check: &'static str,
    /// How bad it is.
    pub(crate) level: Level,
    /// What was found.
    pub(crate) found: String,
    /// The command that mends it, or what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mend: Option<String>,
    /// Whether `doctor --fix` mends it.
    #[serde(skip)]
    pub(crate) fix: Option<Fix>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, found: found.into(), mend: None, fix: None }
    }

    fn bad(check: &'static str, level: Level, found: impl Into<String>, mend: &str) -> Self {
        Self { check, level, found: found.into(), mend: Some(mend.to_owned()), fix: None }
    }

    /// Whether it is a lack of an agent that is not installed.
    pub(crate) fn is_cured_by_install(&self) -> bool {
        [LOCAL_NETWORK, SIGNATURE].contains(&self.check)
    }

    /// Whether it is a lack of the credentials that the agent has.
    pub(crate) fn is_of_credentials(&self) -> bool {
        [KUBECONFIG, API_SERVER].contains(&self.check)
    }

    fn with_fix(self, fix: Fix) -> Self {
        Self { fix: Some(fix), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.found)?;
        self.mend.as_ref().map_or(Ok(()), |mend| write!(f, " → {mend}"))
    }
}

/// Judges a Mac, a finding for each check.
pub(crate) fn judge(seen: &Observation) -> Vec<Finding> {
    let mut findings = vec![
        tart(seen),
        session(seen),
        auto_login(seen),
        keychain(seen),
        sleep(seen),
        leases(seen),
        local_network(seen),
        disk(seen),
        full_disk_access(seen),
        signature(seen),
        vm_firewall(seen),
    ];
    findings.extend(kubeconfig(seen));
    findings.extend(api_server(seen));
    findings
}

fn tart(seen: &Observation) -> Finding {
    const CHECK: &str = "tart";
    const INSTALL: &str = "brew install cirruslabs/cli/tart";
    match &seen.tart {
        Some(TartAnswer::Usable(version)) => Finding::ok(CHECK, version),
        Some(TartAnswer::Outdated(version)) => {
            let found = format!("{version} is older than 2.27");
            Finding::bad(CHECK, Level::Broken, found, "brew upgrade cirruslabs/cli/tart")
        }
        Some(TartAnswer::Missing(path)) => {
            let mend = format!("{INSTALL}, or name it with --tart-binary");
            Finding::bad(CHECK, Level::Broken, format!("there is no {path}"), &mend)
        }
        Some(TartAnswer::Broken(why)) => Finding::bad(
            CHECK,
            Level::Broken,
            format!("it does not work: {why}"),
            "brew reinstall cirruslabs/cli/tart",
        ),
        None => Finding::bad(CHECK, Level::Broken, "it was not looked for", INSTALL),
    }
}

fn session(seen: &Observation) -> Finding {
    const CHECK: &str = "GUI session";
    match &seen.console_user {
        Some(user) if seen.has_session => Finding::ok(CHECK, format!("{user} is logged in at the screen")),
        Some(user) => Finding::bad(
            CHECK,
            Level::Broken,
            format!("{user} has no session at the screen"),
            "sudo launchctl kickstart -k system/com.apple.loginwindow",
        ),
        None => Finding::bad(
            CHECK,
            Level::Broken,
            "no user is logged in at the screen, and macOS starts VMs only for one who is",
            "log in at the screen, or by Screen Sharing",
        ),
    }
}

fn auto_login(seen: &Observation) -> Finding {
    const CHECK: &str = "automatic login";
    const MEND: &str =
        "System Settings > Users & Groups > Automatically log in as (needs FileVault to be off)";
    match (&seen.auto_login_user, &seen.console_user) {
        (Some(user), Some(console)) if user == console => Finding::ok(CHECK, format!("on for {user}")),
        (Some(user), None) => Finding::ok(CHECK, format!("on for {user}")),
        (Some(user), Some(console)) => {
            let found = format!("on for {user}, but {console} is logged in");
            Finding::bad(CHECK, Level::Warning, found, MEND)
        }
        (None, _) => Finding::bad(CHECK, Level::Warning, "off: no VM starts after a restart", MEND),
    }
}

fn keychain(seen: &Observation) -> Finding {
    const CHECK: &str = "keychain";
    match seen.is_keychain_unlocked {
        Some(true) => Finding::ok(CHECK, "the login keychain is unlocked"),
        Some(false) => Finding::bad(
            CHECK,
            Level::Broken,
            "the login keychain is locked, and macOS 15 and later start no VM without it",
            "security unlock-keychain login.keychain",
        ),
        None => Finding::bad(
            CHECK,
            Level::Warning,
            "the login keychain was not found",
            "log in at the screen once; macOS makes it then",
        ),
    }
}

fn sleep(seen: &Observation) -> Finding {
    const CHECK: &str = "sleep";
    const MEND: &str = "sudo pmset -a sleep 0 displaysleep 0 disksleep 0 autorestart 1";
    match seen.sleep_minutes {
        Some(0) => Finding::ok(CHECK, "never"),
        Some(minutes) => {
            let found = match seen.prevents_sleep.filter(|_| seen.has_job) {
                Some(true) => {
                    format!("after {minutes} min, were it not for the agent, which keeps the Mac awake")
                }
                Some(false) => {
                    format!(
                        "after {minutes} min, and VMs sleep with the Mac: the agent does not keep it awake now"
                    )
                }
                None => format!("after {minutes} min, and VMs sleep with the Mac"),
            };
            Finding::bad(CHECK, Level::Warning, found, MEND).with_fix(Fix::NeverSleep)
        }
        None => Finding::bad(CHECK, Level::Warning, "pmset does not tell", MEND),
    }
}

fn leases(seen: &Observation) -> Finding {
    const CHECK: &str = "DHCP lease time";
    let seconds = seen.lease_seconds.unwrap_or(DEFAULT_LEASE_SECONDS);
    if seconds <= MAX_LEASE_SECONDS {
        return Finding::ok(CHECK, format!("{seconds} s"));
    }
    let mend = "sudo defaults write /Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist \
                bootpd -dict-add DHCPLeaseTimeSecs -int 600";
    let found = format!("{seconds} s: after 253 VMs in that time no VM gets an address");
    Finding::bad(CHECK, Level::Warning, found, mend).with_fix(Fix::ShortLeases)
}

fn local_network(seen: &Observation) -> Finding {
    if seen.has_job {
        return Finding::ok(LOCAL_NETWORK, "the agent is a daemon, which macOS does not ask");
    }
    let found = "the agent is not installed as a daemon: macOS 15 and later may keep it from its VMs";
    Finding::bad(LOCAL_NETWORK, Level::Warning, found, "sudo tart-kubelet join, or sudo tart-kubelet install")
}

fn disk(seen: &Observation) -> Finding {
    const CHECK: &str = "disk";
    let gib = |bytes: u64| bytes >> 30;
    match seen.disk {
        Some((available, total)) if available >= MIN_DISK => {
            Finding::ok(CHECK, format!("{} GiB of {} GiB are free", gib(available), gib(total)))
        }
        Some((available, total)) => {
            let found = format!(
                "{} GiB of {} GiB are free, which is less than an image has",
                gib(available),
                gib(total)
            );
            Finding::bad(
                CHECK,
                Level::Warning,
                found,
                "tart prune --older-than 7, or delete what is not needed",
            )
        }
        None => Finding::bad(CHECK, Level::Warning, "its size was not found out", "df -h /"),
    }
}

fn full_disk_access(seen: &Observation) -> Finding {
    const CHECK: &str = "Full Disk Access";
    match seen.is_home_readable {
        Some(true) => Finding::ok(CHECK, "tart's directory can be read"),
        Some(false) => Finding::bad(
            CHECK,
            Level::Broken,
            "macOS keeps the user from tart's directory",
            "System Settings > Privacy & Security > Full Disk Access: add /usr/local/bin/tart-kubelet, or use another TART_HOME",
        ),
        None => Finding::ok(CHECK, "tart has no directory yet"),
    }
}

fn signature(seen: &Observation) -> Finding {
    const CHECK: &str = SIGNATURE;
    const MEND: &str = "sudo codesign --force --sign - /usr/local/bin/tart-kubelet";
    match seen.signature {
        Some(true) => Finding::ok(CHECK, "valid"),
        Some(false) => {
            let found = "macOS kills the agent: its program has no valid signature";
            Finding::bad(CHECK, Level::Broken, found, MEND).with_fix(Fix::Sign)
        }
        None => Finding::ok(CHECK, "the agent's program is not installed yet"),
    }
}

fn vm_firewall(seen: &Observation) -> Finding {
    const CHECK: &str = "network of guests";
    const MEND: &str = "tart-provider host apply for this Mac, or run only Pods that you trust";
    match seen.has_vm_firewall {
        Some(true) => {
            Finding::ok(CHECK, "the VM firewall keeps guests from private networks and from the Mac itself")
        }
        Some(false) => Finding::bad(
            CHECK,
            Level::Warning,
            "guests reach the Mac, its network and link-local addresses: the VM firewall is not loaded",
            MEND,
        ),
        None => Finding::bad(
            CHECK,
            Level::Warning,
            "pfctl does not tell whether the VM firewall is loaded; without it guests reach the Mac and its network",
            "run doctor with sudo",
        ),
    }
}

/// The kubeconfig, on a Mac that has joined.
fn kubeconfig(seen: &Observation) -> Vec<Finding> {
    const CHECK: &str = KUBECONFIG;
    match seen.kubeconfig.as_deref() {
        None => Vec::new(),
        Some([]) => vec![Finding::ok(CHECK, "only the agent's user reads it, and it names whom to trust")],
        Some(flaws) => {
            let finding =
                |flaw: &KubeconfigFlaw| Finding::bad(CHECK, Level::Warning, flaw.to_string(), &flaw.mend());
            flaws.iter().map(finding).collect()
        }
    }
}

/// The API server and the clock, on a Mac that has joined.
fn api_server(seen: &Observation) -> Vec<Finding> {
    const API: &str = API_SERVER;
    const CLOCK: &str = "clock";
    match &seen.api_server {
        None => Vec::new(),
        Some(ApiAnswer::Silent(why)) => {
            vec![Finding::bad(
                API,
                Level::Broken,
                why.clone(),
                "look at the network, and at the server in the kubeconfig",
            )]
        }
        Some(ApiAnswer::Answered(skew)) => {
            let clock = match skew {
                Some(skew) if skew.abs() > MAX_CLOCK_SKEW => {
                    let found = format!(
                        "{} s away from the API server's: certificates and tokens may be refused",
                        skew.abs()
                    );
                    let mend = "sudo systemsetup -setusingnetworktime on";
                    Some(Finding::bad(CLOCK, Level::Broken, found, mend).with_fix(Fix::NetworkTime))
                }
                Some(skew) => {
                    Some(Finding::ok(CLOCK, format!("{} s away from the API server's", skew.abs())))
                }
                None => None,
            };
            std::iter::once(Finding::ok(API, "it answers")).chain(clock).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Mac that has all.
    fn good() -> Observation {
        Observation {
            tart: Some(TartAnswer::Usable("2.35.0".into())),
            console_user: Some("m1".into()),
            has_session: true,
            auto_login_user: Some("m1".into()),
            is_keychain_unlocked: Some(true),
            sleep_minutes: Some(0),
            prevents_sleep: Some(true),
            lease_seconds: Some(600),
            disk: Some((200 << 30, 500 << 30)),
            is_home_readable: Some(true),
            signature: Some(true),
            has_job: true,
            has_vm_firewall: Some(true),
            kubeconfig: Some(Vec::new()),
            api_server: Some(ApiAnswer::Answered(Some(2))),
        }
    }

    #[test]
    fn a_mac_that_has_all_is_well() {
        let findings = judge(&good());
        assert!(
            findings.iter().all(|finding| finding.level == Level::Ok && finding.mend.is_none()),
            "{findings:#?}"
        );
        assert_eq!(findings.len(), 14);
    }

    #[test]
    fn a_mac_that_would_sleep_says_whether_a_process_keeps_it_awake() {
        for (prevents_sleep, has_job, words) in [
            (Some(true), true, "which keeps the Mac awake"),
            (Some(false), true, "the agent does not keep it awake now"),
            (Some(false), false, "after 1 min, and VMs sleep with the Mac"),
            (None, true, "after 1 min, and VMs sleep with the Mac"),
        ] {
            let finding = sleep(&Observation { sleep_minutes: Some(1), prevents_sleep, has_job, ..good() });
            assert!(finding.found.contains(words), "{finding}");
        }
    }

    #[test]
    fn each_lack_is_found_alone_and_says_how_to_mend_it() {
        let table: Vec<(&str, Level, Option<Fix>, Observation)> = vec![
            (
                "tart",
                Level::Broken,
                None,
                Observation { tart: Some(TartAnswer::Missing("/t".into())), ..good() },
            ),
            (
                "tart",
                Level::Broken,
                None,
                Observation { tart: Some(TartAnswer::Outdated("2.26.0".into())), ..good() },
            ),
            (
                "tart",
                Level::Broken,
                None,
                Observation { tart: Some(TartAnswer::Broken("x".into())), ..good() },
            ),
            ("GUI session", Level::Broken, None, Observation { console_user: None, ..good() }),
            ("GUI session", Level::Broken, None, Observation { has_session: false, ..good() }),
            ("automatic login", Level::Warning, None, Observation { auto_login_user: None, ..good() }),
            (
                "automatic login",
                Level::Warning,
                None,
                Observation { auto_login_user: Some("x".into()), ..good() },
            ),
            ("keychain", Level::Broken, None, Observation { is_keychain_unlocked: Some(false), ..good() }),
            ("keychain", Level::Warning, None, Observation { is_keychain_unlocked: None, ..good() }),
            (
                "sleep",
                Level::Warning,
                Some(Fix::NeverSleep),
                Observation { sleep_minutes: Some(1), ..good() },
            ),
            (
                "DHCP lease time",
                Level::Warning,
                Some(Fix::ShortLeases),
                Observation { lease_seconds: None, ..good() },
            ),
            ("Local Network privacy", Level::Warning, None, Observation { has_job: false, ..good() }),
            ("disk", Level::Warning, None, Observation { disk: Some((1 << 30, 500 << 30)), ..good() }),
            (
                "Full Disk Access",
                Level::Broken,
                None,
                Observation { is_home_readable: Some(false), ..good() },
            ),
            (
                "code signature",
                Level::Broken,
                Some(Fix::Sign),
                Observation { signature: Some(false), ..good() },
            ),
            (
                "network of guests",
                Level::Warning,
                None,
                Observation { has_vm_firewall: Some(false), ..good() },
            ),
            ("network of guests", Level::Warning, None, Observation { has_vm_firewall: None, ..good() }),
            (
                "kubeconfig",
                Level::Warning,
                None,
                Observation { kubeconfig: Some(vec![KubeconfigFlaw::SkipsTlsVerify]), ..good() },
            ),
            (
                "API server",
                Level::Broken,
                None,
                Observation { api_server: Some(ApiAnswer::Silent("x".into())), ..good() },
            ),
            (
                "clock",
                Level::Broken,
                Some(Fix::NetworkTime),
                Observation { api_server: Some(ApiAnswer::Answered(Some(-61))), ..good() },
            ),
        ];
        for (check, level, fix, seen) in table {
            let findings = judge(&seen);
            let bad: Vec<_> = findings.iter().filter(|finding| finding.level != Level::Ok).collect();
            let [bad] = bad[..] else { panic!("{check}: {bad:#?}") };
            assert_eq!((bad.check, bad.level, bad.fix), (check, level, fix));
            assert!(bad.mend.as_ref().is_some_and(|mend| !mend.is_empty()), "{bad:?}");
        }
    }
}
