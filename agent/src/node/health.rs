//! Whether a VM can start on this host: from the state of tart, the latest starts and the host's eviction signals.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use super::address::AddressSource;
use super::pulse::Pulse;
use super::signals::SignalSources;
use super::signals::pressure::Pressures;
use super::signals::thresholds::Thresholds;
use super::start_failures::{StartFailures, StartReports};
use crate::clock;
use crate::error_chain::chain;
use crate::metrics::Metrics;
use crate::tart::{CachedImage, Tart, TartError, TartVersion};

const TART_INTERVAL: Duration = Duration::from_secs(30);
/// Shorter while tart is broken: a user who repairs it waits for the Node to become ready.
const BROKEN_TART_INTERVAL: Duration = Duration::from_secs(5);
/// The kubelet's interval.
const SIGNAL_INTERVAL: Duration = Duration::from_secs(10);

/// Whether VMs can start on this host, and what else the Node's status shows of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NodeHealth {
    pub(super) tart_version: Option<String>,
    /// Why no VM can start; `None` if VMs can start.
    pub(crate) problem: Option<HealthProblem>,
    pub(crate) shortages: Shortages,
    pub(super) address: Option<IpAddr>,
    pub(super) images: Arc<Vec<CachedImage>>,
}

/// What the host is short of, in words for the Node's conditions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Shortages {
    pub(crate) disk: Option<String>,
    pub(super) memory: Option<String>,
    pub(super) pid: Option<String>,
    /// Addresses for VMs.
    pub(super) addresses: Option<String>,
}

words! {
    /// The reason of `Ready` while no VM can start.
    pub(crate) enum NotReadyReason {
        TartMissing = "TartMissing",
        TartUnsupported = "TartUnsupported",
        TartHanging = "TartHanging",
        TartBroken = "TartBroken",
        NoGuiSession = "NoGuiSession",
        KeychainLocked = "KeychainLocked",
        VmSlotsLeaked = "VmSlotsLeaked",
        NoAddressForVms = "NoAddressForVms",
    }
}

/// Why no VM can start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthProblem {
    pub(crate) reason: NotReadyReason,
    /// What went wrong and what a user can do about it.
    pub(crate) message: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TartHealth {
    version: Option<String>,
    problem: Option<HealthProblem>,
}

impl TartHealth {
    async fn check(tart: &Tart) -> Self {
        let version = match tart.version().await {
            // A second try: tart may be slow once, on a Mac that has just woken up or pulls an image.
            Err(
                TartError::DeadlineExceeded { .. } | TartError::Garbage { .. } | TartError::Failed { .. },
            ) => tart.version().await,
            answer => answer,
        };
        match version {
            Ok(version) => {
                let problem = (!version.is_supported()).then(|| HealthProblem {
                    reason: NotReadyReason::TartUnsupported,
                    message: format!(
                        "tart {version} is too old: the agent needs {} or later, which can run commands in guests",
                        TartVersion::OLDEST
                    ),
                });
                Self { version: Some(version.to_string()), problem }
            }
            Err(error) => {
                let reason = match &error {
                    TartError::Spawn { .. } => NotReadyReason::TartMissing,
                    TartError::DeadlineExceeded { .. } => NotReadyReason::TartHanging,
                    TartError::Garbage { .. } | TartError::NotCached(_) | TartError::Failed { .. } => {
                        NotReadyReason::TartBroken
                    }
                };
                Self { version: None, problem: Some(HealthProblem { reason, message: chain(&error) }) }
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HostHealth {
    shortages: Shortages,
    address: Option<IpAddr>,
}

/// What [`NodeHealth`] is made from.
#[derive(Debug)]
pub(crate) struct HealthSources {
    /// `None` until tart has answered, or failed to.
    pub(crate) tart: watch::Receiver<Option<TartHealth>>,
    pub(crate) starts: watch::Receiver<StartFailures>,
    pub(crate) host: watch::Receiver<HostHealth>,
    pub(crate) images: watch::Receiver<Arc<Vec<CachedImage>>>,
}

/// A problem of tart hides problems of starts, because it causes them.
fn compose(
    tart: &TartHealth,
    starts: &StartFailures,
    host: &HostHealth,
    images: &Arc<Vec<CachedImage>>,
    now: Timestamp,
) -> NodeHealth {
    let problem = tart.problem.clone().or_else(|| starts.problem(now).map(|(problem, _)| problem));
    NodeHealth {
        tart_version: tart.version.clone(),
        problem,
        shortages: host.shortages.clone(),
        address: host.address,
        images: images.clone(),
    }
}

/// Publishes health whenever one of its sources changes, from tart's first answer on.
pub(crate) async fn follow(mut sources: HealthSources, health: watch::Sender<Option<NodeHealth>>) {
    loop {
        let now = clock::now();
        let tart = sources.tart.borrow_and_update().clone();
        let starts = sources.starts.borrow_and_update().clone();
        let host = sources.host.borrow_and_update().clone();
        let images = sources.images.borrow_and_update().clone();
        if let Some(tart) = tart {
            publish(compose(&tart, &starts, &host, &images, now), &health);
        }
        let forgiven = starts.problem(now).map(|(_, until)| {
            Duration::try_from(until.duration_since(now)).unwrap_or_default() + Duration::from_millis(1)
        });
        tokio::select! {
            Ok(()) = sources.tart.changed() => {}
            Ok(()) = sources.starts.changed() => {}
            Ok(()) = sources.host.changed() => {}
            Ok(()) = sources.images.changed() => {}
            () = sleep(forgiven.unwrap_or_default()), if forgiven.is_some() => {}
            // All sources have ended: the agent is ending.
            else => return,
        }
    }
}

/// The Node's address as a channel of its own.
pub(crate) fn addresses(mut health: watch::Receiver<Option<NodeHealth>>) -> watch::Receiver<Option<IpAddr>> {
    let (address, address_seen) = watch::channel(None);
    tokio::spawn(async move {
        loop {
            let found = health.borrow_and_update().as_ref().and_then(|health| health.address);
            address.send_if_modified(|known| std::mem::replace(known, found) != found);
            if health.changed().await.is_err() {
                return;
            }
        }
    });
    address_seen
}

fn publish(found: NodeHealth, health: &watch::Sender<Option<NodeHealth>>) {
    health.send_if_modified(|known| {
        if known.as_ref() == Some(&found) {
            return false;
        }
        let before = known.as_ref().and_then(|known| known.problem.as_ref());
        match (&found.problem, before) {
            (Some(problem), _) if Some(problem) != before => {
                warn!(reason = %problem.reason, "no VM can start: {}", problem.message);
            }
            (None, Some(_)) => info!("VMs can start again"),
            _ => {}
        }
        *known = Some(found);
        true
    });
}

/// Checks tart at intervals, for as long as it is polled.
pub(crate) async fn watch_tart(tart: Tart, health: watch::Sender<Option<TartHealth>>) {
    loop {
        let found = TartHealth::check(&tart).await;
        let pause = if found.problem.is_some() { BROKEN_TART_INTERVAL } else { TART_INTERVAL };
        let found = Some(found);
        health.send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
        sleep(pause).await;
    }
}

/// Reads the host's eviction signals and its address at intervals.
#[derive(Debug, Clone)]
pub(crate) struct HostWatch {
    pub(crate) signals: SignalSources,
    pub(crate) thresholds: Thresholds,
    /// How long there must be no shortage before the pressure ends.
    pub(crate) pressure_transition_period: Duration,
    pub(crate) address_source: AddressSource,
    /// The address at the start of the agent.
    pub(crate) address: Option<IpAddr>,
    /// Where a lack of addresses for VMs is a witness.
    pub(crate) starts: StartReports,
    pub(crate) pulse: Pulse,
    pub(crate) pulse_file: PathBuf,
    pub(crate) metrics: Metrics,
}

impl HostWatch {
    /// Starts a thread: a volume that does not answer blocks the thread that reads it.
    pub(crate) fn spawn(self) -> std::io::Result<watch::Receiver<HostHealth>> {
        let mut pressures = Pressures::default();
        let (sender, receiver) =
            watch::channel(HostHealth { shortages: Shortages::default(), address: self.address });
        thread::Builder::new().name("host".to_owned()).spawn(move || {
            while !sender.is_closed() {
                self.pulse.ask_disk(&self.pulse_file);
                let observations = self.signals.observe();
                self.metrics.dhcp_addresses(observations.dhcp_addresses);
                let period = self.pressure_transition_period;
                pressures = pressures.after(&observations, &self.thresholds, period, clock::now());
                self.starts.few_addresses(pressures.dhcp_addresses.message());
                let address = self.address_source.next(sender.borrow().address);
                let found = HostHealth { shortages: Shortages::of(&pressures), address };
                sender.send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
                thread::sleep(SIGNAL_INTERVAL);
            }
        })?;
        Ok(receiver)
    }
}

impl Shortages {
    fn of(pressures: &Pressures) -> Self {
        let words = |message: Option<&str>| message.map(str::to_owned);
        Self {
            disk: words(pressures.disk.message()),
            memory: words(pressures.memory.message()),
            pid: words(pressures.pid.message()),
            addresses: words(pressures.dhcp_addresses.message()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::start_failures::{Start, StartFailure};
    use crate::state::HostFault;
    use crate::testing::{self, at};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_problem_of_tart_hides_problems_of_starts() {
        let now = at(100);
        let failure = StartFailure {
            fault: HostFault::VmLimit { ours: 0 },
            message: "no".into(),
            pod: "a".parse().unwrap(),
            image: "image".into(),
            at: now,
        };
        let starts = StartFailures::default().after(&Start::Failed(failure));
        let host = HostHealth::default();
        let working = TartHealth { version: Some("2.35.0".into()), problem: None };
        let missing = HealthProblem { reason: NotReadyReason::TartMissing, message: "no tart".into() };
        let broken = TartHealth { version: None, problem: Some(missing.clone()) };
        let reason = |tart: &TartHealth, starts: &StartFailures| {
            compose(tart, starts, &host, &Arc::default(), now)
                .problem
                .map_or("", |problem| problem.reason.as_str())
        };
        assert_eq!(reason(&working, &StartFailures::default()), "");
        assert_eq!(reason(&working, &starts), "VmSlotsLeaked");
        assert_eq!(reason(&broken, &starts), "TartMissing");
    }

    #[tokio::test]
    async fn a_tart_that_fails_once_is_not_broken() {
        let dir = testing::dir();
        let (program, failures) = (dir.path().join("tart"), dir.path().join("failures"));
        // It fails as often as there are lines left, and says its version then.
        let script = format!(
            "#!/bin/sh\nif [ -s {0} ]; then sed -i 1d {0}; echo broken >&2; exit 1; fi\necho 2.35.0\n",
            failures.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        for (lines, reason) in [("", ""), ("once\n", ""), ("once\ntwice\n", "TartBroken")] {
            fs::write(&failures, lines).unwrap();
            let found = TartHealth::check(&Tart::new(&program)).await;
            assert_eq!(found.problem.map_or("", |problem| problem.reason.as_str()), reason, "{lines:?}");
        }
    }
}
