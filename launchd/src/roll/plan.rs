//! Which way a job comes to its new binary or definition. A pure function.

use crate::job::Job;
use crate::launchctl::Registration;

/// The property list on the disk, compared with the wanted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlistOnDisk {
    /// There is none.
    Missing,
    /// It has other bytes.
    Different,
    /// It has the same bytes.
    Same,
}

/// What a roll does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// Nothing: the job runs as it should.
    Keep,
    /// `kickstart -k`. It leaves the job's registration alone: macOS counts registrations, and no longer starts a job that has had too many.
    Restart,
    /// `bootout` and `bootstrap`, for launchd reads a property list only then.
    Register {
        /// Whether the property list is written first.
        write: bool,
    },
}

/// What is known to be old although the property list on the disk is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outdated {
    /// Nothing.
    Nothing,
    /// The process: it runs an old binary, or has read an old file.
    Process,
    /// What launchd has loaded. `launchctl print` does not show all of a definition.
    Definition,
}

/// Chooses the way.
pub(super) fn plan(
    job: &Job,
    path: &str,
    plist: PlistOnDisk,
    loaded: &Registration,
    outdated: Outdated,
) -> Plan {
    let is_known = plist == PlistOnDisk::Same && outdated != Outdated::Definition;
    match loaded.service() {
        // A roll that died after it wrote the property list has left launchd with the old definition: the bytes alone do not tell.
        Some(service) if is_known && service.is_of(job, path) => match service.pid {
            Some(_) if outdated == Outdated::Nothing => Plan::Keep,
            _ => Plan::Restart,
        },
        _ => Plan::Register { write: plist != PlistOnDisk::Same },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_job::{AGENT_PLIST, ConsoleUser, agent_job};
    use crate::launchctl::Service;
    use proptest::prelude::*;

    fn job() -> Job {
        agent_job(&ConsoleUser::named("m1"), ["--a".to_owned()])
    }

    fn loaded(pid: Option<u32>, arguments: Option<Vec<String>>) -> Registration {
        Registration::Loaded(Box::new(Service { arguments, pid, ..Service::default() }))
    }

    #[test]
    fn a_job_is_registered_anew_only_when_its_definition_changes() {
        use Outdated::{Definition, Nothing, Process};
        use PlistOnDisk::{Different, Missing, Same};
        let running = || loaded(Some(7), Some(job().program_arguments));
        let ended = || loaded(None, None);
        let outdated = || loaded(Some(7), Some(vec!["/usr/local/bin/tart-kubelet".to_owned()]));
        let unloaded = || Registration::NotLoaded;
        let register = |write| Plan::Register { write };
        let table = [
            (Same, running(), Nothing, Plan::Keep),
            (Same, running(), Process, Plan::Restart),
            (Same, running(), Definition, register(false)),
            (Same, ended(), Nothing, Plan::Restart),
            (Same, ended(), Process, Plan::Restart),
            (Same, outdated(), Nothing, register(false)),
            (Same, unloaded(), Nothing, register(false)),
            (Different, running(), Nothing, register(true)),
            (Different, running(), Process, register(true)),
            (Different, running(), Definition, register(true)),
            (Different, unloaded(), Process, register(true)),
            (Missing, running(), Nothing, register(true)),
            (Missing, unloaded(), Nothing, register(true)),
        ];
        for (plist, loaded, outdated, wanted) in table {
            assert_eq!(
                plan(&job(), AGENT_PLIST, plist, &loaded, outdated),
                wanted,
                "{plist:?} {loaded:?} {outdated:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_plan_follows_its_rules(
            plist in prop::sample::select(&[PlistOnDisk::Missing, PlistOnDisk::Different, PlistOnDisk::Same][..]),
            is_loaded: bool, is_ours: bool, pid in prop::option::of(1_u32..99),
            outdated in prop::sample::select(&[Outdated::Nothing, Outdated::Process, Outdated::Definition][..]),
        ) {
            let arguments = if is_ours { job().program_arguments } else { vec!["/other".to_owned()] };
            let registration = if is_loaded { loaded(pid, Some(arguments)) } else { Registration::NotLoaded };
            let is_known = outdated != Outdated::Definition;
            let same = is_loaded && is_ours && is_known && plist == PlistOnDisk::Same;
            match plan(&job(), AGENT_PLIST, plist, &registration, outdated) {
                // A job that is loaded with the same definition is never registered again.
                Plan::Register { write } => prop_assert!(!same && write == (plist != PlistOnDisk::Same)),
                Plan::Restart => prop_assert!(same && (outdated == Outdated::Process || pid.is_none())),
                Plan::Keep => prop_assert!(same && outdated == Outdated::Nothing && pid.is_some()),
            }
        }
    }
}
