//! Eviction: keeps disk space free on the Node. Images go first. A Pod goes only if no image may go and the Node is still short.

pub(crate) mod ranking;

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::apiserver::events::{EventReason, Events};
use crate::error_chain::chain;
use crate::fs::blocking_io::{LOOK_LIMIT, within};
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
/// How long the file system may take to give back the blocks of a deleted VM: APFS frees those of a large file bit by bit.
const GIVE_BACK_LIMIT: Duration = Duration::from_secs(15);
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
    pub(crate) signals: SignalSources,
    pub(crate) thresholds: Thresholds,
    pub(crate) state: StateDir,
}

/// How far the space of the last evicted Pod is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CleanUp {
    /// No Pod was evicted, or the file system has had time to free its blocks.
    Over,
    /// An evicted Pod still has a VM, or its image is still being pulled.
    UnderWay,
    /// Nothing of the Pod is left since then, and the file system may still free blocks.
    GivingBack(Instant),
}

impl CleanUp {
    /// The state after a look at the evicted Pods.
    fn follow(self, is_under_way: bool, now: Instant) -> Self {
        match self {
            _ if is_under_way => Self::UnderWay,
            Self::UnderWay => Self::GivingBack(now),
            Self::GivingBack(since) if now.duration_since(since) < GIVE_BACK_LIMIT => self,
            Self::GivingBack(_) | Self::Over => Self::Over,
        }
    }
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
        let mut clean_up = CleanUp::Over;
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
            clean_up = self.follow_clean_up(clean_up).await;
            // While the Node shows `DiskPressure`, the scheduler sends no new Pod.
            let has_pressure = |health: &NodeHealth| health.shortages.disk.is_some();
            // A pass may take minutes, so the agent measures again before it evicts a Pod.
            if short.is_some()
                && clean_up == CleanUp::Over
                // A Pod of an earlier agent may be over by the API server's word.
                && self.pods.is_complete()
                && self.health.borrow().as_ref().is_some_and(has_pressure)
                && let Some(short) = self.shortage().await
                && self.evict_one(&short).await
            {
                clean_up = CleanUp::UnderWay;
            }
            sleep(INTERVAL).await;
        }
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

    /// Looks how far evicted Pods are gone. Until the state directory says so, they are not.
    async fn follow_clean_up(&self, before: CleanUp) -> CleanUp {
        let (state, registry) = (self.state.clone(), self.pods.clone());
        let is_under_way = move || is_cleaning_up(&state, |uid| registry.is_planned(uid));
        let is_under_way = match within(LOOK_LIMIT, is_under_way).await {
            Some(Ok(is_under_way)) => is_under_way,
            Some(Err(error)) => {
                warn!(error = chain(&error), "cannot tell whether evicted Pods are gone");
                true
            }
            None => true,
        };
        let now = before.follow(is_under_way, Instant::now());
        if now != before && matches!(now, CleanUp::GivingBack(_)) {
            info!(
                "the evicted Pod is gone; evicting no other until the disk has had time to free its blocks"
            );
        }
        now
    }

    /// Evicts one Pod, and returns whether it has.
    async fn evict_one(&self, short: &Shortage) -> bool {
        let pods = self.pods.pods();
        let (state, tart) = (self.state.clone(), self.tart.clone());
        let candidates = match within(MEASURE_LIMIT, move || candidates(&state, &tart, &pods)).await {
            Some(Ok(candidates)) => candidates,
            Some(Err(error)) => {
                warn!(error = chain(&error), "cannot tell what Pods use");
                return false;
            }
            None => {
                warn!("what Pods use cannot be measured in time");
                return false;
            }
        };
        let Some(candidate) = first(&candidates) else { return false };
        let (uid, why) = (&candidate.uid, format!("{}{}", short.words, candidate.words()));
        let Some(pod) = self.pods.pod(uid) else { return false };
        // The Pod's worker sees the file, and does the rest.
        if let Err(error) = self.state.pod(uid.clone()).evict(&why) {
            warn!(%uid, error = chain(&error), "cannot evict a Pod; trying again");
            return false;
        }
        info!(%uid, "{why}");
        self.events.warning(&pod, EventReason::Evicted, &why);
        true
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

/// Whether an evicted Pod still has a VM, or its image is still being pulled.
fn is_cleaning_up(state: &StateDir, is_planned: impl Fn(&PodUid) -> bool) -> Result<bool, FileError> {
    for dir in state.pods()? {
        if dir.evicted()?.is_some() && (is_planned(dir.uid()) || has_vm(&dir)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The Pods that could be evicted.
fn candidates(
    state: &StateDir,
    tart: &Tart,
    pods: &[(PodUid, Arc<Pod>)],
) -> Result<Vec<EvictionCandidate>, FileError> {
    let mut candidates = Vec::new();
    for (uid, pod) in pods {
        let dir = state.pod(uid.clone());
        let is_over = pod.metadata.deletion_timestamp.is_some() || is_final(pod.status.as_ref());
        if !is_over && dir.record()?.is_some() && dir.evicted()?.is_none() {
            candidates.push(EvictionCandidate::of(uid.clone(), pod, used(&dir, tart)?));
        }
    }
    Ok(candidates)
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
    use crate::names::{PodName, Restart};
    use crate::state::PodRecord;
    use crate::testing;
    use jiff::Timestamp;

    #[test]
    fn an_evicted_pod_is_cleaned_up_until_its_image_is_not_pulled_and_its_vm_is_gone() {
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
        let found = || {
            let found = candidates(&state, &tart, &pods).unwrap();
            found.into_iter().map(|one| one.uid).collect::<Vec<_>>()
        };
        let is_under_way =
            |planned: Option<&PodUid>| is_cleaning_up(&state, |uid| planned == Some(uid)).unwrap();
        assert!(!is_under_way(Some(&first)), "no Pod is evicted");
        assert_eq!(found(), [first.clone(), second.clone()]);
        state.pod(first.clone()).evict("no room").unwrap();
        assert!(is_under_way(Some(&first)));
        assert!(!is_under_way(Some(&second)), "the evicted Pod is not planned");
        assert!(!is_under_way(None));
        assert_eq!(found(), [second]);
        std::fs::create_dir_all(state.pod(first).run(Restart(0)).path()).unwrap();
        assert!(is_under_way(None), "the evicted Pod has a VM");
    }

    #[test]
    fn no_other_pod_is_evicted_before_the_disk_has_had_time_to_free_blocks() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let giving_back = CleanUp::GivingBack(at(0));
        for (before, is_under_way, now, expected) in [
            (CleanUp::Over, false, 0, CleanUp::Over),
            // An earlier agent has evicted the Pod.
            (CleanUp::Over, true, 0, CleanUp::UnderWay),
            (CleanUp::UnderWay, true, 100, CleanUp::UnderWay),
            (CleanUp::UnderWay, false, 0, giving_back),
            (giving_back, false, 14, giving_back),
            (giving_back, false, 15, CleanUp::Over),
            // A Pod exceeds its own limit meanwhile.
            (giving_back, true, 1, CleanUp::UnderWay),
        ] {
            assert_eq!(before.follow(is_under_way, at(now)), expected, "{before:?} at {now}");
        }
    }
}
