//! The fetch of all that a VM is made of: its image and its Pod's inputs, side by side. It takes as long as the image's pull.
//!
//! The fetch runs beside the worker's loop: the worker polls it while it waits, and drops it when no VM is to be planned any more. A
//! dropped fetch drops its share in the pull, the image's pin and the guard in the registry at once.

pub(super) mod image_pull;
pub(super) mod inputs;

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Instant;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

use crate::image::ImageError;
use crate::pod::admission::VmPlan;
use crate::pod::registry::PlanGuard;
use crate::pod::sync::image_backoff::ImageFailure;
use crate::state::Segment;
use image_pull::{ImagePull, ReadyImage};
use inputs::{InputStatus, Inputs, MissingInput, ReadyInputs};

/// One fetch, under way or over.
pub(super) struct Fetch {
    pub(super) stage: Stage,
    reports: watch::Receiver<InputStatus>,
    /// The Pod when the fetch began, and what it asked for.
    pub(super) pod: Arc<Pod>,
    pub(super) plan: VmPlan,
    /// The containers of the VM.
    pub(super) segment: Segment,
    pub(super) begun: Instant,
    /// Last: the Pod counts as planned until everything else is dropped.
    pub(super) guard: PlanGuard,
}

pub(super) enum Stage {
    Running(BoxFuture<'static, Fetched>),
    Over(Fetched),
}

/// The results of a fetch.
type Fetched = (Result<ReadyImage, ImageError>, Result<ReadyInputs, MissingInput>);

/// What a worker fetches for its Pod's next VM, and why the image could not be had the last time.
#[derive(Default)]
pub(super) struct Fetches {
    /// Until its result is taken.
    pub(super) current: Option<Fetch>,
    pub(super) image_failure: Option<ImageFailure>,
}

/// Something that gathers inputs.
pub(super) trait GatherInputs {
    /// All of them.
    type Ready;
    /// The first that is missing.
    type Missing;

    /// Has all inputs ready for a VM. Reports what is missing at once.
    fn gather(&mut self) -> impl Future<Output = Result<Self::Ready, Self::Missing>> + Send;

    /// Waits until an input that was missing may be there. Safe to cancel.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

impl Fetches {
    pub(super) fn has_begun(&self) -> bool {
        self.current.is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        self.current.as_ref().is_some_and(Fetch::is_over)
    }

    /// Drops a fetch that is of no use any more: no VM is to be planned, or one with another image or other containers.
    /// Returns whether it did.
    pub(super) fn keep_for(&mut self, planned: Option<&Segment>) -> bool {
        self.current.take_if(|fetch| planned != Some(&fetch.segment)).is_some()
    }

    /// Fetches without an end, for a worker that waits for something else. Safe to cancel.
    pub(super) async fn run_on(&mut self) {
        if let Some(fetch) = &mut self.current
            && let Stage::Running(running) = &mut fetch.stage
        {
            fetch.stage = Stage::Over(running.await);
        }
        pending::<()>().await;
    }

    /// Fetches until it is over, or there is a report. Safe to cancel: the fetch goes on when this is called again.
    pub(super) async fn progress(&mut self) {
        let Some(Fetch { stage, reports, .. }) = &mut self.current else { return pending().await };
        let Stage::Running(running) = stage else { return };
        tokio::select! {
            fetched = running => *stage = Stage::Over(fetched),
            // The report is for `missing`.
            Ok(()) = reports.changed() => reports.mark_changed(),
        }
    }

    /// What a fetch that goes on has found missing since this was called last.
    pub(super) fn missing(&mut self) -> Option<MissingInput> {
        let fetch = self.current.as_mut().filter(|fetch| !fetch.is_over())?;
        let is_new = fetch.reports.has_changed().unwrap_or(false);
        is_new.then(|| fetch.reports.borrow_and_update().missing.clone()).flatten()
    }
}

impl Fetch {
    /// Begins to fetch what a Pod's next VM is made of. Nothing happens before it is polled.
    pub(super) fn begin(
        pull: ImagePull,
        plan: VmPlan,
        segment: Segment,
        inputs: &Inputs,
        guard: PlanGuard,
    ) -> Self {
        let (gatherer, reports) = inputs.lend(segment.clone());
        let (pod, fetched_plan) = (pull.pod.clone(), plan.clone());
        let fetch = async move {
            let mut gatherer = gatherer.await;
            fetch_both(pull.ensure(&fetched_plan), &mut *gatherer).await
        };
        let stage = Stage::Running(Box::pin(fetch));
        Self { stage, reports, pod, plan, segment, begun: Instant::now(), guard }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over(_))
    }
}

/// Fetches an image and gathers inputs at the same time.
///
/// What is missing is looked for again whenever it may have come, for as long as the image takes. Inputs that were complete before the
/// image are gathered once more: other Pods may have been planned since then, with volumes that exclude these.
async fn fetch_both<I, G: GatherInputs>(
    image: impl Future<Output = I>,
    inputs: &mut G,
) -> (I, Result<G::Ready, G::Missing>) {
    tokio::pin!(image);
    let mut fetched = None;
    loop {
        let gathered = {
            let gather = inputs.gather();
            tokio::pin!(gather);
            loop {
                tokio::select! {
                    // An image that is there comes first: the inputs then need to be gathered only once.
                    biased;
                    image = &mut image, if fetched.is_none() => fetched = Some(image),
                    gathered = &mut gather => break gathered,
                }
            }
        };
        match (fetched.take(), gathered) {
            (Some(image), gathered) => return (image, gathered),
            (None, Ok(_)) => fetched = Some(image.as_mut().await),
            (None, Err(_)) => tokio::select! {
                image = &mut image => fetched = Some(image),
                () = inputs.changed() => {}
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use tokio::sync::{Notify, oneshot};

    /// Inputs that are missing or not as the test says, with the number of times that they were gathered.
    #[derive(Default)]
    struct FakeInputs {
        are_there: watch::Sender<bool>,
        gathered: watch::Sender<u32>,
        /// Lets one gathering end.
        gate: Option<Arc<Notify>>,
    }

    impl GatherInputs for &FakeInputs {
        type Ready = u32;
        type Missing = u32;

        async fn gather(&mut self) -> Result<u32, u32> {
            if let Some(gate) = &self.gate {
                gate.notified().await;
            }
            self.gathered.send_modify(|times| *times += 1);
            let times = *self.gathered.borrow();
            if *self.are_there.borrow() { Ok(times) } else { Err(times) }
        }

        async fn changed(&mut self) {
            self.are_there.subscribe().changed().await.unwrap();
        }
    }

    #[tokio::test]
    async fn inputs_are_gathered_once_for_an_image_that_is_there() {
        let inputs = FakeInputs::default();
        assert_eq!(fetch_both(async { "image" }, &mut &inputs).await, ("image", Err(1)));
        inputs.are_there.send_replace(true);
        assert_eq!(fetch_both(async { "image" }, &mut &inputs).await, ("image", Ok(2)));
        // The image comes while they are gathered.
        let gate = Arc::new(Notify::new());
        let inputs = FakeInputs { gate: Some(gate.clone()), ..FakeInputs::default() };
        let mut gatherer = &inputs;
        let fetch = fetch_both(async { "image" }, &mut gatherer);
        tokio::pin!(fetch);
        assert_eq!(fetch.as_mut().now_or_never(), None);
        gate.notify_one();
        assert_eq!(fetch.await, ("image", Err(1)));
    }

    #[tokio::test]
    async fn inputs_are_gathered_again_with_the_image_and_missing_ones_on_each_change() {
        // Whether they are there at first and after each change, with how often they were gathered; then with the image.
        let table = [
            // A volume may have gone while the image is still on its way.
            (true, vec![(false, 1)], Err(2)),
            (false, vec![(false, 2), (true, 3)], Ok(4)),
        ];
        for (are_there, changes, expected) in table {
            let inputs = FakeInputs::default();
            inputs.are_there.send_replace(are_there);
            let (arrive, image) = oneshot::channel::<&str>();
            let mut gatherer = &inputs;
            let fetch = fetch_both(image, &mut gatherer);
            tokio::pin!(fetch);
            assert_eq!(fetch.as_mut().now_or_never(), None);
            assert_eq!(*inputs.gathered.borrow(), 1);
            for (are_there, gathered) in changes {
                inputs.are_there.send_replace(are_there);
                assert_eq!(fetch.as_mut().now_or_never(), None);
                assert_eq!(*inputs.gathered.borrow(), gathered);
            }
            arrive.send("image").unwrap();
            assert_eq!(fetch.await, (Ok("image"), expected));
        }
    }

    #[tokio::test]
    async fn a_fetch_goes_on_while_the_worker_waits_for_something_else() {
        let uid: crate::names::PodUid = "0b1c".parse().unwrap();
        let (arrive, image) = oneshot::channel::<()>();
        let running = async move {
            image.await.unwrap();
            (Err(ImageError::NeverPull("i".to_owned())), Err(MissingInput::example()))
        };
        let current = Some(Fetch {
            stage: Stage::Running(Box::pin(running)),
            reports: watch::channel(InputStatus::default()).1,
            pod: Arc::default(),
            plan: VmPlan { image: "i".to_owned(), ..VmPlan::unreadable(&Pod::default()) },
            segment: Segment::example("i"),
            begun: Instant::now(),
            guard: crate::pod::registry::PodRegistry::new(1).plan(&uid),
        });
        let mut fetches = Fetches { current, image_failure: None };
        assert_eq!(fetches.run_on().now_or_never(), None);
        assert!(!fetches.is_over());
        arrive.send(()).unwrap();
        assert_eq!(fetches.run_on().now_or_never(), None, "it never ends by itself");
        assert!(fetches.is_over());
        let segment = Segment::example("i");
        assert!(!fetches.keep_for(Some(&segment)) && fetches.keep_for(None) && !fetches.has_begun());
    }

    #[tokio::test]
    async fn a_dropped_fetch_drops_its_pull_at_once() {
        let inputs = FakeInputs::default();
        let (arrive, image) = oneshot::channel::<&str>();
        {
            let mut gatherer = &inputs;
            let fetch = fetch_both(image, &mut gatherer);
            tokio::pin!(fetch);
            assert_eq!(fetch.as_mut().now_or_never(), None);
        }
        assert!(arrive.is_closed());
    }
}
