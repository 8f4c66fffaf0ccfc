//! What a Pod brings along: the environments of its containers, and its volumes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use tokio::sync::watch;

use super::shim_spec;
use crate::apiserver::watched_objects::first_of;
use crate::env::expansion::lookup;
use crate::env::sources::InputSources;
use crate::env::{self, ConfigError, Environment, Resolved};
use crate::error_chain::chain;
use crate::pod::status::Trouble;
use crate::state::PodDir;
use crate::tart::{Fault, Tart};
use crate::volume::{Exceeded, HostPaths, MountFailure, PodVolumes, PrepareError, Prepared};

/// How often something that is missing is looked for again, when nothing says that it has come.
const RETRY: Duration = Duration::from_secs(10);

/// What one Pod brings along. Whatever it is made of is watched for as long as it matters.
#[derive(Debug)]
pub(super) struct Inputs {
    world: InputSources,
    pod: watch::Receiver<Arc<Pod>>,
    /// Absent once the Pod is over.
    volumes: Option<PodVolumes>,
    /// The environments of containers whose VM is not planned yet, by the containers' names.
    environments: Vec<(String, Environment)>,
    /// The same of a container whose turn comes later, in a VM that runs.
    due: Option<(String, Environment)>,
    shortage: Option<MissingInput>,
    /// The Pod as it was when everything was last looked for.
    tried: Option<Arc<Pod>>,
}

/// All that a Pod brings along.
#[derive(Debug)]
pub(super) struct ReadyInputs {
    /// By the containers' names; without those that are looked up when their turn comes.
    pub(super) environments: BTreeMap<String, Resolved>,
    /// Its volumes.
    pub(super) volumes: Prepared,
}

/// Something that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MissingInput {
    /// The reason of the Event that tells of it.
    pub(super) event: &'static str,
    /// What is told.
    pub(super) message: String,
    /// Whether the disk is full.
    pub(super) no_space: bool,
    /// The container's reason to wait, when it is not just being created.
    waiting: Option<&'static str>,
    /// The container that waits, when it is one alone.
    container: Option<String>,
    retry_at: Timestamp,
}

impl Inputs {
    /// What a Pod brings along; nothing is done about it yet.
    pub(super) fn new(
        dir: &PodDir,
        pod: watch::Receiver<Arc<Pod>>,
        world: InputSources,
        host_paths: Arc<HostPaths>,
        tart: &Tart,
    ) -> Self {
        let volumes = Some(PodVolumes::new(dir, pod.clone(), world.clone(), host_paths, tart));
        Self { world, pod, volumes, environments: Vec::new(), due: None, shortage: None, tried: None }
    }

    /// Has everything ready for a VM, or says what is missing.
    pub(super) async fn gather(&mut self) -> Result<ReadyInputs, MissingInput> {
        self.due = None;
        let gathered = self.try_gather().await;
        match &gathered {
            Ok(_) => {
                // What runs has its environment; what changes in it now comes too late.
                self.environments.clear();
                self.shortage = None;
            }
            Err(shortage) => self.shortage = Some(shortage.clone()),
        }
        gathered
    }

    async fn try_gather(&mut self) -> Result<ReadyInputs, MissingInput> {
        let pod = self.pod.borrow().clone();
        self.tried = Some(pod.clone());
        let spec = pod.spec.clone().unwrap_or_default();
        root_against_its_own_word(&pod)?;
        if self.environments.is_empty() {
            let all = spec.init_containers.iter().flatten().chain(&spec.containers).enumerate();
            let planned = all.filter(|(turn, one)| *turn == 0 || !env::may_change(one));
            let environment = |c| Environment::of(pod.clone(), c, &self.world);
            self.environments = planned.map(|(_, one)| (one.name.clone(), environment(one))).collect();
        }
        self.environments.iter_mut().for_each(|(_, one)| one.follow(&pod));
        let Some(volumes) = &mut self.volumes else {
            return Err(MissingInput::new("FailedMount", None, "the Pod is over".to_owned()));
        };
        let environments = resolve(&mut self.environments);
        // A path that is made of variables has to wait for them; everything else is fetched at the same time.
        let has_expressions = spec
            .init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
            .flat_map(|container| container.volume_mounts.iter().flatten())
            .any(|mount| mount.sub_path_expr.is_some());
        let (environments, volumes) = if has_expressions {
            let environments = environments.await?;
            let variable = |container: &str, name: &str| {
                environments.get(container).and_then(|known: &Resolved| lookup(&known.variables, name))
            };
            let prepared = volumes.prepare(variable).await;
            (environments, prepared)
        } else {
            let (environments, prepared) = tokio::join!(environments, volumes.prepare(|_, _| None));
            (environments?, prepared)
        };
        Ok(ReadyInputs { environments, volumes: volumes.map_err(|error| MissingInput::from(&error))? })
    }

    /// The variables of a container whose turn has come, or what is missing.
    pub(super) async fn variables_of(&mut self, container: &Container) -> Result<Resolved, MissingInput> {
        let pod = self.pod.borrow().clone();
        self.tried = Some(pod.clone());
        let known = self.due.take().filter(|(name, _)| *name == container.name);
        let (name, due) = self.due.insert(known.unwrap_or_else(|| {
            (container.name.clone(), Environment::of(pod.clone(), container, &self.world))
        }));
        due.follow(&pod);
        let resolved = due.resolve().await.map_err(|error| MissingInput::of(name, &error));
        self.shortage = resolved.as_ref().err().cloned();
        if resolved.is_ok() {
            self.due = None;
        }
        resolved
    }

    /// Keeps the volumes of a VM that an earlier agent has started as they are to be.
    pub(super) fn follow(&mut self) {
        if let Some(volumes) = &mut self.volumes {
            volumes.follow();
        }
    }

    /// Lets go of everything: the Pod is over.
    pub(super) fn end(&mut self) {
        self.volumes = None;
        self.environments.clear();
        self.due = None;
    }

    /// When what is missing is looked for again.
    pub(super) fn retry_at(&self) -> Option<Timestamp> {
        self.shortage.as_ref().map(|shortage| shortage.retry_at)
    }

    /// What the containers wait for.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let shortage = self.shortage.as_ref()?;
        Some(Trouble {
            reason: shortage.waiting?,
            message: shortage.message.clone(),
            container: shortage.container.clone(),
        })
    }

    /// What is too large, if anything is.
    pub(super) fn exceeded(&self) -> Option<Exceeded> {
        self.volumes.as_ref().and_then(PodVolumes::exceeded)
    }

    /// The volumes that a running VM has in an older version than it should.
    pub(super) fn problems(&self) -> Vec<MountFailure> {
        self.volumes.as_ref().map(PodVolumes::problems).unwrap_or_default()
    }

    /// Waits until something is there that was not, or is too large. Safe to cancel.
    pub(super) async fn changed(&mut self) {
        let environments = self
            .environments
            .iter_mut()
            .chain(&mut self.due)
            .map(|(_, one)| -> BoxFuture<'_, ()> { Box::pin(one.changed()) });
        let volumes = self.volumes.iter_mut().map(|all| -> BoxFuture<'_, ()> { Box::pin(all.changed()) });
        let tried = self.tried.clone().filter(|_| self.shortage.is_some());
        let pod = tried.map(|tried| -> BoxFuture<'_, ()> { Box::pin(described(self.pod.clone(), tried)) });
        first_of(environments.chain(volumes).chain(pod).collect()).await;
        // Once is enough to be told, also when nobody tries again.
        self.tried = Some(self.pod.borrow().clone());
        if let Some(shortage) = &mut self.shortage {
            shortage.retry_at = Timestamp::now();
        }
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

/// A container that is to run as root, and never as root. No VM is needed to see that.
fn root_against_its_own_word(pod: &Pod) -> Result<(), MissingInput> {
    let spec = pod.spec.as_ref();
    let all = spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    let security = spec.and_then(|spec| spec.security_context.as_ref());
    for container in all {
        let user = shim_spec::user(security, container.security_context.as_ref());
        if user.not_root && user.uid == Some(0) {
            let (namespace, uid) = (pod.namespace().unwrap_or_default(), pod.uid().unwrap_or_default());
            // The kubelet's words.
            let message = format!(
                "container's runAsUser breaks non-root policy (pod: \"{}_{namespace}({uid})\", container: {})",
                pod.name_any(),
                container.name
            );
            return Err(MissingInput::new("Failed", Some("CreateContainerConfigError"), message));
        }
    }
    Ok(())
}

/// All environments, or the first thing that is missing for one. Each is asked, so that each is watched from here on.
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
    fn new(event: &'static str, waiting: Option<&'static str>, message: String) -> Self {
        let retry_at = Timestamp::now() + RETRY;
        Self { event, message, no_space: false, waiting, container: None, retry_at }
    }

    /// What is missing for the environment of one container.
    fn of(container: &str, error: &ConfigError) -> Self {
        // The kubelet's own word for the Event.
        let shortage = Self::new("Failed", Some("CreateContainerConfigError"), chain(error));
        Self { container: Some(container.to_owned()), ..shortage }
    }
}

impl From<&PrepareError> for MissingInput {
    fn from(error: &PrepareError) -> Self {
        let no_space = error.is_for_want_of_space();
        let advice = if no_space { Fault::NoSpace.advice() } else { "" };
        let message = format!("{}{advice}", chain(error));
        let shortage = match error {
            PrepareError::Mount(_) => Self::new(error.reason(), None, message),
            _ => Self::new("Failed", Some(error.reason()), message),
        };
        Self { no_space, ..shortage }
    }
}
