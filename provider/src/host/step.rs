//! One step of taking a Mac to what it should be like: check, apply, check.

use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;

use super::Remote;
use super::change::Change;
use super::part::{Inputs, Part, PartError};

/// How long a look at all parts of a step may take.
const CHECK_DEADLINE: Duration = Duration::from_mins(5);

/// One step.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Step {
    /// What people call it.
    pub(crate) name: &'static str,
    /// What it consists of, in order.
    pub(super) parts: Vec<Part>,
    /// Whether later steps make no sense without it.
    pub(super) is_required: bool,
    /// Whether nothing can be looked at without it.
    pub(super) is_first: bool,
    /// How long it may take to change the Mac.
    #[serde(skip)]
    pub(super) deadline: Duration,
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// One of its parts failed.
    #[error(transparent)]
    Part(#[from] PartError),
    /// It took too long.
    #[error("it took longer than {} s", .0.as_secs())]
    DeadlineExceeded(Duration),
    /// The Mac is not as it should be although every command worked.
    #[error("it was applied, but the Mac is not as it should be: {0}")]
    NotConverged(String),
}

impl Step {
    /// The job that it rolls.
    #[cfg(test)]
    pub(super) fn job(&self) -> Option<&launchd::Job> {
        self.parts.iter().find_map(|part| match part {
            Part::Job(part) => Some(&part.job),
            _ => None,
        })
    }

    /// How the Mac differs from this step.
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, StepError> {
        let look = async {
            let mut changes = Vec::new();
            for part in &self.parts {
                changes.extend(part.check(mac).await?);
            }
            Ok(changes)
        };
        timeout(CHECK_DEADLINE, look).await.map_err(|_| StepError::DeadlineExceeded(CHECK_DEADLINE))?
    }

    /// Makes the Mac like this step, part by part, and returns what was changed.
    pub(super) async fn apply<R: Remote>(&self, mac: &R, inputs: &Inputs) -> Result<Vec<Change>, StepError> {
        let work = async {
            let mut made = Vec::new();
            for part in &self.parts {
                let changes = part.check(mac).await?;
                if changes.is_empty() {
                    continue;
                }
                part.apply(mac, inputs).await?;
                let left: Vec<String> = part.check(mac).await?.iter().map(ToString::to_string).collect();
                if !left.is_empty() {
                    return Err(StepError::NotConverged(left.join("; ")));
                }
                made.extend(changes);
            }
            Ok(made)
        };
        timeout(self.deadline, work).await.map_err(|_| StepError::DeadlineExceeded(self.deadline))?
    }
}
