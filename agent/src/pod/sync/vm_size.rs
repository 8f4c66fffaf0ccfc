//! The size of a Pod's VM: that of its limits, else of its requests, else its image's, as far as the Node has room.
//!
//! An image says how large its VMs are, and how large they are at least. The scheduler knows neither. So no VM is larger than the Pod's limit
//! because its image says so, and no image takes memory that other Pods have.

use crate::pod::admission::VmPlan;
use crate::quantity::{self, ResourceList};
use crate::tart::{ImageSize, Size};

/// What a VM can have of the Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// The cores of the Node. VMs share them, as Pods without a limit do elsewhere.
    pub(crate) cores: u32,
    /// The memory that other Pods leave.
    pub(crate) memory_mib: u64,
}

impl Room {
    /// All that a Node has for its Pods.
    pub(crate) fn of(allocatable: &ResourceList) -> Self {
        let amount = |name: &str| allocatable.get(name).and_then(quantity::whole).unwrap_or(0);
        Self { cores: amount("cpu").try_into().unwrap_or(u32::MAX), memory_mib: amount("memory") >> 20 }
    }
}

/// Why a VM cannot have a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SizeError {
    #[error(
        "the image needs a VM with {least} of {resource} at least, and the container's limit is {limit}; raise \
         resources.limits.{resource}, or choose another image"
    )]
    LimitTooSmall { resource: &'static str, least: String, limit: String },
    #[error(
        "the image needs a VM with {least} MiB of memory at least, and the Pods of this Node leave {left} MiB; it starts when there is room. \
         Set resources.requests.memory, and the scheduler chooses a Node that has it"
    )]
    NoRoom { least: u64, left: u64 },
}

/// The size of the VM of an admitted Pod.
pub(crate) fn vm_size(plan: &VmPlan, image: ImageSize, room: Room) -> Result<Size, SizeError> {
    let cores = |cores: u32| if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
    let mebibytes = |amount: u64| format!("{amount} MiB");
    let cpu = match plan.size.cpu {
        Some(limit) if plan.cpu_is_limit && limit < image.cpu_min => {
            let (least, limit) = (cores(image.cpu_min), cores(limit));
            return Err(SizeError::LimitTooSmall { resource: "cpu", least, limit });
        }
        Some(asked) if asked >= image.cpu_min => asked,
        _ => image.cpu.min(room.cores).max(image.cpu_min),
    };
    let memory_mib = match plan.size.memory_mib {
        Some(limit) if plan.memory_is_limit && limit < image.memory_min_mib => {
            let (least, limit) = (mebibytes(image.memory_min_mib), mebibytes(limit));
            return Err(SizeError::LimitTooSmall { resource: "memory", least, limit });
        }
        Some(asked) if asked >= image.memory_min_mib => asked,
        _ if room.memory_mib < image.memory_min_mib => {
            return Err(SizeError::NoRoom { least: image.memory_min_mib, left: room.memory_mib });
        }
        _ => image.memory_mib.min(room.memory_mib).max(image.memory_min_mib),
    };
    // tart refuses an image that says nothing of its size.
    Ok(Size {
        cpu: Some(cpu).filter(|&cores| cores > 0),
        memory_mib: Some(memory_mib).filter(|&memory| memory > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IMAGE: ImageSize = ImageSize { cpu: 4, cpu_min: 2, memory_mib: 8192, memory_min_mib: 4096 };
    const MAC: Room = Room { cores: 8, memory_mib: 14_000 };

    fn plan(cpu: Option<u32>, memory_mib: Option<u64>, is_limit: bool) -> VmPlan {
        let size = Size { cpu, memory_mib };
        VmPlan { size, cpu_is_limit: is_limit, memory_is_limit: is_limit, ..VmPlan::default() }
    }

    #[test]
    fn limits_else_requests_else_the_image_size_the_vm() {
        let left = |memory_mib| Room { memory_mib, ..MAC };
        let table = [
            ("limits", plan(Some(6), Some(6000), true), MAC, (6, 6000)),
            ("requests", plan(Some(6), Some(6000), false), MAC, (6, 6000)),
            ("neither", plan(None, None, false), MAC, (4, 8192)),
            (
                "a limit may be more than is left: the user has said so",
                plan(None, Some(9000), true),
                left(1),
                (4, 9000),
            ),
            ("a request was admitted", plan(None, Some(9000), false), left(1), (4, 9000)),
            ("requests that are less than the image needs", plan(Some(1), Some(64), false), MAC, (4, 8192)),
            ("no more memory than is left", plan(None, None, false), left(5000), (4, 5000)),
            ("the least", plan(Some(1), Some(64), false), left(4096), (4, 4096)),
            ("no more cores than there are", plan(None, None, false), Room { cores: 3, ..MAC }, (3, 8192)),
            ("but as many as the image needs", plan(None, None, false), Room { cores: 1, ..MAC }, (2, 8192)),
        ];
        for (name, plan, room, (cpu, memory)) in table {
            let size = Size { cpu: Some(cpu), memory_mib: Some(memory) };
            assert_eq!(vm_size(&plan, IMAGE, room), Ok(size), "{name}");
        }
    }

    #[test]
    fn a_vm_that_would_exceed_the_pods_limit_or_the_node_is_refused_in_words() {
        let table = [
            (
                plan(Some(1), Some(8192), true),
                MAC,
                "2 cores of cpu at least, and the container's limit is 1 core;",
            ),
            (
                plan(None, Some(64), true),
                MAC,
                "4096 MiB of memory at least, and the container's limit is 64 MiB;",
            ),
            (
                plan(None, None, false),
                Room { memory_mib: 4095, ..MAC },
                "4096 MiB of memory at least, and the Pods of this Node leave 4095 MiB;",
            ),
        ];
        for (plan, room, words) in table {
            let refused = vm_size(&plan, IMAGE, room).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    proptest! {
        /// Whatever an image says of itself, its VM exceeds neither the Pod's limit nor, without a limit, the larger of request and room.
        #[test]
        fn no_image_makes_its_vm_larger_than_the_pod_and_the_node_allow(
            image in (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>()),
            asked in (proptest::option::of(1u32..64), proptest::option::of(1u64..100_000), any::<bool>()),
            left in 0u64..100_000,
        ) {
            let (cpu, cpu_min, memory_mib, memory_min_mib) = image;
            let image = ImageSize { cpu, cpu_min, memory_mib, memory_min_mib };
            let (cores, memory, is_limit) = asked;
            let room = Room { cores: 8, memory_mib: left };
            if let Ok(size) = vm_size(&plan(cores, memory, is_limit), image, room) {
                let most = memory.filter(|_| is_limit).unwrap_or_else(|| left.max(memory.unwrap_or(0)));
                prop_assert!(size.memory_mib <= Some(most));
                prop_assert!(size.memory_mib.unwrap_or(0) >= memory_min_mib && size.cpu.unwrap_or(0) >= cpu_min);
                if let Some(limit) = cores.filter(|_| is_limit) {
                    prop_assert!(size.cpu <= Some(limit));
                }
            }
        }
    }
}
