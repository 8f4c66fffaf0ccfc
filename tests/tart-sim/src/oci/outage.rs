//! The fault `pull`: what goes wrong with requests to registries, and when.
//!
//! One line per outage: `KIND [at=manifest|layers] [times=N] [after=DURATION] [only=PREFIX]`.

use std::time::Duration;

use super::failure::{Failure, UrlError};
use super::name::RemoteName;
use crate::{faults, interrupt};

/// How often a stalled transfer looks whether it may go on.
const POLL: Duration = Duration::from_millis(20);

/// The part of a pull that an outage hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Manifest,
    Layers,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Fail(Failure),
    /// Nothing more arrives until the fault is switched off.
    Stall,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Outage {
    kind: Kind,
    stage: Stage,
    /// Only the first attempts of each command are hit.
    times: Option<u32>,
    after: Duration,
    only: String,
}

/// Does to this attempt (the first is 0) what the fault file says at this moment.
pub(crate) fn strike(name: &RemoteName, stage: Stage, attempt: u32) -> Result<(), Failure> {
    let current = || {
        faults::parameter("pull")?.lines().filter_map(parse).find(|outage| {
            outage.stage == stage
                && outage.times.is_none_or(|times| attempt < times)
                && name.to_string().starts_with(&outage.only)
        })
    };
    let Some(outage) = current() else { return Ok(()) };
    let sleep = |duration| interrupt::sleep(duration).map_err(|_| Failure::Cancelled);
    sleep(outage.after)?;
    match outage.kind {
        Kind::Fail(failure) => Err(failure),
        Kind::Stall => {
            while current().is_some_and(|outage| outage.kind == Kind::Stall) {
                sleep(POLL)?;
            }
            Ok(())
        }
    }
}

fn parse(line: &str) -> Option<Outage> {
    let mut words = line.split_whitespace();
    let word = words.next()?;
    let mut stage = Stage::Manifest;
    let (mut times, mut after, mut only) = (None, Duration::ZERO, String::new());
    for option in words {
        match option.split_once('=')? {
            ("at", "layers") => stage = Stage::Layers,
            ("at", "manifest") => stage = Stage::Manifest,
            ("times", count) => times = Some(count.parse().ok()?),
            ("after", duration) => after = faults::parse_duration(duration)?,
            ("only", prefix) => only = prefix.into(),
            _ => return None,
        }
    }
    let when = match stage {
        Stage::Manifest => "pulling manifest",
        Stage::Layers => "pulling blob",
    };
    let kind = match word {
        "stall" => Kind::Stall,
        "timeout" => Kind::Fail(Failure::Url(UrlError::TimedOut)),
        "connection-lost" => Kind::Fail(Failure::Url(UrlError::ConnectionLost)),
        "offline" => Kind::Fail(Failure::Url(UrlError::Offline)),
        "dns" => Kind::Fail(Failure::Url(UrlError::HostNotFound)),
        "refused" => Kind::Fail(Failure::Url(UrlError::Refused)),
        "403" => Kind::Fail(Failure::Auth { code: 403 }),
        "401-token" => Kind::Fail(Failure::Auth { code: 401 }),
        code => Kind::Fail(Failure::Status { when, code: code.parse().ok()? }),
    };
    Some(Outage { kind, stage, times, after, only })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_when_and_for_whom() {
        let expected = Outage {
            kind: Kind::Fail(Failure::Url(UrlError::ConnectionLost)),
            stage: Stage::Layers,
            times: Some(2),
            after: Duration::from_millis(10),
            only: "registry.example/team".into(),
        };
        assert_eq!(
            parse("connection-lost at=layers times=2 after=10ms only=registry.example/team"),
            Some(expected)
        );
        let status = Kind::Fail(Failure::Status { when: "pulling manifest", code: 503 });
        assert_eq!(parse("503").unwrap().kind, status);
        for nonsense in ["", "sideways", "404 at=night", "404 loudly"] {
            assert_eq!(parse(nonsense), None, "{nonsense:?}");
        }
    }
}
