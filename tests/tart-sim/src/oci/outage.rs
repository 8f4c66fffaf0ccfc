//! The fault `pull`: what goes wrong with requests to registries, and when.

use std::time::Duration;

use tart_sim::fault::{Fault, Outage, OutageKind, Stage};

use super::failure::{Failure, UrlError};
use super::name::RemoteName;
use crate::host::faults;
use crate::interrupt;

/// How often a stalled transfer looks whether the fault is gone.
const POLL: Duration = Duration::from_millis(20);

/// Does to this attempt (the first is 0) what the fault says at this moment.
pub(crate) fn apply(name: &RemoteName, stage: Stage, attempt: u32) -> Result<(), Failure> {
    let current = || {
        Outage::parse_lines(&faults::parameter(Fault::Pull)?)?.into_iter().find(|outage| {
            outage.stage == stage
                && outage.times.is_none_or(|times| attempt < times)
                && name.to_string().starts_with(&outage.only)
        })
    };
    let Some(outage) = current() else { return Ok(()) };
    let sleep = |duration| interrupt::sleep(duration).map_err(|_| Failure::Cancelled);
    sleep(outage.after)?;
    if let Some(failure) = failure(outage.kind, stage) {
        return Err(failure);
    }
    while current().is_some_and(|outage| outage.kind == OutageKind::Stall) {
        sleep(POLL)?;
    }
    Ok(())
}

/// The failure of a request; `None` if it stalls.
fn failure(kind: OutageKind, stage: Stage) -> Option<Failure> {
    let when = match stage {
        Stage::Manifest => "pulling manifest",
        Stage::Layers => "pulling blob",
    };
    Some(match kind {
        OutageKind::Stall => return None,
        OutageKind::Timeout => Failure::Url(UrlError::TimedOut),
        OutageKind::ConnectionLost => Failure::Url(UrlError::ConnectionLost),
        OutageKind::Offline => Failure::Url(UrlError::Offline),
        OutageKind::Dns => Failure::Url(UrlError::HostNotFound),
        OutageKind::Refused => Failure::Url(UrlError::Refused),
        OutageKind::Token(code) => Failure::Auth { code },
        OutageKind::Status(code) => Failure::Status { when, code },
    })
}
