//! The size of the VM that is about to be planned: what its image, its Pod and the other Pods of the Node say.

use super::Worker;
use super::fetch::image_pull::ReadyImage;
use super::retry::StepError;
use crate::apiserver::events::EventReason;
use crate::pod::admission::VmPlan;
use crate::pod::admission::fit::ResourceRequests;
use crate::pod::status::is_final;
use crate::pod::sync::vm_size::{Room, SizeError, vm_size};
use crate::tart::Size;

impl Worker {
    pub(super) fn vm_size(
        &self,
        plan: &VmPlan,
        image: &ReadyImage,
    ) -> Result<Result<Size, SizeError>, StepError> {
        let own = self.host.tart.image_size(&image.base, &image.digest)?;
        let size = vm_size(plan, own, self.room()?);
        if let Ok(Size { memory_mib: Some(given), .. }) = size
            && plan.size.memory_mib.is_none()
            && given < own.memory_mib
        {
            let note = format!(
                "the VM has {given} MiB of memory, which is what other Pods leave of this Node; its image has {} MiB. Set \
                 resources.requests.memory to be sure of it",
                own.memory_mib
            );
            self.reporter.events().normal(&self.updates.pod(), EventReason::SmallerVM, &note);
        }
        Ok(size)
    }

    /// What the other Pods leave of the Node. Each has what it requests, or its VM's size if that is more.
    fn room(&self) -> Result<Room, StepError> {
        let mut vms = self.host.state.vm_memory_of_others(self.dir.uid())?;
        let mut taken = 0u64;
        for (uid, pod) in self.host.registry.pods() {
            if uid != *self.dir.uid() && !is_final(pod.status.as_ref()) {
                let requested = ResourceRequests::of(&pod).memory.div_ceil(1 << 20);
                taken = taken.saturating_add(requested.max(vms.remove(&uid).unwrap_or(0)));
            }
        }
        // VMs of Pods that the API server no longer has, or shows as ended.
        taken = vms.into_values().fold(taken, u64::saturating_add);
        let all = self.host.vms.allocatable;
        Ok(Room { memory_mib: all.memory_mib.saturating_sub(taken), ..all })
    }
}
