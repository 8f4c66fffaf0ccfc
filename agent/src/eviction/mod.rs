//! Room on the disk. Images go first; only when none of them may go, and the Node is short of space all the same, a Pod does.

pub(crate) mod ranking;

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::apiserver::events::Events;
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::image::gc::ImageCollector;
use crate::image::gc::{ImageUse, Moment};
use crate::names::PodUid;
use crate::node::health::NodeHealth;
use crate::node::signals::SignalSources;
use crate::node::thresholds::{Signal, Thresholds};
use crate::os::availability::Availability;
use crate::os::availability::volume;
use crate::pod::registry::PodRegistry;
use crate::pod::status::is_final;
use crate::state::{PodDir, StateDir};
use crate::tart::Tart;
use crate::volume::pod_usage::used;
use ranking::{EvictionCandidate, first};
use tokio::sync::watch;

/// As often as the kubelet looks.
const INTERVAL: Duration = Duration::from_secs(10);
/// A volume that does not answer is looked at again later.
const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// How long it may take to measure what Pods use.
const MEASURE_LIMIT: Duration = Duration::from_mins(2);

/// What it takes to keep room on the disk.
#[derive(Debug)]
pub(crate) struct EvictionManager {
    /// The Pods of this Node.
    pub(crate) pods: PodRegistry,
    /// Deletes images; absent with `--disable-vm-gc`.
    pub(crate) collector: Option<Arc<ImageCollector>>,
    /// The Node's health: no Pod is evicted before it shows `DiskPressure`.
    pub(crate) health: watch::Receiver<Option<NodeHealth>>,
    /// Where Events go.
    pub(crate) events: Events,
    /// The `tart` program.
    pub(crate) tart: Tart,
    /// Where free space is measured.
    pub(crate) signals: SignalSources,
    /// Below which amounts a Pod is evicted.
    pub(crate) thresholds: Thresholds,
    /// The state directory.
    pub(crate) state: StateDir,
}

/// Too little space.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shortage {
    /// The kubelet's words for it.
    words: String,
    /// Whether images are on the volume that is short.
    by_images: bool,
}

impl EvictionManager {
    /// Looks again and again, for as long as it is polled.
    pub(crate) async fn run(self) {
        loop {
            // From before the look: what is made meanwhile may have been enough.
            let since = self.collector.as_ref().map(|collector| collector.now());
            let short = self.shortage().await;
            if short.is_none() {
                self.set_space_aside().await;
            }
            let made_room = self.collect(short.as_ref(), since).await;
            if short.is_some() && made_room {
                continue;
            }
            // A pass may have taken minutes. Nobody is evicted for what was true then.
            if short.is_some()
                && self.is_told()
                && let Some(short) = self.shortage().await
            {
                self.relieve(&short).await;
            }
            sleep(INTERVAL).await;
        }
    }

    /// Whether the Node says that it is short of space, so that no new Pod comes for what is freed.
    fn is_told(&self) -> bool {
        self.health.borrow().as_ref().is_some_and(|health| health.short_of.disk.is_some())
    }

    /// Whether anything is gone that took room, since that moment.
    async fn collect(&self, short: Option<&Shortage>, since: Option<Moment>) -> bool {
        let Some((collector, since)) = self.collector.as_ref().zip(since) else { return false };
        let stage =
            if short.is_some_and(|short| short.by_images) { ImageUse::Wanted } else { ImageUse::Routine };
        match collector.pass(stage, since).await {
            Ok(pass) => pass.is_none_or(|pass| pass.has_made_room()),
            Err(error) => {
                warn!(error = chain(&error), "cannot collect images");
                false
            }
        }
    }

    /// While there is enough for all, some is set aside for the day when there is none.
    async fn set_space_aside(&self) {
        let state = self.state.clone();
        let set_aside = spawn_blocking(move || state.set_space_aside());
        match timeout(LOOK_LIMIT, set_aside).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => warn!(error = chain(&error), "cannot set space aside"),
            Ok(Err(_)) | Err(_) => warn!("the disk does not let any space be set aside"),
        }
    }

    async fn shortage(&self) -> Option<Shortage> {
        let (signals, thresholds) = (self.signals.clone(), self.thresholds.clone());
        let look = spawn_blocking(move || look(&signals, &thresholds));
        match timeout(LOOK_LIMIT, look).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => {
                warn!("the disk does not say how full it is");
                None
            }
        }
    }

    /// Evicts one Pod, unless one that was evicted is still on its way out.
    async fn relieve(&self, short: &Shortage) {
        let pods = self.pods.pods();
        let (state, tart, registry) = (self.state.clone(), self.tart.clone(), self.pods.clone());
        let measure = spawn_blocking(move || survey(&state, &tart, &pods, |uid| registry.is_planned(uid)));
        let claimants = match timeout(MEASURE_LIMIT, measure).await {
            Ok(Ok(Ok(Some(claimants)))) => claimants,
            Ok(Ok(Ok(None))) => return,
            Ok(Ok(Err(error))) => return warn!(error = chain(&error), "cannot tell what Pods use"),
            Ok(Err(_)) | Err(_) => return warn!("what Pods use cannot be measured in time"),
        };
        let Some(claimant) = first(&claimants) else { return };
        let why = format!("{}{}", short.words, claimant.words());
        let Some(pod) = self.pods.pod(&claimant.uid) else { return };
        // Its worker sees the file, and does the rest.
        if let Err(error) = self.state.pod(claimant.uid.clone()).evict(&why) {
            return warn!(uid = %claimant.uid, error = chain(&error), "cannot evict a Pod; trying again");
        }
        info!(uid = %claimant.uid, "{why}");
        self.events.warning(&pod, "Evicted", &why);
    }
}

fn look(signals: &SignalSources, thresholds: &Thresholds) -> Option<Shortage> {
    let device = |path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let is_one = device(&signals.state_dir) == device(&signals.tart_home);
    let found = [
        (Signal::ImageFs, volume(&signals.tart_home), true),
        (Signal::NodeFs, volume(&signals.state_dir), is_one),
    ];
    found.into_iter().find_map(|(signal, figure, by_images)| {
        let Availability { available, total } = figure?;
        thresholds.shortage(signal, figure?)?;
        let least = thresholds.least(signal)?.of(total);
        let words = format!(
            "The node was low on resource: ephemeral-storage. Threshold quantity: {least}, available: {available}. "
        );
        Some(Shortage { words, by_images })
    })
}

/// The Pods that could be evicted; `None` while one that was is not gone yet: it has a VM, or its image is still being fetched.
fn survey(
    state: &StateDir,
    tart: &Tart,
    pods: &[(PodUid, Arc<Pod>)],
    is_planned: impl Fn(&PodUid) -> bool,
) -> Result<Option<Vec<EvictionCandidate>>, FileError> {
    let mut claimants = Vec::new();
    for dir in state.pods()? {
        if dir.evicted()?.is_some() && (is_planned(dir.uid()) || has_vm(&dir)?) {
            return Ok(None);
        }
    }
    for (uid, pod) in pods {
        let dir = state.pod(uid.clone());
        let is_over = pod.metadata.deletion_timestamp.is_some() || is_final(pod.status.as_ref());
        if !is_over && dir.record()?.is_some() && dir.evicted()?.is_none() {
            claimants.push(EvictionCandidate::of(uid.clone(), pod, used(&dir, tart)?));
        }
    }
    Ok(Some(claimants))
}

fn has_vm(dir: &PodDir) -> Result<bool, FileError> {
    for attempt in dir.attempts()? {
        if !attempt.view()?.cleaned {
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
    use jiff::Timestamp;

    #[test]
    fn nobody_else_goes_while_the_image_of_one_that_was_evicted_still_comes() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        let tart = Tart::in_home("tart".as_ref(), dir.path());
        let [first, second] = ["a", "b"].map(|uid| uid.parse::<PodUid>().unwrap());
        for uid in [&first, &second] {
            let pod = PodName { namespace: "n".into(), name: uid.to_string() };
            let record = PodRecord { pod, accepted_at: Timestamp::UNIX_EPOCH };
            state.pod(uid.clone()).accept(&record).unwrap();
        }
        let pods = [&first, &second].map(|uid| (uid.clone(), Arc::<Pod>::default()));
        let claimants = |planned: Option<&PodUid>| {
            let found = survey(&state, &tart, &pods, |uid| planned == Some(uid)).unwrap();
            found.map(|all| all.into_iter().map(|one| one.uid).collect::<Vec<_>>())
        };
        assert_eq!(claimants(Some(&first)), Some(vec![first.clone(), second.clone()]));
        state.pod(first.clone()).evict("no room").unwrap();
        assert_eq!(claimants(Some(&first)), None);
        assert_eq!(claimants(Some(&second)), Some(vec![second.clone()]), "that one stays as it is");
        assert_eq!(claimants(None), Some(vec![second.clone()]));
    }
}
