//! Whose turn it is to be rolled: one machine of a fleet first, then waves that double, and none after a failure.

use crate::names::MachineRef;

/// Whether it is a machine's turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is.
    Now,
    /// Others are first.
    Later(String),
    /// No machine is rolled until a person has looked.
    Halted(String),
}

/// A machine of the fleet, and how far it is with the configuration that it should have now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rolled {
    pub(crate) machine: MachineRef,
    pub(crate) state: RollState,
}

/// How far a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RollState {
    /// It has another configuration.
    Outdated,
    /// It is being rolled at this moment.
    Rolling,
    /// It has the configuration.
    Done,
    /// It has the configuration, and its Node is not ready.
    DoneAndNotReady,
    /// It could not be given the configuration.
    Failed,
}

/// Whether it is a machine's turn, in a fleet of which it is one.
pub(crate) fn turn(this: &MachineRef, fleet: &[Rolled], max_at_once: usize) -> Turn {
    let of = |state: RollState| fleet.iter().filter(move |one| one.state == state && one.machine != *this);
    let bad: Vec<_> = of(RollState::Failed).chain(of(RollState::DoneAndNotReady)).collect();
    if let Some(first) = bad.first() {
        let (count, done) = (bad.len(), of(RollState::Done).count());
        return Turn::Halted(format!(
            "the roll is halted: {count} of the fleet failed ({} first), {done} succeeded; a new configuration resumes it, or the annotation \
             tuist.dev/retry-roll on the machine that failed",
            first.machine
        ));
    }
    let (rolling, done) = (of(RollState::Rolling).count(), of(RollState::Done).count());
    // The first is alone. Each wave may have as many as have succeeded before.
    let wave = done.clamp(1, max_at_once.max(1));
    if rolling < wave {
        return Turn::Now;
    }
    Turn::Later(if done == 0 {
        "the first machine of the fleet is being rolled; the others follow when it has succeeded".to_owned()
    } else {
        format!("{rolling} machines of the fleet are being rolled; {done} are done")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fleet(states: &[RollState]) -> Vec<Rolled> {
        let machine = |at: usize| MachineRef { namespace: "n".to_owned(), name: format!("m{at}") };
        states.iter().enumerate().map(|(at, state)| Rolled { machine: machine(at), state: *state }).collect()
    }

    fn turn_of(at: usize, states: &[RollState]) -> Turn {
        let fleet = fleet(states);
        turn(&fleet[at].machine, &fleet, 4)
    }

    #[test]
    fn one_machine_is_first_and_waves_double() {
        use RollState::{Done, Outdated, Rolling};
        assert_eq!(turn_of(0, &[Outdated, Outdated]), Turn::Now);
        assert!(matches!(turn_of(0, &[Outdated, Rolling]), Turn::Later(_)));
        assert_eq!(turn_of(0, &[Outdated, Done, Outdated]), Turn::Now);
        assert!(matches!(turn_of(0, &[Outdated, Done, Rolling]), Turn::Later(_)));
        assert_eq!(turn_of(0, &[Outdated, Done, Done, Rolling]), Turn::Now);
        assert!(matches!(
            turn_of(0, &[Outdated, Rolling, Rolling, Rolling, Rolling, Done, Done, Done, Done, Done]),
            Turn::Later(_)
        ));
    }

    #[test]
    fn a_failure_halts_all_but_the_machine_that_failed() {
        use RollState::{Done, DoneAndNotReady, Failed, Outdated};
        for bad in [Failed, DoneAndNotReady] {
            let Turn::Halted(words) = turn_of(0, &[Outdated, bad, Done]) else { panic!("not halted") };
            assert!(words.contains("n/m1") && words.contains("tuist.dev/retry-roll"), "{words}");
        }
        assert_eq!(turn_of(1, &[Outdated, Failed]), Turn::Now);
    }

    fn any_state() -> impl Strategy<Value = RollState> {
        use RollState::{Done, DoneAndNotReady, Failed, Outdated, Rolling};
        prop::sample::select(vec![Outdated, Rolling, Done, DoneAndNotReady, Failed])
    }

    proptest! {
        #[test]
        fn no_more_are_rolled_at_once_than_have_succeeded_or_are_allowed(
            states in prop::collection::vec(any_state(), 1..20), max in 1usize..6,
        ) {
            let fleet = fleet(&states);
            let count = |state| states.iter().skip(1).filter(|one| **one == state).count();
            if turn(&fleet[0].machine, &fleet, max) == Turn::Now {
                prop_assert!(count(RollState::Rolling) < max.min(count(RollState::Done).max(1)));
                prop_assert_eq!(count(RollState::Failed) + count(RollState::DoneAndNotReady), 0);
            }
        }

        #[test]
        fn a_fleet_without_failures_is_never_stuck(states in prop::collection::vec(any_state(), 1..20)) {
            let mut fleet = fleet(&states);
            fleet.retain(|one| matches!(one.state, RollState::Outdated | RollState::Done));
            for one in fleet.iter().filter(|one| one.state == RollState::Outdated) {
                prop_assert_eq!(turn(&one.machine, &fleet, 4), Turn::Now);
            }
        }
    }
}
