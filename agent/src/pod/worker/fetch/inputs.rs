//! A Pod's inputs: the environments of its containers, and its volumes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};

use super::GatherInputs;
use crate::apiserver::events::EventReason;
use crate::apiserver::watched_objects::first_of;
use crate::clock;
use crate::env::expansion::lookup;
use crate::env::sources::InputSources;
use crate::env::{self, ConfigError, Environment, Resolved};
use crate::error_chain::chain;
use crate::pod::status::Trouble;
use crate::pod::worker::host::InputSettings;
use crate::pod::worker::shim_spec;
use crate::state::{PodDir, Segment};
use crate::tart::{Fault, Tart};
use crate::volume::{Exceeded, MountFailure, PodVolumes, PrepareError, Prepared};

/// How often the worker looks for a missing input again, when no watch shows that it has come.
const RETRY: Duration = Duration::from_secs(10);

/// The inputs of one Pod. A fetch may gather them beside the worker, which then sees them as the fetch last reported them.
#[derive(Debug)]
pub(crate) struct Inputs {
    gatherer: Arc<Mutex<InputGatherer>>,
    status: watch::Receiver<InputStatus>,
}

/// What the worker sees of a Pod's inputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InputStatus {
    pub(crate) missing: Option<MissingInput>,
    /// What is larger than it may be.
    pub(crate) exceeded: Option<Exceeded>,
    /// The volumes that a running VM has in an older version than it should.
    pub(crate) stale: Vec<MountFailure>,
}

/// Gathers the inputs of one Pod, and watches the objects that they are made of for as long as these matter.
#[derive(Debug)]
pub(crate) struct InputGatherer {
    sources: InputSources,
    pod: watch::Receiver<Arc<Pod>>,
    /// The containers of the VM that is planned.
    segment: Segment,
    /// Absent once the Pod is over.
    volumes: Option<PodVolumes>,
    /// The environments of containers whose VM is not planned yet, by the containers' names.
    environments: Vec<(String, Environment)>,
    /// The environment of a container that starts later than others, in a VM that runs.
    late: Option<(String, Environment)>,
    /// The Pod as it was when its inputs were last looked for.
    tried: Option<Arc<Pod>>,
    status: watch::Sender<InputStatus>,
}

/// All inputs of a Pod.
#[derive(Debug)]
pub(crate) struct ReadyInputs {
    /// By the containers' names; without those that are looked up when their container starts.
    environments: BTreeMap<String, Resolved>,
    pub(crate) volumes: Prepared,
}

/// An input that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingInput {
    pub(crate) event: EventReason,
    pub(crate) message: String,
    /// Whether the disk is full.
    pub(crate) no_space: bool,
    /// The container's reason to wait, when it is not just being created.
    waiting: Option<&'static str>,
    /// The container that waits; all containers when absent.
    container: Option<String>,
    retry_at: Timestamp,
}

impl ReadyInputs {
    /// The variables of a container; none when they are looked up later.
    pub(crate) fn variables_of(&self, container: &str) -> Vec<(String, String)> {
        self.environments.get(container).map(|known| known.variables.clone()).unwrap_or_default()
    }
}

impl Inputs {
    pub(crate) fn new(
        dir: &PodDir,
        pod: watch::Receiver<Arc<Pod>>,
        settings: &InputSettings,
        tart: &Tart,
    ) -> Self {
        let InputSettings { sources, host_paths } = settings.clone();
        let volumes = Some(PodVolumes::new(dir, pod.clone(), sources.clone(), host_paths, tart));
        let (sender, status) = watch::channel(InputStatus::default());
        let gatherer = InputGatherer {
            sources,
            pod,
            segment: Segment::default(),
            volumes,
            environments: Vec::new(),
            late: None,
            tried: None,
            status: sender,
        };
        Self { gatherer: Arc::new(Mutex::new(gatherer)), status }
    }

    /// Takes in what the tasks of the volumes report.
    pub(crate) fn refresh(&mut self) {
        // A fetch that has the lock reports by itself.
        if let Ok(gatherer) = self.gatherer.try_lock() {
            let missing = self.status.borrow().missing.clone();
            gatherer.report(missing);
        }
    }

    /// Keeps the volumes of a VM that an earlier agent has started up to date. A fetch does that by itself.
    pub(crate) fn follow(&mut self) {
        if let Ok(mut gatherer) = self.gatherer.try_lock()
            && let Some(volumes) = &mut gatherer.volumes
        {
            volumes.follow();
        }
    }

    /// What gathers the inputs of a VM with these containers, for one fetch, and what it reports.
    pub(crate) fn lend(
        &self,
        segment: Segment,
    ) -> (impl Future<Output = OwnedMutexGuard<InputGatherer>> + Send + use<>, watch::Receiver<InputStatus>)
    {
        let mut reports = self.status.clone();
        reports.mark_unchanged();
        let gatherer = self.gatherer.clone();
        let lent = async move {
            let mut gatherer = gatherer.lock_owned().await;
            if gatherer.segment != segment {
                gatherer.environments.clear();
                gatherer.segment = segment;
            }
            gatherer
        };
        (lent, reports)
    }

    /// The variables of a container that is about to start, or what is missing. Waits some seconds for objects at most.
    pub(crate) async fn variables_of(&mut self, container: &Container) -> Result<Resolved, MissingInput> {
        self.gatherer.lock().await.variables_of(container).await
    }

    /// Drops everything: the Pod is over.
    pub(crate) async fn end(&mut self) {
        let mut gatherer = self.gatherer.lock().await;
        gatherer.volumes = None;
        gatherer.environments.clear();
        gatherer.late = None;
    }

    /// Waits until an input that was missing may be there, or a volume is too large. Safe to cancel.
    pub(crate) async fn changed(&mut self) {
        self.gatherer.lock().await.changed().await;
    }

    pub(crate) fn status(&self) -> InputStatus {
        self.status.borrow().clone()
    }
}

impl InputStatus {
    /// When the worker looks for the missing input again.
    pub(crate) fn retry_at(&self) -> Option<Timestamp> {
        self.missing.as_ref().map(|missing| missing.retry_at)
    }

    /// What the containers wait for.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let MissingInput { message, waiting, container, .. } = self.missing.clone()?;
        Some(Trouble { reason: waiting?, message, container })
    }
}

impl GatherInputs for InputGatherer {
    type Ready = ReadyInputs;
    type Missing = MissingInput;

    async fn gather(&mut self) -> Result<ReadyInputs, MissingInput> {
        self.late = None;
        let gathered = self.try_gather().await;
        if gathered.is_ok() {
            // A VM has its environments once it is planned; the agent need not watch them any more.
            self.environments.clear();
        }
        self.report(gathered.as_ref().err().cloned());
        gathered
    }

    async fn changed(&mut self) {
        let environments = self
            .environments
            .iter_mut()
            .chain(&mut self.late)
            .map(|(_, one)| -> BoxFuture<'_, ()> { Box::pin(one.changed()) });
        let volumes = self.volumes.iter_mut().map(|all| -> BoxFuture<'_, ()> { Box::pin(all.changed()) });
        let is_missing = self.status.borrow().missing.is_some();
        let tried = self.tried.clone().filter(|_| is_missing);
        let pod = tried.map(|tried| -> BoxFuture<'_, ()> { Box::pin(described(self.pod.clone(), tried)) });
        first_of(environments.chain(volumes).chain(pod).collect()).await;
        // One wake-up for a change is enough, also when the worker does not look for the inputs again.
        self.tried = Some(self.pod.borrow().clone());
        self.status.send_if_modified(|status| {
            if let Some(missing) = &mut status.missing {
                missing.retry_at = clock::now();
            }
            false
        });
    }
}

impl InputGatherer {
    fn report(&self, missing: Option<MissingInput>) {
        let volumes = self.volumes.as_ref();
        let exceeded = volumes.and_then(PodVolumes::exceeded);
        let stale = volumes.map(PodVolumes::problems).unwrap_or_default();
        let status = InputStatus { missing, exceeded, stale };
        self.status.send_if_modified(|known| {
            let is_new = *known != status;
            *known = status;
            is_new
        });
    }

    async fn try_gather(&mut self) -> Result<ReadyInputs, MissingInput> {
        let pod = self.pod.borrow().clone();
        self.tried = Some(pod.clone());
        let spec = pod.spec.clone().unwrap_or_default();
        runs_as_root_against_policy(&pod, &self.segment)?;
        if self.environments.is_empty() {
            let planned = self
                .segment
                .containers(&spec)
                .enumerate()
                .filter(|(turn, one)| *turn == 0 || !env::may_change(one));
            let environment = |c| Environment::of(pod.clone(), c, &self.sources);
            self.environments = planned.map(|(_, one)| (one.name.clone(), environment(one))).collect();
        }
        self.environments.iter_mut().for_each(|(_, one)| one.follow(&pod));
        let Some(volumes) = &mut self.volumes else {
            return Err(MissingInput::new(EventReason::FailedMount, None, "the Pod is over".to_owned()));
        };
        let environments = resolve(&mut self.environments);
        // A `subPathExpr` has to wait for its variables; everything else is fetched at the same time.
        let segment = &self.segment;
        let mut mounts = segment.containers(&spec).flat_map(|one| one.volume_mounts.iter().flatten());
        let has_expressions = mounts.any(|mount| mount.sub_path_expr.is_some());
        let (environments, volumes) = if has_expressions {
            let environments = environments.await?;
            let variable = |container: &str, name: &str| {
                environments.get(container).and_then(|known: &Resolved| lookup(&known.variables, name))
            };
            let prepared = volumes.prepare(|name| segment.has(name), variable).await;
            (environments, prepared)
        } else {
            let prepare = volumes.prepare(|name| segment.has(name), |_, _| None);
            let (environments, prepared) = tokio::join!(environments, prepare);
            (environments?, prepared)
        };
        Ok(ReadyInputs { environments, volumes: volumes.map_err(|error| MissingInput::from(&error))? })
    }

    async fn variables_of(&mut self, container: &Container) -> Result<Resolved, MissingInput> {
        let pod = self.pod.borrow().clone();
        self.tried = Some(pod.clone());
        let known = self.late.take().filter(|(name, _)| *name == container.name);
        let (name, late) = self.late.insert(known.unwrap_or_else(|| {
            (container.name.clone(), Environment::of(pod.clone(), container, &self.sources))
        }));
        late.follow(&pod);
        let resolved = late.resolve().await.map_err(|error| MissingInput::of(name, &error));
        self.report(resolved.as_ref().err().cloned());
        if resolved.is_ok() {
            self.late = None;
        }
        resolved
    }
}

/// Waits until a Pod has other labels or annotations: both can be in variables, and so in the paths of volumes.
async fn described(mut pod: watch::Receiver<Arc<Pod>>, tried: Arc<Pod>) {
    let says_more = |pod: &Arc<Pod>| {
        pod.metadata.labels != tried.metadata.labels || pod.metadata.annotations != tried.metadata.annotations
    };
    if pod.wait_for(says_more).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Refuses a container with `runAsNonRoot` and `runAsUser: 0`. No VM is needed to see that.
fn runs_as_root_against_policy(pod: &Pod, segment: &Segment) -> Result<(), MissingInput> {
    let spec = pod.spec.as_ref();
    let security = spec.and_then(|spec| spec.security_context.as_ref());
    for container in spec.into_iter().flat_map(|spec| segment.containers(spec)) {
        let user = shim_spec::user(security, container.security_context.as_ref());
        if user.not_root && user.uid == Some(0) {
            let (namespace, uid) = (pod.namespace().unwrap_or_default(), pod.uid().unwrap_or_default());
            // The kubelet's words.
            let message = format!(
                "container's runAsUser breaks non-root policy (pod: \"{}_{namespace}({uid})\", container: {})",
                pod.name_any(),
                container.name
            );
            return Err(MissingInput::new(EventReason::Failed, Some("CreateContainerConfigError"), message));
        }
    }
    Ok(())
}

/// All environments, or the first input that is missing for one. Each is resolved, so that each is watched from here on.
async fn resolve(
    environments: &mut [(String, Environment)],
) -> Result<BTreeMap<String, Resolved>, MissingInput> {
    let all = environments.iter_mut().map(async |(name, one)| (name.clone(), one.resolve().await));
    let resolved = futures::future::join_all(all).await;
    let known = |(name, one): (String, Result<Resolved, ConfigError>)| {
        let one = one.map_err(|error| MissingInput::of(&name, &error))?;
        Ok((name, one))
    };
    resolved.into_iter().map(known).collect()
}

impl MissingInput {
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self::new(EventReason::FailedMount, None, "a volume is missing".to_owned())
    }

    fn new(event: EventReason, waiting: Option<&'static str>, message: String) -> Self {
        let retry_at = clock::now() + RETRY;
        Self { event, message, no_space: false, waiting, container: None, retry_at }
    }

    fn of(container: &str, error: &ConfigError) -> Self {
        let missing = Self::new(EventReason::Failed, Some("CreateContainerConfigError"), chain(error));
        Self { container: Some(container.to_owned()), ..missing }
    }
}

impl From<&PrepareError> for MissingInput {
    fn from(error: &PrepareError) -> Self {
        let no_space = error.is_for_want_of_space();
        let advice = if no_space { Fault::NoSpace.advice() } else { "" };
        let message = format!("{}{advice}", chain(error));
        let (event, waiting) = error.reasons();
        Self { no_space, ..Self::new(event, waiting, message) }
    }
}
