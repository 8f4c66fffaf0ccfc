//! The shim's request for a container's command, and the agent's response.

use super::VmRun;
use crate::fs::file::{self, FileError};
use crate::state::container_spec::GuestCommand;
use crate::state::disk_reserve;
use crate::state::records::{CommandRequest, CommandResponse};

impl VmRun {
    pub(crate) fn request_command(&self, request: &CommandRequest) -> Result<(), FileError> {
        let path = self.path.join("command-request.json");
        disk_reserve::repeatedly(&path, || file::write(&path, request))
    }

    /// The request that the agent has not answered yet.
    pub(crate) fn command_request(&self) -> Result<Option<CommandRequest>, FileError> {
        let Some(request) = self.read::<CommandRequest>("command-request.json")? else { return Ok(None) };
        let response: Option<CommandResponse> = self.read("command-response.json")?;
        Ok(Some(request).filter(|request| response.is_none_or(|response| response.request != *request)))
    }

    pub(crate) fn write_command_response(&self, response: &CommandResponse) -> Result<(), FileError> {
        file::write(&self.path.join("command-response.json"), response)
    }

    /// Reads the agent's response, once it is there, and removes the file: the command may be secret.
    pub(crate) fn take_command_response(
        &self,
        request: &CommandRequest,
    ) -> Result<Option<GuestCommand>, FileError> {
        let response: Option<CommandResponse> = self.read("command-response.json")?;
        let Some(response) = response.filter(|response| response.request == *request) else {
            return Ok(None);
        };
        // In this order: the agent would answer a request without a response again.
        file::remove(&self.path.join("command-request.json"))?;
        self.remove_command_response()?;
        Ok(Some(response.command))
    }

    /// Removes the response, also one that the agent has not finished writing.
    pub(super) fn remove_command_response(&self) -> Result<(), FileError> {
        let path = self.path.join("command-response.json");
        file::remove_half_written(&path)?;
        file::remove(&path)
    }
}
