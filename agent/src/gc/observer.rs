//! Looks at all that the collector judges by: VMs first, then the Pods that they may belong to.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use tokio::time::timeout;

use super::ages::{Ages, Now};
use super::orphan::{OrphanObservation, Remains, Unknown, Vm};
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::image::ImageStore;
use crate::image::ownership::KnownImage;
use crate::names::NodeName;
use crate::names::{BaseName, VmName};
use crate::names::{PodName, PodUid};
use crate::state::{Holder, PodDir, StateDir};
use crate::tart::{Tart, VmSource, touched};

const API_LIMIT: Duration = Duration::from_secs(15);

/// Where to look.
#[derive(Debug, Clone)]
pub(crate) struct Observer {
    /// The VMs.
    pub(crate) tart: Tart,
    /// What Pods leave behind.
    pub(crate) state: StateDir,
    /// The images as the agent knows them; without it, as they are written down.
    pub(crate) images: Option<Arc<ImageStore>>,
    /// All Pods of the cluster; only those of this Node are asked for.
    pub(crate) pods: Api<Pod>,
    /// This Node.
    pub(crate) node: NodeName,
    /// What is younger is left alone.
    pub(crate) min_age: Duration,
}

impl Observer {
    /// Looks at everything.
    pub(crate) async fn look(&self, ages: &mut Ages, at_work: HashSet<PodUid>) -> OrphanObservation {
        // The order matters: whatever VM is seen here was made for a Pod that the list after it has, unless that is gone.
        let names = self.names().await;
        let now = Now::ask();
        let vms = names.map(|names| names.into_iter().map(|name| self.vm(name, ages, now)).collect());
        let remains = self.state.pods().map_err(unknown);
        let remains = remains.map(|dirs| dirs.iter().map(|dir| remains_of(dir, ages, now)).collect());
        let pods = self.bound().await;
        OrphanObservation {
            vms,
            remains,
            pods,
            at_work,
            bases: self.bases(),
            cached: self.cached(),
            min_age: self.min_age,
        }
    }

    /// Looks again at one VM.
    pub(crate) async fn look_at_vm(
        &self,
        vm: &VmName,
        ages: &mut Ages,
        at_work: HashSet<PodUid>,
    ) -> OrphanObservation {
        self.look_at_one(&vm.to_string(), ages, at_work).await
    }

    /// Looks again at one base VM.
    pub(crate) async fn look_at_base(&self, base: &BaseName, ages: &mut Ages) -> OrphanObservation {
        self.look_at_one(&base.to_string(), ages, HashSet::new()).await
    }

    async fn look_at_one(&self, name: &str, ages: &mut Ages, at_work: HashSet<PodUid>) -> OrphanObservation {
        let is_there = self.tart.home().join("vms").join(name).exists();
        let vms = Ok(is_there.then(|| self.vm(name.to_owned(), ages, Now::ask())).into_iter().collect());
        let pods = self.bound().await;
        OrphanObservation {
            vms,
            remains: Ok(Vec::new()),
            pods,
            at_work,
            bases: self.bases(),
            cached: self.cached(),
            min_age: self.min_age,
        }
    }

    /// Looks again at what one Pod has left in the state directory.
    pub(crate) async fn look_at_remains(
        &self,
        dir: &PodDir,
        ages: &mut Ages,
        at_work: HashSet<PodUid>,
    ) -> OrphanObservation {
        let now = Now::ask();
        let vms = self.tart.vm_dirs().map_err(|error| chain(&error));
        let vms = vms.map(|names| names.iter().map(|vm| self.vm(vm.to_string(), ages, now)).collect());
        let remains = Ok(vec![remains_of(dir, ages, now)]);
        let pods = self.bound().await;
        OrphanObservation {
            vms,
            remains,
            pods,
            at_work,
            bases: self.bases(),
            cached: self.cached(),
            min_age: self.min_age,
        }
    }

    /// The names of all VMs, and of those of ours of which only a part is there.
    async fn names(&self) -> Result<Vec<String>, Unknown> {
        let mut names = self.tart.list(VmSource::Local).await.map_err(|error| chain(&error))?;
        let on_disk = self.tart.vm_dirs().map_err(|error| chain(&error))?;
        names.extend(on_disk.iter().map(ToString::to_string));
        let on_disk = self.tart.base_dirs().map_err(|error| chain(&error))?;
        names.extend(on_disk.iter().map(ToString::to_string));
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn vm(&self, name: String, ages: &mut Ages, now: Now) -> Vm {
        let (dir, holder) = if let Ok(vm) = name.parse::<VmName>() {
            let holder = self.state.pod(vm.uid().clone()).attempt(vm.restart()).holder();
            (self.tart.vm_dir(&vm), holder.map_err(unknown))
        } else if let Ok(base) = name.parse::<BaseName>() {
            (self.tart.base_dir(&base), Ok(Holder::Nobody))
        } else {
            return Vm::foreign(name);
        };
        Vm {
            holder,
            lock: self.tart.lock_of(&dir).map_err(|error| chain(&error)),
            age: touched(&dir).map(|touched| ages.of(&name, touched, now)).map_err(|error| chain(&error)),
            name,
        }
    }

    /// The base VMs that are accounted for.
    fn bases(&self) -> Result<HashSet<BaseName>, Unknown> {
        if self.state.has_lost_images().map_err(unknown)? {
            return Err(format!(
                "the record of images was spoilt; remove {} to have base VMs collected that nothing else needs",
                self.state.spoilt_images_path().display()
            ));
        }
        let known = match &self.images {
            Some(images) => images.known(),
            None => self.state.images().map_err(unknown)?.images().to_vec(),
        };
        // The record first: a Pod is in the state directory while its image is still in the record.
        let recorded: Vec<BaseName> = known.iter().map(KnownImage::base).collect();
        let Some(mut bases) = self.state.bases_in_use().map_err(unknown)? else {
            return Err("there is a VM of which it is not known what it was made from".to_owned());
        };
        bases.extend(recorded);
        Ok(bases)
    }

    /// The base VMs that tart could make again, from what it has.
    fn cached(&self) -> Result<HashSet<BaseName>, Unknown> {
        let images = self.tart.cached_images().map_err(|error| chain(&error))?;
        Ok(images.iter().map(|image| BaseName::of(&image.digest)).collect())
    }

    /// The Pods of this Node, from the API server itself and not from any cache of ours.
    async fn bound(&self) -> Result<HashMap<PodUid, PodName>, Unknown> {
        // Without a version the list is the latest; without a limit it is whole.
        let ours = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let pods = match timeout(API_LIMIT, self.pods.list(&ours)).await {
            Ok(Ok(pods)) => pods,
            Ok(Err(error)) => return Err(chain(&error)),
            Err(_) => {
                return Err(format!("the API server did not answer within {} s", API_LIMIT.as_secs()));
            }
        };
        if pods.metadata.continue_.is_some_and(|more| !more.is_empty()) {
            return Err("the API server has listed only some of them".to_owned());
        }
        let named = |pod: Pod| {
            // A UID that is not one of ours has no VM of ours.
            let uid = pod.uid()?.parse().ok()?;
            Some((uid, PodName { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() }))
        };
        Ok(pods.items.into_iter().filter_map(named).collect())
    }
}

fn remains_of(dir: &PodDir, ages: &mut Ages, now: Now) -> Remains {
    let times = dir.paths().into_iter().filter_map(|path| match touched(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        time => Some(time),
    });
    let newest = times.collect::<io::Result<Vec<_>>>().map(|times| times.into_iter().max());
    let age = match newest {
        Ok(Some(touched)) => Ok(ages.of(&dir.uid().to_string(), touched, now)),
        Ok(None) => Err("it is gone".to_owned()),
        Err(error) => Err(chain(&error)),
    };
    Remains { uid: dir.uid().clone(), holder: dir.holder().map_err(unknown), age }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what errors are mapped with")]
fn unknown(error: FileError) -> Unknown {
    chain(&error)
}
