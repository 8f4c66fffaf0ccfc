//! Observes what a verdict rests on: VMs first, then the Pods that they may belong to.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};

use super::ages::{Ages, Now};
use super::orphan::{ObservedPodDir, ObservedVm, OrphanObservation, Unknown};
use crate::apiserver::call::{DEADLINE, call};
use crate::error_chain::chain;
use crate::fs::absent_is_none;
use crate::image::ImageStore;
use crate::image::ownership::KnownImage;
use crate::names::{BaseName, NodeName, PodName, PodUid, VmName};
use crate::state::{Holder, PodDir, StateDir};
use crate::tart::{Tart, VmSource, touched, vm_lock};

#[derive(Debug, Clone)]
pub(crate) struct Observer {
    pub(crate) tart: Tart,
    pub(crate) state: StateDir,
    /// The agent's images; a dry run has none, and reads the record from the disk.
    pub(crate) images: Option<Arc<ImageStore>>,
    /// All Pods of the cluster; only those of this Node are listed.
    pub(crate) pods: Api<Pod>,
    pub(crate) node: NodeName,
    pub(crate) min_age: Duration,
}

impl Observer {
    /// Observes all VMs and state directories.
    pub(crate) async fn look(&self, ages: &mut Ages, active: HashSet<PodUid>) -> OrphanObservation {
        let names = self.names().await;
        let now = Now::read();
        let vms = names.map(|names| names.into_iter().map(|name| self.vm(name, ages, now)).collect());
        let pod_dirs = self.state.pods().map_err(unknown);
        let pod_dirs = pod_dirs.map(|dirs| dirs.iter().map(|dir| observe_pod_dir(dir, ages, now)).collect());
        self.with_pods(vms, pod_dirs, active).await
    }

    /// Observes one VM or base VM.
    pub(crate) async fn look_at_vm(
        &self,
        name: &str,
        ages: &mut Ages,
        active: HashSet<PodUid>,
    ) -> OrphanObservation {
        let is_there = self.tart.home().join("vms").join(name).exists();
        let vms = Ok(is_there.then(|| self.vm(name.to_owned(), ages, Now::read())).into_iter().collect());
        self.with_pods(vms, Ok(Vec::new()), active).await
    }

    /// Observes the state directory of one Pod.
    pub(crate) async fn look_at_pod_dir(
        &self,
        dir: &PodDir,
        ages: &mut Ages,
        active: HashSet<PodUid>,
    ) -> OrphanObservation {
        let now = Now::read();
        let vms = self.tart.vm_dirs().map_err(unknown);
        let vms = vms.map(|names| names.iter().map(|vm| self.vm(vm.to_string(), ages, now)).collect());
        self.with_pods(vms, Ok(vec![observe_pod_dir(dir, ages, now)]), active).await
    }

    /// Observes the rest. VMs come first: the later list has the Pod of each VM, unless the Pod is gone.
    async fn with_pods(
        &self,
        vms: Result<Vec<ObservedVm>, Unknown>,
        pod_dirs: Result<Vec<ObservedPodDir>, Unknown>,
        active: HashSet<PodUid>,
    ) -> OrphanObservation {
        let (pods, bases, cached) = (self.bound().await, self.bases(), self.cached());
        OrphanObservation { vms, pod_dirs, pods, active, bases, cached, min_age: self.min_age }
    }

    /// The names of all VMs, with the agent's own VMs of which only a part is left.
    async fn names(&self) -> Result<Vec<String>, Unknown> {
        let mut names = self.tart.list(VmSource::Local).await.map_err(unknown)?;
        names.extend(self.tart.vm_dirs().map_err(unknown)?.iter().map(ToString::to_string));
        names.extend(self.tart.base_dirs().map_err(unknown)?.iter().map(ToString::to_string));
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn vm(&self, name: String, ages: &mut Ages, now: Now) -> ObservedVm {
        let (dir, holder) = if let Ok(vm) = name.parse::<VmName>() {
            let holder = self.state.pod(vm.uid().clone()).run(vm.restart()).holder();
            (self.tart.vm_dir(&vm), holder.map_err(unknown))
        } else if let Ok(base) = name.parse::<BaseName>() {
            (self.tart.base_dir(&base), Ok(Holder::None))
        } else {
            return ObservedVm::foreign(name);
        };
        ObservedVm {
            holder,
            lock: vm_lock(&dir).map_err(unknown),
            age: touched(&dir).map(|touched| ages.of(&name, touched, now)).map_err(unknown),
            name,
        }
    }

    /// The base VMs that the record of images or a VM needs.
    fn bases(&self) -> Result<HashSet<BaseName>, Unknown> {
        if self.state.has_lost_images().map_err(unknown)? {
            return Err(format!(
                "the record of images was spoilt, or is of another release; remove {} or {} to have base VMs collected that nothing else \
                 needs",
                self.state.spoilt_images_path().display(),
                self.state.images_path().display()
            ));
        }
        let known = match &self.images {
            Some(images) => images.known(),
            None => self.state.images().map_err(unknown)?.images,
        };
        // The record is read first: a Pod is in the state directory while its image is still in the record.
        let recorded: Vec<BaseName> = known.iter().map(KnownImage::base).collect();
        let Some(mut bases) = self.state.bases_in_use().map_err(unknown)? else {
            return Err("there is a VM of which it is not known what it was made from".to_owned());
        };
        bases.extend(recorded);
        Ok(bases)
    }

    /// The base VMs that tart could clone again from its cache.
    fn cached(&self) -> Result<HashSet<BaseName>, Unknown> {
        let images = self.tart.cached_images().map_err(unknown)?;
        Ok(images.iter().map(|image| BaseName::of(&image.digest)).collect())
    }

    /// The Pods of this Node, from the API server itself and not from a cache of the agent.
    async fn bound(&self) -> Result<HashMap<PodUid, PodName>, Unknown> {
        // Without a resource version the list is the latest one, and without a limit it is complete.
        let ours = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let pods = call(DEADLINE, self.pods.list(&ours)).await.map_err(unknown)?;
        if pods.metadata.continue_.is_some_and(|more| !more.is_empty()) {
            return Err("the API server has listed only some of them".to_owned());
        }
        let named = |pod: Pod| {
            // The agent has no VM for a UID that it cannot parse.
            let uid = pod.uid()?.parse().ok()?;
            Some((uid, PodName { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() }))
        };
        Ok(pods.items.into_iter().filter_map(named).collect())
    }
}

fn observe_pod_dir(dir: &PodDir, ages: &mut Ages, now: Now) -> ObservedPodDir {
    let times = dir.paths().into_iter().filter_map(|path| absent_is_none(touched(&path)).transpose());
    let newest = times.collect::<io::Result<Vec<_>>>().map(|times| times.into_iter().max());
    let age = match newest {
        Ok(Some(touched)) => Ok(ages.of(&dir.uid().to_string(), touched, now)),
        Ok(None) => Err("it is gone".to_owned()),
        Err(error) => Err(chain(&error)),
    };
    ObservedPodDir { uid: dir.uid().clone(), holder: dir.holder().map_err(unknown), age }
}

fn unknown(error: impl std::error::Error + 'static) -> Unknown {
    chain(&error)
}
