//! `tart prune`.

use std::time::{Duration, SystemTime};

use crate::cli;
use crate::error::{Error, Result};
use crate::home::Home;
use crate::home::prunable::{Prunable, caches, remove_all, stopped_vms};
use crate::oci::Cache;

/// Removes what is old, or what exceeds a budget.
pub(crate) fn prune(home: &Home, args: &cli::Prune) -> Result<()> {
    if args.older_than.is_none() && args.space_budget.is_none() && !args.gc {
        return Err(Error::usage("at least one pruning criteria must be specified"));
    }
    if args.gc {
        Cache::new(home).collect_garbage().map_err(Error::other)?;
    }
    let prunables = || if args.vms { stopped_vms(home) } else { caches(home).map_err(Error::other) };
    if let Some(days) = args.older_than {
        let age = Duration::from_secs(days.saturating_mul(24 * 60 * 60));
        let limit = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        remove_all(prunables()?.into_iter().filter(|prunable| prunable.accessed <= limit))?;
    }
    if let Some(gib) = args.space_budget {
        remove_all(beyond_budget(prunables()?, gib.saturating_mul(1 << 30)))?;
    }
    Ok(())
}

/// What exceeds the budget when the most recently used come first.
fn beyond_budget(mut prunables: Vec<Prunable>, mut budget: u64) -> Vec<Prunable> {
    prunables.sort_by_key(|prunable| std::cmp::Reverse(prunable.accessed));
    prunables.retain(|prunable| match budget.checked_sub(prunable.size) {
        Some(left) => {
            budget = left;
            false
        }
        None => true,
    });
    prunables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::prunable::tests::{names, prunable};

    #[test]
    fn a_budget_keeps_what_was_used_last_and_what_still_fits() {
        let all = vec![prunable("old-small", 1, 30), prunable("new", 5, 1), prunable("old-large", 6, 20)];
        assert_eq!(names(&beyond_budget(all, 7)), ["old-large"]);
    }
}
