//! Whether a VM could start here, put together from what is looked at apart: tart, the latest starts, and what the host has left.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use super::address::AddressSource;
use super::pressure::Pressures;
use super::signals::SignalSources;
use super::start_failures::StartFailures;
use super::thresholds::Thresholds;
use crate::error_chain::chain;
use crate::image::inventory::LocalImage;
use crate::metrics::Metrics;
use crate::tart::{Tart, TartError, TartVersion};

const TART_INTERVAL: Duration = Duration::from_secs(30);
/// Whoever has mended it is watching.
const ILL_TART_INTERVAL: Duration = Duration::from_secs(5);
/// As often as the kubelet looks.
const GAUGE_INTERVAL: Duration = Duration::from_secs(10);

/// What is known of the host's ability to run VMs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NodeHealth {
    /// The version of tart, when it tells one.
    pub(crate) tart_version: Option<String>,
    /// Why no VM can start here, when none can.
    pub(crate) problem: Option<HealthProblem>,
    /// What the host is short of.
    pub(crate) short_of: Shortages,
    /// The Node's address, when it has one.
    pub(crate) address: Option<IpAddr>,
    /// The images on this host.
    pub(crate) images: Arc<Vec<LocalImage>>,
}

/// What the host is short of, in words.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Shortages {
    /// Space.
    pub(crate) disk: Option<String>,
    /// Memory.
    pub(crate) memory: Option<String>,
    /// Process ids.
    pub(crate) pid: Option<String>,
    /// Addresses for VMs.
    pub(crate) addresses: Option<String>,
}

/// Why no VM can start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthProblem {
    /// One word for the Node's condition.
    pub(crate) reason: &'static str,
    /// What a person can do about it.
    pub(crate) message: String,
}

/// What a look at tart found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TartHealth {
    version: Option<String>,
    problem: Option<HealthProblem>,
}

impl TartHealth {
    /// Asks tart.
    pub(crate) async fn check(tart: &Tart) -> Self {
        match tart.version().await {
            Ok(version) => {
                let problem = (!version.is_supported()).then(|| HealthProblem {
                    reason: "TartUnsupported",
                    message: format!(
                        "tart {version} is too old: the agent needs {} or later, which can run commands in guests",
                        TartVersion::OLDEST
                    ),
                });
                Self { version: Some(version.to_string()), problem }
            }
            Err(error) => {
                let reason = match &error {
                    TartError::Spawn { .. } => "TartMissing",
                    TartError::DeadlineExceeded { .. } => "TartHanging",
                    TartError::Garbage { .. } | TartError::NotCached(_) | TartError::Failed { .. } => {
                        "TartBroken"
                    }
                };
                Self { version: None, problem: Some(HealthProblem { reason, message: chain(&error) }) }
            }
        }
    }
}

/// What a look at the host found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HostHealth {
    short_of: Shortages,
    address: Option<IpAddr>,
}

/// All that health is put together from.
#[derive(Debug)]
pub(crate) struct HealthSources {
    /// Tart, once it was asked.
    pub(crate) tart: watch::Receiver<Option<TartHealth>>,
    /// The latest starts.
    pub(crate) starts: watch::Receiver<StartFailures>,
    /// The host.
    pub(crate) host: watch::Receiver<HostHealth>,
    /// The images on it.
    pub(crate) images: watch::Receiver<Arc<Vec<LocalImage>>>,
}

/// Health from its parts. A tart that does not work explains everything else.
pub(crate) fn compose(
    tart: &TartHealth,
    starts: &StartFailures,
    host: &HostHealth,
    images: &Arc<Vec<LocalImage>>,
    now: Timestamp,
) -> NodeHealth {
    let problem = tart.problem.clone().or_else(|| starts.problem(now).map(|(problem, _)| problem.clone()));
    NodeHealth {
        tart_version: tart.version.clone(),
        problem,
        short_of: host.short_of.clone(),
        address: host.address,
        images: images.clone(),
    }
}

/// Puts health together whenever a part of it changes; `None` until tart was asked for the first time.
pub(crate) async fn follow(mut sources: HealthSources, health: watch::Sender<Option<NodeHealth>>) {
    loop {
        let now = Timestamp::now();
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
            // Whoever told us has ended, and so does the agent.
            else => return,
        }
    }
}

/// The Node's address, for those who need nothing else of its health.
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
                warn!(reason = problem.reason, "no VM can start: {}", problem.message);
            }
            (None, Some(_)) => info!("VMs can start again"),
            _ => {}
        }
        *known = Some(found);
        true
    });
}

/// Asks tart again and again, for as long as it is polled.
pub(crate) async fn watch_tart(tart: Tart, health: watch::Sender<Option<TartHealth>>) {
    loop {
        let found = TartHealth::check(&tart).await;
        let pause = if found.problem.is_some() { ILL_TART_INTERVAL } else { TART_INTERVAL };
        health.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&found);
            *known = Some(found);
            changed
        });
        sleep(pause).await;
    }
}

/// How to look at the host.
#[derive(Debug, Clone)]
pub(crate) struct HostWatch {
    /// Where to look.
    pub(crate) gauges: SignalSources,
    /// When there is too little.
    pub(crate) thresholds: Thresholds,
    /// How long there must be enough before the pressure is off.
    pub(crate) period: Duration,
    /// Where the address comes from.
    pub(crate) source: AddressSource,
    /// The address to begin with.
    pub(crate) address: Option<IpAddr>,
    /// Where figures go.
    pub(crate) metrics: Metrics,
}

impl HostWatch {
    /// Looks at the host again and again, from a thread of its own: a volume that does not answer blocks whoever asks.
    pub(crate) fn spawn(self) -> std::io::Result<watch::Receiver<HostHealth>> {
        let mut pressures = Pressures::default();
        let (sender, receiver) =
            watch::channel(HostHealth { short_of: Shortages::default(), address: self.address });
        thread::Builder::new().name("host".to_owned()).spawn(move || {
            while !sender.is_closed() {
                let seen = self.gauges.read();
                self.metrics.addresses(seen.addresses);
                pressures = pressures.after(&seen, &self.thresholds, self.period, Timestamp::now());
                let address = self.source.next(sender.borrow().address);
                let found = HostHealth { short_of: Shortages::of(&pressures), address };
                sender.send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
                thread::sleep(GAUGE_INTERVAL);
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
            addresses: words(pressures.addresses.message()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::start_failures::Start;
    use crate::state::HostFault;

    #[test]
    fn a_broken_tart_explains_everything_else() {
        let now = Timestamp::from_second(100).unwrap();
        let fault = Start::Failed { fault: HostFault::Session, message: "no".into(), at: now };
        let starts = StartFailures::default().after(&fault);
        let host = HostHealth::default();
        let well = TartHealth { version: Some("2.35.0".into()), problem: None };
        let missing = HealthProblem { reason: "TartMissing", message: "no tart".into() };
        let broken = TartHealth { version: None, problem: Some(missing.clone()) };
        let reason = |tart: &TartHealth, starts: &StartFailures| {
            compose(tart, starts, &host, &Arc::default(), now).problem.map_or("", |problem| problem.reason)
        };
        assert_eq!(reason(&well, &StartFailures::default()), "");
        assert_eq!(reason(&well, &starts), "NoGuiSession");
        assert_eq!(reason(&broken, &starts), "TartMissing");
    }
}
