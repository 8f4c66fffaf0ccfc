//! Measures the Node and its VMs when a client asks, and at most once a second. While no client asks, nothing is measured.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt;
use nix::unistd::Pid;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::debug;

use super::sample::{CpuSample, GroupCpu, NodeSample, Sample, VmSample};
use crate::error_chain::chain;
use crate::fs::disk_usage::size_on_disk;
use crate::fs::file::FileError;
use crate::names::{PodName, VmName};
use crate::os::availability::{self, volume};
use crate::os::host;
use crate::os::host_cpu::HostCpu;
use crate::os::process_table::TableError;
use crate::os::process_usage::{self, with_descendants};
use crate::pod::registry::PodRegistry;
use crate::state::{PodDir, StateDir};
use crate::tart::Tart;
use crate::volume::pod_usage::used_without_volumes;

/// A sample is used again for this long: many scrapers cost no more than one.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The limit of one measurement.
const LIMIT: Duration = Duration::from_secs(10);

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SampleError {
    #[error(transparent)]
    Processes(#[from] TableError),
    #[error("cannot read the state of the Pods")]
    State(#[from] FileError),
    #[error("the host does not answer within {} s", LIMIT.as_secs())]
    Late,
}

/// Measures on demand. Clones share the last sample.
#[derive(Debug, Clone)]
pub(crate) struct Sampler {
    pods: PodRegistry,
    state: StateDir,
    tart: Tart,
    memory: Arc<Mutex<Memory>>,
}

/// What a sampler remembers of the samples before.
#[derive(Debug, Default)]
struct Memory {
    last: Option<(Instant, Arc<Sample>)>,
    cpu: Option<HostCpu>,
    vms: HashMap<VmName, GroupCpu>,
}

/// A VM that runs.
struct RunningVm {
    vm: VmName,
    pod: PodName,
    dir: PodDir,
    container: String,
    image: String,
    started_at: Timestamp,
    processes: Vec<Pid>,
}

impl Sampler {
    pub(crate) fn new(pods: PodRegistry, state: StateDir, tart: Tart) -> Self {
        // The host's processor time counts from here.
        let memory = Memory { cpu: HostCpu::new(), ..Memory::default() };
        Self { pods, state, tart, memory: Arc::new(Mutex::new(memory)) }
    }

    /// A sample that is not older than a second.
    pub(in crate::api) async fn sample(&self) -> Result<Arc<Sample>, SampleError> {
        timeout(LIMIT, self.measure()).await.map_err(|_| SampleError::Late)?
    }

    async fn measure(&self) -> Result<Arc<Sample>, SampleError> {
        let memory = self.memory.clone().lock_owned().await;
        if let Some((taken, sample)) = &memory.last
            && taken.elapsed() < MIN_INTERVAL
        {
            return Ok(sample.clone());
        }
        let sampler = self.clone();
        // The lock goes along: while a disk hangs, no second thread waits for it.
        let listed = spawn_blocking(move || sampler.running().map(|running| (memory, running)));
        let (memory, running) = listed.await.map_err(|_| SampleError::Late)??;
        let mut vms = Vec::new();
        for mut vm in running {
            let disk = self.tart.vm_dir(&vm.vm).join("disk.img");
            vm.processes.extend(host::vm_helpers(&disk).await);
            vms.push(vm);
        }
        let sampler = self.clone();
        spawn_blocking(move || sampler.take(memory, vms)).await.map_err(|_| SampleError::Late)?
    }

    /// The VMs whose container runs.
    fn running(&self) -> Result<Vec<RunningVm>, SampleError> {
        let mut found = Vec::new();
        for (uid, pod) in self.pods.pods() {
            let dir = self.state.pod(uid);
            let Some(run) = dir.runs()?.pop() else { continue };
            let view = run.view()?;
            let (Some(spec), Some((container, started_at))) = (&view.spec, view.running_container()) else {
                continue;
            };
            found.push(RunningVm {
                vm: run.vm(),
                pod: PodName { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() },
                dir,
                container: container.to_owned(),
                image: spec.image_name.clone().unwrap_or_else(|| spec.image.clone()),
                started_at,
                processes: run.shim_pid()?.into_iter().collect(),
            });
        }
        Ok(found)
    }

    fn take(
        &self,
        mut memory: OwnedMutexGuard<Memory>,
        running: Vec<RunningVm>,
    ) -> Result<Arc<Sample>, SampleError> {
        let all = process_usage::all()?;
        let now = Instant::now();
        let Memory { last, cpu, vms: groups } = &mut *memory;
        let elapsed = last.as_ref().map_or(Duration::ZERO, |(taken, _)| now - *taken);
        let before = last.as_ref().map(|(_, sample)| sample.clone());
        groups.retain(|vm, _| running.iter().any(|one| one.vm == *vm));
        let vms = running.into_iter().map(|one| {
            let processes = with_descendants(one.processes, &all);
            let total = groups.entry(one.vm.clone()).or_default().add(&processes);
            let earlier = before.iter().flat_map(|sample| &sample.vms).find(|known| known.vm == one.vm);
            let disk = used_without_volumes(&one.dir, &self.tart).unwrap_or_else(|error| {
                debug!(error = chain(&error), "cannot measure what a Pod uses of the disk");
                None
            });
            VmSample {
                uid: one.dir.uid().clone(),
                cpu: CpuSample::after(earlier.map(|earlier| earlier.cpu), elapsed, total),
                memory: processes.values().map(|process| process.memory).sum(),
                logs: size_on_disk(one.dir.logs_path()),
                disk,
                vm: one.vm,
                pod: one.pod,
                container: one.container,
                image: one.image,
                started_at: one.started_at,
            }
        });
        let mut vms: Vec<VmSample> = vms.collect();
        vms.sort_by_key(|vm| vm.pod.to_string());
        let earlier = before.as_ref().and_then(|sample| sample.node.cpu);
        let node = NodeSample {
            cpu: cpu.as_mut().map(|cpu| CpuSample::after(earlier, elapsed, cpu.used())),
            memory: availability::memory(),
            node_fs: volume(self.state.path()),
            image_fs: volume(self.tart.home()),
            processes: u64::try_from(all.len()).ok(),
        };
        let sample = Arc::new(Sample { at: Timestamp::now(), node, vms });
        *last = Some((now, sample.clone()));
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use nix::sys::stat::Mode;

    #[tokio::test]
    async fn a_disk_that_hangs_keeps_one_thread_however_often_it_is_asked() {
        let dir = crate::testing::dir();
        let state = StateDir::open(dir.path()).unwrap();
        let uid: crate::names::PodUid = "0b1c".parse().unwrap();
        let run = state.pod(uid.clone()).run(crate::names::Restart(0));
        std::fs::create_dir_all(run.path()).unwrap();
        // What reads it waits until it is written.
        let spec = run.path().join("spec.json");
        nix::unistd::mkfifo(&spec, Mode::S_IRWXU).unwrap();
        let (pods, _guard) = PodRegistry::with_pod(uid, Pod::default());
        let sampler = Sampler::new(pods, state, Tart::in_home("tart".as_ref(), dir.path()));
        for _ in 0..3 {
            assert!(timeout(Duration::ZERO, sampler.measure()).await.is_err());
            assert!(sampler.memory.try_lock().is_err(), "another one would start");
        }
        drop(std::fs::File::options().write(true).open(&spec).unwrap());
        std::fs::remove_file(&spec).unwrap();
        assert!(sampler.measure().await.is_ok());
    }
}
