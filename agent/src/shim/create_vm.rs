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
        let size = Size { cpu: self.spec.cpu, memory_mib: self.spec.memory_mib };
        self.tart.configure(&self.spec.vm, size, self.spec.serial).await
    }
}
