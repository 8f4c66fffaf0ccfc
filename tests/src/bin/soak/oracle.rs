//! What may become of a Pod: a pure function of what it is meant to do, what has happened to it, and what its guest wrote down.

use super::pod_kind::PodKind;

/// The exit code of a container that was killed, or whose end is unknown.
const KILLED: i32 = 137;
/// The exit code of a command that SIGTERM has ended.
const TERMINATED: i32 = 143;
/// The exit code of a container that never started.
const NOT_STARTED: i32 = 128;

/// What has happened to a Pod that changes how it may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Harm {
    /// It was deleted, or its world was cleared.
    pub(crate) is_deleted: bool,
    /// How often its shim or its tart was killed, or its Mac lost power.
    pub(crate) kills: usize,
    /// Its Mac had a fault that keeps VMs from starting before it ran.
    pub(crate) had_mac_fault: bool,
}

impl Harm {
    fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// What the guest of a Pod wrote down, in all its VMs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Testimony {
    pub(crate) begins: usize,
    /// The exit codes that the command was about to end with.
    pub(crate) ends: Vec<i32>,
}

/// The end of a container in its Pod's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerEnd {
    pub(crate) code: i32,
    pub(crate) reason: String,
}

/// A Pod's status, as far as it is judged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PodState {
    pub(crate) phase: String,
    pub(crate) reason: Option<String>,
    pub(crate) waiting: Option<String>,
    pub(crate) restarts: i32,
    /// The current end, and the one before.
    pub(crate) end: Option<ContainerEnd>,
    pub(crate) last_end: Option<ContainerEnd>,
}

impl PodState {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }
}

/// Judges a status whenever it is seen. The error says what cannot be.
pub(crate) fn judge(
    kind: PodKind,
    harm: Harm,
    testimony: &Testimony,
    state: &PodState,
) -> Result<(), String> {
    for end in [&state.end, &state.last_end].into_iter().flatten() {
        judge_end(kind, harm, testimony, end)?;
    }
    if kind.is_hostile() {
        return Ok(());
    }
    judge_starts(kind, harm, testimony, state)?;
    if let Some(reason) = &state.reason {
        return Err(format!("an innocent Pod has failed as a whole: {reason}"));
    }
    if state.phase == "Succeeded" && state.end.as_ref().is_none_or(|end| end.code != 0) {
        return Err(format!("it has succeeded, and its container has not: {:?}", state.end));
    }
    match kind {
        PodKind::BadImage(_) if state.phase == "Running" => Err("it runs without an image".to_owned()),
        PodKind::BadImage(_) if state.is_over() && !harm.is_deleted => {
            Err(format!("a Pod that waits for its image is {}", state.phase))
        }
        PodKind::BootOnly if state.is_over() && harm.is_none() => {
            Err(format!("a VM that runs until it is deleted is {}: {:?}", state.phase, state.end))
        }
        PodKind::Retry if state.phase == "Failed" && !harm.is_deleted => {
            Err("a Pod that is restarted until it succeeds has failed".to_owned())
        }
        _ => Ok(()),
    }
}

/// A command starts once. That of a [`PodKind::Retry`] starts twice, and once more for each VM that was killed.
fn judge_starts(kind: PodKind, harm: Harm, testimony: &Testimony, state: &PodState) -> Result<(), String> {
    let Testimony { begins, .. } = testimony;
    let most = match kind {
        PodKind::Job { .. } => 1,
        PodKind::Retry => 2 + harm.kills,
        PodKind::BootOnly | PodKind::BadImage(_) | PodKind::Hostile(_) => return Ok(()),
    };
    if *begins > most {
        return Err(format!("its command has begun {begins} times, and not {most} times at most"));
    }
    // A VM that cannot start on a Mac with a fault counts, too.
    let restarts = usize::try_from(state.restarts).unwrap_or_default();
    if restarts >= most && !harm.had_mac_fault {
        return Err(format!("it has had {restarts} restarts, with {} VMs killed", harm.kills));
    }
    Ok(())
}

fn judge_end(kind: PodKind, harm: Harm, testimony: &Testimony, end: &ContainerEnd) -> Result<(), String> {
    let ContainerEnd { code, reason } = end;
    if testimony.ends.contains(code) {
        return Ok(());
    }
    // A guest that the agent has stopped shuts down with 0.
    let is_stopped = harm.is_deleted && matches!(*code, 0 | TERMINATED);
    let is_broken = harm != Harm::default() && matches!(*code, KILLED | NOT_STARTED);
    match kind {
        PodKind::Hostile(_) | PodKind::BadImage(_) => Ok(()),
        _ if is_stopped || is_broken => Ok(()),
        // tart was killed, and says so by the code of its own process.
        PodKind::BootOnly | PodKind::Job { .. } | PodKind::Retry
            if harm.kills > 0 && *code != 0 && reason == "Error" =>
        {
            Ok(())
        }
        _ => Err(format!(
            "exit code {code} ({reason}) is invented: the command wrote {testimony:?}, and {harm:?}"
        )),
    }
}

/// Whether a Pod is where it will stay, or has to get to, on a Mac without faults; the error says what it lacks.
pub(crate) fn settled(kind: PodKind, harm: Harm, state: &PodState) -> Result<(), String> {
    let is_there = match kind {
        PodKind::Job { code } if harm.is_none() => {
            state.is_over() && state.end.as_ref().is_some_and(|end| end.code == code)
        }
        PodKind::Job { .. } => state.is_over(),
        PodKind::Retry => state.phase == "Succeeded",
        PodKind::BootOnly if harm.is_none() => state.phase == "Running" && state.restarts == 0,
        PodKind::BootOnly => state.is_over() || state.phase == "Running",
        PodKind::BadImage(_) => {
            matches!(state.waiting.as_deref(), Some("ErrImagePull" | "ImagePullBackOff"))
        }
        PodKind::Hostile(_) => true,
    };
    if is_there { Ok(()) } else { Err(format!("{kind:?} with {harm:?} is not there yet: {state:?}")) }
}

#[cfg(test)]
mod tests {
    use super::super::pod_kind::ImageFlaw;
    use super::*;

    fn ended(phase: &str, code: i32, reason: &str) -> PodState {
        let end = ContainerEnd { code, reason: reason.to_owned() };
        PodState { phase: phase.to_owned(), end: Some(end), ..PodState::default() }
    }

    fn wrote(ends: &[i32]) -> Testimony {
        Testimony { begins: ends.len(), ends: ends.to_vec() }
    }

    #[test]
    fn a_command_ends_with_the_code_that_it_wrote_down() {
        let (job, none) = (PodKind::Job { code: 7 }, Harm::default());
        assert!(judge(job, none, &wrote(&[7]), &ended("Failed", 7, "Error")).is_ok());
        assert!(judge(job, none, &wrote(&[]), &ended("Failed", 7, "Error")).is_err(), "invented");
        assert!(judge(job, none, &wrote(&[7]), &ended("Succeeded", 0, "Completed")).is_err(), "invented");
        assert!(judge(job, none, &wrote(&[7]), &ended("Failed", 137, "ContainerStatusUnknown")).is_err());
    }

    #[test]
    fn a_killed_command_has_no_success_that_it_did_not_write_down() {
        let (job, killed) = (PodKind::Job { code: 0 }, Harm { kills: 1, ..Harm::default() });
        let lost = ended("Failed", 137, "ContainerStatusUnknown");
        assert!(judge(job, killed, &wrote(&[]), &lost).is_ok());
        assert!(judge(job, killed, &wrote(&[]), &ended("Succeeded", 0, "Completed")).is_err());
        assert!(judge(job, killed, &wrote(&[0]), &ended("Succeeded", 0, "Completed")).is_ok());
    }

    #[test]
    fn every_further_start_has_a_reason() {
        let none = Harm::default();
        let running = |restarts| PodState { phase: "Running".to_owned(), restarts, ..PodState::default() };
        let twice = Testimony { begins: 2, ends: vec![7] };
        assert!(judge(PodKind::Job { code: 7 }, Harm { kills: 1, ..none }, &twice, &running(0)).is_err());
        assert!(judge(PodKind::Retry, none, &twice, &running(1)).is_ok());
        assert!(
            judge(PodKind::Retry, none, &twice, &running(2)).is_err(),
            "a VM was lost, and none was killed"
        );
        assert!(judge(PodKind::Retry, Harm { kills: 1, ..none }, &twice, &running(2)).is_ok());
        assert!(judge(PodKind::Retry, Harm { kills: 1, ..none }, &twice, &running(3)).is_err());
        assert!(judge(PodKind::Retry, Harm { had_mac_fault: true, ..none }, &twice, &running(9)).is_ok());
        let often = Testimony { begins: 4, ends: vec![7] };
        assert!(judge(PodKind::Retry, Harm { kills: 1, ..none }, &often, &running(1)).is_err());
    }

    #[test]
    fn a_stopped_vm_ends_with_zero_only_if_it_was_deleted() {
        let stopped = ended("Succeeded", 0, "Completed");
        let deleted = Harm { is_deleted: true, ..Harm::default() };
        assert!(judge(PodKind::BootOnly, deleted, &wrote(&[]), &stopped).is_ok());
        assert!(judge(PodKind::BootOnly, Harm::default(), &wrote(&[]), &stopped).is_err());
    }

    #[test]
    fn an_innocent_pod_is_neither_evicted_nor_refused() {
        let evicted = PodState {
            phase: "Failed".to_owned(),
            reason: Some("Evicted".to_owned()),
            ..PodState::default()
        };
        assert!(judge(PodKind::BootOnly, Harm::default(), &wrote(&[]), &evicted).is_err());
    }

    #[test]
    fn a_pod_never_runs_with_an_image_that_it_must_not_have() {
        let (none, nothing) = (Harm::default(), wrote(&[]));
        let state = |phase: &str, waiting: Option<&str>| PodState {
            phase: phase.to_owned(),
            waiting: waiting.map(str::to_owned),
            ..PodState::default()
        };
        for flaw in [ImageFlaw::Absent, ImageFlaw::AlteredDisk, ImageFlaw::WrongManifest] {
            let pod = PodKind::BadImage(flaw);
            let refused = state("Pending", Some("ErrImagePull"));
            assert!(judge(pod, none, &nothing, &refused).is_ok() && settled(pod, none, &refused).is_ok());
            assert!(judge(pod, none, &nothing, &state("Running", None)).is_err());
            assert!(judge(pod, none, &nothing, &ended("Succeeded", 0, "Completed")).is_err());
            assert!(settled(pod, none, &state("Pending", Some("ContainerCreating"))).is_err());
        }
    }

    #[test]
    fn a_job_has_settled_when_its_own_code_is_told() {
        let (job, none) = (PodKind::Job { code: 3 }, Harm::default());
        assert!(settled(job, none, &ended("Failed", 3, "Error")).is_ok());
        assert!(settled(job, none, &ended("Failed", 137, "Error")).is_err());
        let running = PodState { phase: "Running".to_owned(), ..PodState::default() };
        assert!(settled(PodKind::BootOnly, none, &running).is_ok());
        let killed = Harm { kills: 1, ..Harm::default() };
        assert!(settled(job, killed, &running).is_err());
    }
}
