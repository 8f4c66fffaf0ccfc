//! Scaleway's errors: by their `type` and by their HTTP status, since either may be missing.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("Scaleway cannot {call}: {reason}")]
pub(crate) struct ScalewayError {
    /// What was asked for.
    pub(super) call: String,
    /// Why it failed.
    pub(super) reason: Reason,
}

impl ScalewayError {
    /// Whether there is no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self.reason, Reason::NotFound)
    }

    /// Whether Scaleway says no, and will say it again.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.reason, Reason::Refused { .. })
    }

    /// What the server is doing, if that is why it cannot do what it was asked for.
    pub(crate) fn transient_state(&self) -> Option<&str> {
        match &self.reason {
            Reason::TransientState(state) => Some(state),
            _ => None,
        }
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    /// There is no such server, image or key.
    NotFound,
    /// The server is doing this, and cannot be changed meanwhile.
    TransientState(String),
    /// Too many calls. Scaleway may say how long to wait.
    Throttled(Option<Duration>),
    /// Scaleway's own fault.
    Unavailable(StatusCode),
    /// No answer within the time limit.
    Timeout,
    /// No connection, or one that ended without an answer.
    Unreachable(String),
    /// Scaleway says no.
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// Scaleway's word for it (`type`); empty if there is none.
        kind: String,
        /// Scaleway's explanation.
        message: String,
    },
    /// An answer that is not what this call has.
    BadAnswer(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("it does not exist"),
            Self::TransientState(state) => write!(f, "the server is {state}"),
            Self::Throttled(_) => f.write_str("too many calls"),
            Self::Unavailable(status) => write!(f, "it fails itself ({status})"),
            Self::Timeout => f.write_str("it does not answer in time"),
            Self::Unreachable(why) => write!(f, "it cannot be reached: {why}"),
            Self::Refused { status, kind, message } => {
                write!(f, "{message} ({status}")?;
                if kind.is_empty() { f.write_str(")") } else { write!(f, ", {kind})") }
            }
            Self::BadAnswer(why) => write!(f, "its answer is not understood: {why}"),
        }
    }
}

/// The body of an error.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    #[serde(rename = "type")]
    kind: String,
    message: String,
    help_message: String,
    current_state: String,
    details: Vec<Detail>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Detail {
    argument_name: String,
    resource: String,
    action: String,
    help_message: String,
}

/// The longest explanation that is passed on.
const LONGEST: usize = 300;

impl Reason {
    /// Reads an answer that is no success.
    pub(super) fn of_answer(status: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let body: Body = serde_json::from_slice(body).unwrap_or_default();
        match (body.kind.as_str(), status) {
            ("transient_state", _) => Self::TransientState(match body.current_state.as_str() {
                "" => "busy".to_owned(),
                state => state.to_owned(),
            }),
            ("not_found", _) | ("", StatusCode::NOT_FOUND) => Self::NotFound,
            (_, StatusCode::TOO_MANY_REQUESTS) => Self::Throttled(retry_after),
            (_, status) if status.is_server_error() => Self::Unavailable(status),
            _ => Self::Refused { status, message: body.explanation(), kind: body.kind },
        }
    }
}

impl Body {
    fn explanation(&self) -> String {
        let details = self.details.iter().flat_map(|detail| {
            [&detail.argument_name, &detail.resource, &detail.action, &detail.help_message]
        });
        let words = [&self.message, &self.help_message].into_iter().chain(details);
        let words: Vec<&str> = words.map(String::as_str).filter(|word| !word.is_empty()).collect();
        let text = if words.is_empty() { "no explanation".to_owned() } else { words.join(", ") };
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(status: u16, body: &str) -> Reason {
        Reason::of_answer(StatusCode::from_u16(status).unwrap(), None, body.as_bytes())
    }

    fn refused(status: u16, kind: &str, message: &str) -> Reason {
        let status = StatusCode::from_u16(status).unwrap();
        Reason::Refused { status, kind: kind.to_owned(), message: message.to_owned() }
    }

    #[test]
    fn errors_are_known_by_type_and_by_status() {
        let transient = r#"{"type":"transient_state","current_state":"rebooting","resource":"server"}"#;
        for (status, body, expected) in [
            (404, r#"{"type":"not_found","resource":"server"}"#, Reason::NotFound),
            (404, "<html>", Reason::NotFound),
            (400, r#"{"type":"not_found"}"#, Reason::NotFound),
            (409, transient, Reason::TransientState("rebooting".to_owned())),
            (400, transient, Reason::TransientState("rebooting".to_owned())),
            (409, r#"{"type":"transient_state"}"#, Reason::TransientState("busy".to_owned())),
            (429, r#"{"type":"too_many_requests"}"#, Reason::Throttled(None)),
            (502, "<html>", Reason::Unavailable(StatusCode::BAD_GATEWAY)),
            (500, r#"{"type":"internal_error"}"#, Reason::Unavailable(StatusCode::INTERNAL_SERVER_ERROR)),
            (
                412,
                r#"{"type":"precondition_failed","message":"no","help_message":"24 hours"}"#,
                refused(412, "precondition_failed", "no, 24 hours"),
            ),
            (412, "", refused(412, "", "no explanation")),
            (
                403,
                r#"{"type":"permissions_denied","message":"insufficient permissions","details":[{"resource":"ssh_key","action":"write"}]}"#,
                refused(403, "permissions_denied", "insufficient permissions, ssh_key, write"),
            ),
            (404, r#"{"type":"unknown_resource"}"#, refused(404, "unknown_resource", "no explanation")),
        ] {
            assert_eq!(reason(status, body), expected, "{status} {body}");
        }
    }

    #[test]
    fn an_explanation_is_one_short_line() {
        let body = serde_json::json!({"type": "locked", "message": format!("a\n{}", "b".repeat(1000))});
        let Reason::Refused { message, .. } = reason(423, &body.to_string()) else { panic!("not refused") };
        assert_eq!(message.chars().count(), LONGEST);
        assert!(!message.contains('\n'));
    }
}
