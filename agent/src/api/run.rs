//! A command in a guest, with its output as the answer.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use super::context::Context;
use super::path::ContainerPath;
use super::response::{self, Body};
use super::running_container::RunningContainer;
use crate::error_chain::chain;
use crate::guest::{Completed, Exec};
use crate::state::KILLED;

/// How long the command may run. The guest kills it, too, when the client hangs up.
const LIMIT: Duration = Duration::from_hours(4);
/// How much of its output is answered.
const MAX_OUTPUT: usize = 1 << 20;

/// Answers a request that is authenticated and authorized.
pub(super) async fn handle(
    request: Request<Incoming>,
    target: &ContainerPath,
    context: &Context,
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
    let Completed { end, output } = guest.run(exec, LIMIT, MAX_OUTPUT).await;
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
