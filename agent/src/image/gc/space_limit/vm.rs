//! The limit of a Pod's VMs. When the next VM lacks space as well, no more images are deleted: a container that restarts for ever would
//! cost all of them.

use crate::names::Restart;

/// The last VM of a Pod that lacked space, and whether images might be deleted for it.
#[derive(Debug, Default)]
pub(crate) struct VmSpaceLimit {
    last: Option<(Restart, bool)>,
}

impl VmSpaceLimit {
    /// A VM lacks space; whether images may be deleted for it.
    pub(in crate::image::gc) fn allows(&mut self, vm: Restart) -> bool {
        let allows = match self.last {
            Some((last, allowed)) if last == vm => allowed,
            Some((last, _)) => last.next() != vm,
            None => true,
        };
        self.last = Some((vm, allows));
        allows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_vms_in_a_row_that_lack_space_only_the_first_is_allowed() {
        let mut limit = VmSpaceLimit::default();
        let mut allows = |vm| limit.allows(Restart(vm));
        assert!(allows(3) && allows(3), "its clone, and then its start");
        assert!(!allows(4) && !allows(4) && !allows(5), "what was deleted was not enough");
        assert!(allows(7), "the VM before had space");
    }
}
