//! Takes a Mac through its steps, and reports each.

use super::Remote;
use super::change::Change;
use super::part::{Inputs, PartError};
use super::step::{Step, StepError};
use crate::error_chain::chain;

/// What is done with the differences.
#[derive(Debug, Clone)]
pub(crate) enum Mode {
    /// They are shown.
    Plan,
    /// They are removed.
    Apply(Inputs),
}

/// How a step went.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Nothing had to be done.
    Unchanged,
    /// The Mac differs.
    Planned(Vec<Change>),
    /// The Mac differed, and is now as it should be.
    Changed(Vec<Change>),
    /// It failed.
    Failed(StepError),
    /// A step before it failed, or would have to be taken first.
    Skipped,
}

/// How all steps went, in their order.
#[derive(Debug, Default)]
pub(crate) struct Report(pub(crate) Vec<Outcome>);

impl Report {
    /// How many steps have changed something, or would.
    pub(crate) fn changed(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Changed(_) | Outcome::Planned(_)))
    }

    /// How many steps have failed.
    pub(crate) fn failed(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    /// How many steps were skipped, because a step before them failed or has to be taken first.
    pub(crate) fn skipped(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Skipped))
    }

    /// Whether the Mac is as it should be: no step failed, and none was left out.
    pub(crate) fn is_converged(&self) -> bool {
        self.failed() + self.skipped() == 0
    }

    /// What went wrong first, with the name of its step.
    pub(crate) fn first_failure(&self, steps: &[Step]) -> Option<String> {
        let failures = steps.iter().zip(&self.0).filter_map(|(step, outcome)| match outcome {
            Outcome::Failed(error) => Some(format!("{}: {}", step.name, chain(error))),
            _ => None,
        });
        failures.into_iter().next()
    }

    /// Whether the Mac wants a password that is not known, or is wrong.
    pub(crate) fn lacks_password(&self) -> bool {
        let lacks = |error: &StepError| {
            matches!(error, StepError::Part(PartError::NoPassword { .. } | PartError::WrongPassword { .. }))
        };
        self.0.iter().any(|outcome| matches!(outcome, Outcome::Failed(error) if lacks(error)))
    }

    fn count(&self, is: impl Fn(&Outcome) -> bool) -> usize {
        self.0.iter().filter(|outcome| is(outcome)).count()
    }
}

/// Takes a Mac through all steps. A step that fails holds up only those that need it: a broken exporter of metrics keeps no agent from its
/// new binary. `on_step` is told of each step as it begins and ends.
pub(crate) async fn converge<R: Remote>(
    mac: &R,
    steps: &[Step],
    mode: &Mode,
    mut on_step: impl FnMut(&'static str, Option<&Outcome>),
) -> Report {
    let mut report = Report::default();
    let mut is_over = false;
    for step in steps {
        on_step(step.name, None);
        let outcome = match mode {
            _ if is_over => Outcome::Skipped,
            Mode::Plan => match step.check(mac).await {
                Ok(changes) if changes.is_empty() => Outcome::Unchanged,
                Ok(changes) => Outcome::Planned(changes),
                Err(error) => Outcome::Failed(error),
            },
            Mode::Apply(inputs) => match step.apply(mac, inputs).await {
                Ok(changes) if changes.is_empty() => Outcome::Unchanged,
                Ok(changes) => Outcome::Changed(changes),
                Err(error) => Outcome::Failed(error),
            },
        };
        match (&outcome, mode) {
            // Without sudo nothing more can be looked at.
            (Outcome::Planned(_), Mode::Plan) => is_over |= step.is_first,
            (Outcome::Failed(_), _) => is_over |= step.is_required || mac.is_lost(),
            _ => (),
        }
        on_step(step.name, Some(&outcome));
        report.0.push(outcome);
    }
    report
}
