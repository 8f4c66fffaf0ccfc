//! Making a VM: its clone, its identity and its size, with room on the disk for it.

use tokio::task::spawn_blocking;
use tracing::warn;

use super::Shim;
use super::outcome::messages::not_started;
use crate::crash_point;
use crate::error_chain::chain;
use crate::state::{Ending, Stage};
use crate::tart::{Fault, Size, TartError};

impl Shim {
    /// Makes the VM.
    pub(super) async fn prepare(&self) -> Result<(), Ending> {
        self.enter(Stage::Cloning);
        // The disk has time for this while tart clones.
        let attempt = self.attempt.clone();
        let begun = spawn_blocking(move || attempt.sync_begun());
        let failed = |error| not_started("CreateContainerError", &error);
        self.with_room(async || self.clone_vm().await).await.map_err(failed)?;
        crash_point::point("shim.cloned");
        self.enter(Stage::Configuring);
        self.with_room(async || self.configure().await).await.map_err(failed)?;
        if !matches!(begun.await, Ok(Ok(()))) {
            self.persist("that the VM is begun", || self.attempt.sync_begun()).await;
        }
        Ok(())
    }

    /// Takes a step that needs space. When there is none, the agent makes some, and it is tried once more.
    async fn with_room(&self, step: impl AsyncFn() -> Result<(), TartError>) -> Result<(), TartError> {
        match step().await {
            Err(error) if error.fault() == Some(Fault::NoSpace) => {
                warn!(error = chain(&error), "no space for the VM; asking the agent for some");
                if self.room().make().await { step().await } else { Err(error) }
            }
            result => result,
        }
    }

    async fn clone_vm(&self) -> Result<(), TartError> {
        if let Some(base) = &self.spec.base {
            match self.tart.clone_base(base, &self.spec.vm).await {
                // Somebody has deleted it a moment ago, or a part of it. A disk without room has none for the image either.
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
        let mut result = self.tart.configure(&self.spec.vm, asked).await;
        for size in larger(asked) {
            match result {
                Err(error) if error.fault() == Some(Fault::BadSize) => {
                    result = self.tart.configure(&self.spec.vm, size).await;
                }
                done => return done,
            }
            if result.is_ok() {
                self.tell_exceeded(size);
            }
        }
        result
    }

    /// Tells which limits the image's own size goes beyond.
    fn tell_exceeded(&self, size: Size) {
        let cpu = self.spec.cpu.filter(|_| self.spec.cpu_is_limit && size.cpu.is_none());
        let memory = self.spec.memory_mib.filter(|_| self.spec.memory_is_limit && size.memory_mib.is_none());
        let exceeded: Vec<String> = cpu
            .map(|cores| format!("cpu ({cores})"))
            .into_iter()
            .chain(memory.map(|mib| format!("memory ({mib} MiB)")))
            .collect();
        if !exceeded.is_empty() {
            let message = format!(
                "the image needs a larger VM than the container's limits allow: {}; the VM is as large as its image has it",
                exceeded.join(", ")
            );
            self.notice("LimitsTooSmall", message);
        }
    }
}

/// What to try when a VM cannot be as small as asked for: where the image needs more of one, or of both, it is the image that counts.
/// No VM could be smaller, and most limits were written with containers in mind.
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
    fn no_more_grows_than_has_to() {
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
