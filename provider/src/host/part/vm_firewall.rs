//! The firewall of VMs as a part of a step.

use serde::Serialize;

use super::{Change, PartError, Remote};
use crate::host::firewall::{self, FirewallConfig, FirewallFile};

/// The firewall of VMs. Its files are rendered when the part is made, so that the hash has them.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct VmFirewall {
    config: FirewallConfig,
    files: Option<[FirewallFile; 3]>,
}

impl VmFirewall {
    pub(crate) fn of(config: &FirewallConfig) -> Self {
        // A job that cannot be rendered is told when it is applied.
        Self { config: config.clone(), files: firewall::files(config).ok() }
    }

    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let found = firewall::differences(mac, &self.config).await?;
        let change = |firewall::Difference { words, contents }| {
            let change = Change::new("firewall of VMs", words, "in force");
            match contents {
                Some((is, wanted)) => change.with_lines(&is, &wanted),
                None => change,
            }
        };
        Ok(found.into_iter().map(change).collect())
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        firewall::apply(mac, &self.config).await?;
        Ok(())
    }
}
