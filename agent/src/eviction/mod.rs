//! Eviction: keeps disk space free on the Node. Images go first. A Pod goes only if no image may go and the Node is still short.

pub(crate) mod ranking;

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::apiserver::events::{EventReason, Events};
use crate::error_chain::chain;
use crate::fs::blocking_io::within;
use crate::fs::file::FileError;
use crate::image::gc::{DiskSpace, SpaceRequest, SpaceResult};
use crate::names::PodUid;
use crate::node::health::NodeHealth;
use crate::node::signals::SignalSources;
use crate::node::signals::thresholds::{Signal, Thresholds};
use crate::os::availability::{Availability, volume};
use crate::pod::registry::PodRegistry;
use crate::pod::status::is_final;
use crate::state::{PodDir, StateDir};
use crate::tart::Tart;
use crate::volume::pod_usage::used;
use ranking::{EvictionCandidate, first};

/// As often as the kubelet measures.
const INTERVAL: Duration = Duration::from_secs(10);
/// A disk that does not answer is measured again later.
const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// How long the agent may take to measure what Pods use.
const MEASURE_LIMIT: Duration = Duration::from_mins(2);

#[derive(Debug)]
pub(crate) struct EvictionManager {
    pub(crate) pods: PodRegistry,
    pub(crate) disk_space: DiskSpace,
    /// The Node's health: no Pod is evicted before it shows `DiskPressure`.
    pub(crate) health: watch::Receiver<Option<NodeHealth>>,
    pub(crate) events: Events,
    pub(crate) tart: Tart,
    /// Where free space is measured.
    pub(crate) signals: SignalSources,
    /// Below which amounts a Pod is evicted.
    pub(crate) thresholds: Thresholds,
    pub(crate) state: StateDir,
}

/// A disk with too little free space.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shortage {
    /// The kubelet's words for it.
    words: String,
    /// Whether images are on the disk that is short.
    has_images: bool,
}

impl EvictionManager {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        loop {
            // From before the measurement: what a pass frees meanwhile may be enough.
            let since = self.disk_space.passes();
            let short = self.shortage().await;
            if short.is_none() {
                self.reserve_disk_space().await;
            }
            let is_short = short.as_ref().is_some_and(|short| short.has_images);
            let result = self.disk_space.free(SpaceRequest::Node { is_short, since }).await;
            if short.is_some() && result == SpaceResult::Freed {
                continue;
            }
            // A pass may take minutes, so the agent measures again before it evicts a Pod.
            if short.is_some()
                && self.has_disk_pressure()
                && let Some(short) = self.shortage().await
            {
                self.evict_one(&short).await;
            }
            sleep(INTERVAL).await;
        }
    }

    /// Whether the Node shows `DiskPressure`, so that the scheduler sends no new Pod.
    fn has_disk_pressure(&self) -> bool {
        self.health.borrow().as_ref().is_some_and(|health| health.shortages.disk.is_some())
    }

    /// While there is enough space, the agent reserves some for its own files.
    async fn reserve_disk_space(&self) {
        let state = self.state.clone();
        match within(LOOK_LIMIT, move || state.reserve_disk_space()).await {
            Some(Ok(())) => {}
            Some(Err(error)) => warn!(error = chain(&error), "cannot set space aside"),
            None => warn!("the disk does not let any space be set aside"),
        }
    }

    async fn shortage(&self) -> Option<Shortage> {
        let (signals, thresholds) = (self.signals.clone(), self.thresholds.clone());
        let found = within(LOOK_LIMIT, move || look(&signals, &thresholds)).await;
        if found.is_none() {
            warn!("the disk does not say how full it is");
        }
        found?
    }

    /// Evicts one Pod, unless an evicted one is still being cleaned up.
    async fn evict_one(&self, short: &Shortage) {
        let pods = self.pods.pods();
        let (state, tart, registry) = (self.state.clone(), self.tart.clone(), self.pods.clone());
        let measure = move || candidates(&state, &tart, &pods, |uid| registry.is_planned(uid));
        let candidates = match within(MEASURE_LIMIT, measure).await {
            Some(Ok(Some(candidates))) => candidates,
            Some(Ok(None)) => return,
            Some(Err(error)) => return warn!(error = chain(&error), "cannot tell what Pods use"),
            None => return warn!("what Pods use cannot be measured in time"),
        };
        let Some(candidate) = first(&candidates) else { return };
        let (uid, why) = (&candidate.uid, format!("{}{}", short.words, candidate.words()));
        let Some(pod) = self.pods.pod(uid) else { return };
        // The Pod's worker sees the file, and does the rest.
        if let Err(error) = self.state.pod(uid.clone()).evict(&why) {
            return warn!(%uid, error = chain(&error), "cannot evict a Pod; trying again");
        }
        info!(%uid, "{why}");
        self.events.warning(&pod, EventReason::Evicted, &why);
    }
}

fn look(signals: &SignalSources, thresholds: &Thresholds) -> Option<Shortage> {
    let device = |path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let is_one = device(&signals.nodefs) == device(&signals.imagefs);
    let found = [
        (Signal::ImageFs, volume(&signals.imagefs), true),
        (Signal::NodeFs, volume(&signals.nodefs), is_one),
    ];
    found.into_iter().find_map(|(signal, figure, has_images)| {
        let Availability { available, total } = figure?;
        thresholds.shortage(signal, figure?)?;
        let least = thresholds.value(signal)?.of(total);
        let words = format!(
            "The node was low on resource: ephemeral-storage. Threshold quantity: {least}, available: {available}. "
        );
        Some(Shortage { words, has_images })
    })
}

/// The Pods that could be evicted; `None` while an evicted Pod still has a VM, or its image is still being pulled.
fn candidates(
    state: &StateDir,
    tart: &Tart,
    pods: &[(PodUid, Arc<Pod>)],
    is_planned: impl Fn(&PodUid) -> bool,
) -> Result<Option<Vec<EvictionCandidate>>, FileError> {
    let mut candidates = Vec::new();
    for dir in state.pods()? {
        if dir.evicted()?.is_some() && (is_planned(dir.uid()) || has_vm(&dir)?) {
            return Ok(None);
        }
    }
    for (uid, pod) in pods {
        let dir = state.pod(uid.clone());
        let is_over = pod.metadata.deletion_timestamp.is_some() || is_final(pod.status.as_ref());
        if !is_over && dir.record()?.is_some() && dir.evicted()?.is_none() {
            candidates.push(EvictionCandidate::of(uid.clone(), pod, used(&dir, tart)?));
        }
    }
    Ok(Some(candidates))
}

fn has_vm(dir: &PodDir) -> Result<bool, FileError> {
    for run in dir.runs()? {
        if !run.view()?.cleaned {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::PodName;
    use crate::state::PodRecord;
    use crate::testing;
    use jiff::Timestamp;

    #[test]
    fn no_other_pod_is_evicted_while_the_image_of_an_evicted_one_is_pulled() {
        let dir = testing::dir();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        let tart = Tart::in_home("tart".as_ref(), dir.path());
        let [first, second] = ["a", "b"].map(|uid| uid.parse::<PodUid>().unwrap());
        for uid in [&first, &second] {
            let pod = PodName { namespace: "n".into(), name: uid.to_string() };
            let record = PodRecord { pod, accepted_at: Timestamp::UNIX_EPOCH };
            state.pod(uid.clone()).accept(&record).unwrap();
        }
        let pods = [&first, &second].map(|uid| (uid.clone(), Arc::<Pod>::default()));
        let found = |planned: Option<&PodUid>| {
            let found = candidates(&state, &tart, &pods, |uid| planned == Some(uid)).unwrap();
            found.map(|all| all.into_iter().map(|one| one.uid).collect::<Vec<_>>())
        };
        assert_eq!(found(Some(&first)), Some(vec![first.clone(), second.clone()]));
        state.pod(first.clone()).evict("no room").unwrap();
        assert_eq!(found(Some(&first)), None);
        assert_eq!(found(Some(&second)), Some(vec![second.clone()]), "the evicted Pod is not planned");
        assert_eq!(found(None), Some(vec![second.clone()]));
    }
}
