//! The result of one probe, and the kubelet's words for it.

use super::http::{HttpError, Purpose};
use super::spec::{Action, ProbeKind, ProbeSpec};
use super::{Target, exec, grpc, tcp};
use crate::apiserver::events::EventReason;

/// How often a probe is tried that cannot be made.
const TRIES: usize = 3;

/// The result of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProbeResult {
    Passed,
    /// With a warning for the user.
    PassedWith(String),
    /// Why it failed.
    Failed(String),
    /// The probe could not be made. It does not count.
    Errored(String),
}

impl ProbeResult {
    /// The result that counts.
    pub(super) fn passed(&self) -> Option<bool> {
        match self {
            Self::Passed | Self::PassedWith(_) => Some(true),
            Self::Failed(_) => Some(false),
            Self::Errored(_) => None,
        }
    }

    /// The kubelet's word for it, for metrics.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Passed | Self::PassedWith(_) => "successful",
            Self::Failed(_) => "failed",
            Self::Errored(_) => "unknown",
        }
    }

    /// Reason and note of the Event that tells of it.
    pub(super) fn event(&self, kind: ProbeKind) -> Option<(EventReason, String)> {
        match self {
            Self::Passed => None,
            Self::PassedWith(what) => {
                Some((EventReason::ProbeWarning, format!("{kind} probe warning: {what}")))
            }
            Self::Failed(why) => Some((EventReason::Unhealthy, format!("{kind} probe failed: {why}"))),
            Self::Errored(why) => {
                let note = format!("{kind} probe errored and resulted in unknown state: {why}");
                Some((EventReason::Unhealthy, note))
            }
        }
    }
}

/// Makes one probe. It takes no longer than its timeout, or three times that when it is broken.
pub(super) async fn find(spec: &ProbeSpec, target: &Target) -> ProbeResult {
    let action = match &spec.action {
        Ok(action) => action,
        Err(bad) => return ProbeResult::Errored(bad.to_string()),
    };
    let mut finding = once(action, spec, target).await;
    for _ in 1..TRIES {
        if finding.passed().is_none() {
            finding = once(action, spec, target).await;
        }
    }
    finding
}

async fn once(action: &Action, spec: &ProbeSpec, target: &Target) -> ProbeResult {
    let (limit, reach) = (spec.timeout, target.reach);
    let pod = reach.guest.to_string();
    match action {
        Action::Exec(command) => exec::probe(target, command, limit).await,
        Action::HttpGet(get) => http(get.send(reach, Purpose::Probe, limit).await),
        Action::TcpSocket { host, port } => {
            tcp::probe(host.as_deref().unwrap_or(&pod), *port, reach, limit).await
        }
        Action::Grpc { port, service } => grpc::probe(&pod, *port, service, limit).await,
    }
}

fn http(answer: Result<super::http::HttpAnswer, HttpError>) -> ProbeResult {
    match answer {
        Ok(answer) if answer.status.is_success() => ProbeResult::Passed,
        Ok(answer) if answer.status.is_redirection() => {
            ProbeResult::PassedWith(format!("Probe terminated redirects, Response body: {}", answer.body))
        }
        Ok(answer) => {
            ProbeResult::Failed(format!("HTTP probe failed with statuscode: {}", answer.status.as_u16()))
        }
        Err(error @ (HttpError::NoAnswer { .. } | HttpError::NotTls { .. })) => {
            ProbeResult::Failed(error.to_string())
        }
        Err(error @ HttpError::BrokenBody { .. }) => ProbeResult::Errored(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::http::HttpAnswer;
    use http::StatusCode;

    #[test]
    fn events_use_the_kubelets_words() {
        let table = [
            (ProbeResult::Passed, None),
            (ProbeResult::Failed("no".into()), Some("Unhealthy: Liveness probe failed: no")),
            (ProbeResult::PassedWith("hm".into()), Some("ProbeWarning: Liveness probe warning: hm")),
            (
                ProbeResult::Errored("port a not found".into()),
                Some("Unhealthy: Liveness probe errored and resulted in unknown state: port a not found"),
            ),
        ];
        for (result, expected) in table {
            let event = result.event(ProbeKind::Liveness).map(|(reason, note)| format!("{reason}: {note}"));
            assert_eq!(event.as_deref(), expected);
        }
    }

    #[test]
    fn statuses_from_200_to_399_are_good() {
        let found = |status: u16| {
            http(Ok(HttpAnswer { status: StatusCode::from_u16(status).unwrap(), body: "b".into() }))
        };
        assert_eq!((found(200), found(299)), (ProbeResult::Passed, ProbeResult::Passed));
        let warned = ProbeResult::PassedWith("Probe terminated redirects, Response body: b".into());
        assert_eq!((found(302), found(399)), (warned.clone(), warned));
        assert_eq!(found(500), ProbeResult::Failed("HTTP probe failed with statuscode: 500".into()));
        assert_eq!((found(400).passed(), found(199).passed()), (Some(false), Some(false)));
    }
}
