//! Makes the VM: its clone, its identity and its size.

use tokio::task::spawn_blocking;
use tracing::warn;

use super::Shim;
use super::outcome::messages::tart_failed;
use crate::crash_point;
use crate::error_chain::chain;
use crate::state::{NotStarted, NotStartedReason, Stage};
use crate::tart::{Fault, Size, TartError};

impl Shim {
    pub(super) async fn create_vm(&self) -> Result<(), NotStarted> {
        self.enter(Stage::Cloning);
        // The disk can sync while tart clones.
        let vm_run = self.vm_run.clone();
        let synced = spawn_blocking(move || vm_run.sync_begun());
        let failed = |error| tart_failed(NotStartedReason::CreateContainerError, &error);
        self.with_disk_space(async || self.clone_vm().await).await.map_err(failed)?;
        crash_point::point("shim.cloned");
        self.enter(Stage::Configuring);
        self.with_disk_space(async || self.configure().await).await.map_err(failed)?;
        if !matches!(synced.await, Ok(Ok(()))) {
            self.persist("that the run has begun", || self.vm_run.sync_begun()).await;
        }
        Ok(())
    }

    /// Runs a step that needs disk space. On a full disk it asks the agent for space and tries once more.
    async fn with_disk_space(&self, step: impl AsyncFn() -> Result<(), TartError>) -> Result<(), TartError> {
        match step().await {
            Err(error) if error.fault() == Some(Fault::NoSpace) => {
                warn!(error = chain(&error), "no disk space for the VM; asking the agent for some");
                if self.disk_space_request().fulfil().await { step().await } else { Err(error) }
            }
            result => result,
        }
    }

    async fn clone_vm(&self) -> Result<(), TartError> {
        if let Some(base) = &self.spec.base {
            match self.tart.clone_base(base, &self.spec.vm).await {
                // A user may have deleted the base, or a part of it. A full disk has no space for a clone of the image either.
                Err(error) if error.fault().is_some_and(|fault| fault != Fault::NoSpace) => {
                    warn!(%base, error = chain(&error), "cannot clone the base VM; cloning the image itself");
                }
                result => return result,
            }
        }
        self.tart.clone_image(&self.spec.image, &self.spec.vm).await
    }

    async fn configure(&self) -> Result<(), TartError> {
        let asked = Size { cpu: self.spec.cpu, memory_mib: self.spec.memory_mib };
        let serial = self.spec.serial;
        let mut result = self.tart.configure(&self.spec.vm, asked, serial).await;
        for size in larger(asked) {
            match result {
                Err(error) if error.fault() == Some(Fault::BadSize) => {
                    result = self.tart.configure(&self.spec.vm, size, serial).await;
                }
                done => return done,
            }
            if result.is_ok() {
                self.report_exceeded_limits(size);
            }
        }
        result
    }

    /// Leaves a notice of the limits that the image's own size exceeds.
    fn report_exceeded_limits(&self, size: Size) {
        let cpu = self.spec.cpu.filter(|_| self.spec.cpu_is_limit && size.cpu.is_none());
        let memory = self.spec.memory_mib.filter(|_| self.spec.memory_is_limit && size.memory_mib.is_none());
        let exceeded =
            [cpu.map(|cores| format!("cpu ({cores})")), memory.map(|mib| format!("memory ({mib} MiB)"))];
        let exceeded: Vec<String> = exceeded.into_iter().flatten().collect();
        if !exceeded.is_empty() {
            let message = format!(
                "the image needs a larger VM than the container's limits allow: {}; the VM is as large as its image has it",
                exceeded.join(", ")
            );
            self.notice("LimitsTooSmall", message);
        }
    }
}

/// The sizes to try when the image needs a larger VM: its own cores, its own memory, or both. No VM of it can be smaller, and most limits
/// are written for containers.
fn larger(size: Size) -> Vec<Size> {
    let more_cpu = Size { cpu: None, ..size };
    let more_memory = Size { memory_mib: None, ..size };
    let mut sizes = vec![more_cpu, more_memory, Size::default()];
    sizes.retain(|other| *other != size);
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_sizes_keep_what_they_can_of_the_asked_one() {
        let of = |cpu, memory_mib| Size { cpu, memory_mib };
        let (more_cpu, more_memory) = (of(None, Some(64)), of(Some(1), None));
        let table = [
            (of(Some(1), Some(64)), vec![more_cpu, more_memory, Size::default()]),
            (of(Some(1), None), vec![Size::default()]),
            (Size::default(), vec![]),
        ];
        for (size, expected) in table {
            assert_eq!(larger(size), expected, "{size:?}");
        }
    }
}
