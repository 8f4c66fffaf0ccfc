//! A command in a guest, with its output as the answer.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use super::context::ApiContext;
use super::http::path::ContainerPath;
use super::http::response::{self, Body};
use super::running_container::{CommandLine, RunningContainer};
use crate::error_chain::chain;
use crate::guest::{Completed, Exec, Guest};
use crate::state::KILLED;

/// How long the command may run.
const LIMIT: Duration = Duration::from_hours(4);
/// How much of its output is answered.
const MAX_OUTPUT: usize = 1 << 20;

/// Answers a request that is authenticated and authorized.
pub(super) async fn handle(
    request: Request<Incoming>,
    target: &ContainerPath,
    context: &ApiContext,
) -> Response<Body> {
    let Some(command) = command(request.uri().query().unwrap_or_default()) else {
        return response::text(
            StatusCode::BAD_REQUEST,
            "you must specify a command in the query parameter \"cmd\"",
        );
    };
    let container = match RunningContainer::find(target, context).await {
        Ok(container) => container,
        Err(answer) => return answer,
    };
    let line = match container.line(&command, context).await {
        Ok(line) => line,
        Err(words) => return response::text(StatusCode::INTERNAL_SERVER_ERROR, words),
    };
    let mut guest = context.guests.to(&container.control_socket);
    let exec = Exec { argv: line.argv.clone(), ..Exec::default() };
    let mut running = RunningCommand { guest: guest.clone(), line: Some(line) };
    let Completed { end, output } = guest.run(exec, LIMIT, MAX_OUTPUT).await;
    let end = match end {
        Ok(code) => {
            running.line = None;
            Ok(code)
        }
        Err(error) => running.end().await.ok_or(error),
    };
    match end {
        Ok(0) => response::content(StatusCode::OK, "text/plain; charset=utf-8", output),
        Ok(code) => {
            // The kubelet's words.
            let code = if code < 0 { KILLED } else { code };
            let words = format!(
                "command '{}' exited with {code}: {}",
                command.join(" "),
                String::from_utf8_lossy(&output)
            );
            response::text(StatusCode::INTERNAL_SERVER_ERROR, words)
        }
        Err(error) => response::text(StatusCode::INTERNAL_SERVER_ERROR, chain(&error)),
    }
}

/// A command whose end was not seen yet. Dropped, it is killed: its client has hung up, or it has run or written for too long. It keeps its
/// name until then.
struct RunningCommand {
    guest: Guest,
    line: Option<CommandLine>,
}

impl RunningCommand {
    /// The exit code, which its shell still knows when the guest agent has closed the connection as it ended. A command that runs is killed.
    async fn end(&mut self) -> Option<i32> {
        let code = self.line.as_ref()?.end(&mut self.guest).await;
        self.line = None;
        code
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            let mut guest = self.guest.clone();
            tokio::spawn(async move { line.end(&mut guest).await });
        }
    }
}

/// The words of `cmd`, at its spaces, as the kubelet has it.
fn command(query: &str) -> Option<Vec<String>> {
    let (_, value) = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "cmd")?;
    let words: Vec<String> = value.split(' ').map(str::to_owned).collect();
    words.first().is_some_and(|program| !program.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_cut_at_its_spaces() {
        assert_eq!(command("x=1&cmd=ls+-l%20/tmp").unwrap(), ["ls", "-l", "/tmp"]);
        assert_eq!(command("cmd="), None);
        assert_eq!(command(""), None);
    }
}
