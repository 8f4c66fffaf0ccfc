//! What a shim asks the agent for when a container's turn comes, and what it gets.

use super::VmRun;
use crate::fs::file::{self, FileError};
use crate::state::container_spec::GuestCommand;
use crate::state::disk_reserve;
use crate::state::records::{Delivery, Due};

impl VmRun {
    /// Asks the agent for the command of a container whose turn has come.
    pub(crate) fn ask_for_command(&self, due: &Due) -> Result<(), FileError> {
        let path = self.path.join("due.json");
        disk_reserve::repeatedly(&path, || file::write(&path, due))
    }

    /// The container whose command the agent is asked for, and has not delivered yet.
    pub(crate) fn due(&self) -> Result<Option<Due>, FileError> {
        let Some(due) = self.read::<Due>("due.json")? else { return Ok(None) };
        let delivered: Option<Delivery> = self.read("delivery.json")?;
        Ok(Some(due).filter(|due| delivered.is_none_or(|delivery| delivery.due != *due)))
    }

    /// Hands a container's command over.
    pub(crate) fn deliver(&self, delivery: &Delivery) -> Result<(), FileError> {
        file::write(&self.path.join("delivery.json"), delivery)
    }

    /// Takes what was asked for, once it is there. What may be secret in it does not stay.
    pub(crate) fn take_delivery(&self, due: &Due) -> Result<Option<GuestCommand>, FileError> {
        let delivery: Option<Delivery> = self.read("delivery.json")?;
        let Some(delivery) = delivery.filter(|delivery| delivery.due == *due) else { return Ok(None) };
        // In this order: an agent that finds a question without an answer would give one.
        file::remove(&self.path.join("due.json"))?;
        self.remove_delivery()?;
        Ok(Some(delivery.command))
    }

    /// Forgets what was delivered, also what was never finished.
    pub(super) fn remove_delivery(&self) -> Result<(), FileError> {
        let path = self.path.join("delivery.json");
        file::remove_half_written(&path)?;
        file::remove(&path)
    }
}
