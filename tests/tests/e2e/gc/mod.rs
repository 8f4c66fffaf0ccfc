//! The collector of VMs that no Pod has any more.

pub(crate) mod orphans;
