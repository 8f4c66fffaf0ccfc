//! Failed requests to a registry, in tart's words.

use std::fmt;

use crate::error::Error;

/// A failure below HTTP, in Foundation's words. tart tries again only after these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UrlError {
    TimedOut,
    ConnectionLost,
    Offline,
    HostNotFound,
    Refused,
}

impl UrlError {
    /// The text for people.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::TimedOut => "The request timed out.",
            Self::ConnectionLost => "The network connection was lost.",
            Self::Offline => "The Internet connection appears to be offline.",
            Self::HostNotFound => "A server with the specified hostname could not be found.",
            Self::Refused => "Could not connect to the server.",
        }
    }

    fn code(self) -> i32 {
        match self {
            Self::TimedOut => -1001,
            Self::HostNotFound => -1003,
            Self::Refused => -1004,
            Self::ConnectionLost => -1005,
            Self::Offline => -1009,
        }
    }
}

/// Why a request to a registry failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No answer.
    Url(UrlError),
    /// An answer with a status that was not expected.
    Status {
        /// What was being done.
        when: &'static str,
        code: u16,
    },
    /// No token, and so no access.
    Auth { code: u16 },
    /// The folder that stands for the registry is not what it should be.
    Simulation(String),
    /// SIGINT arrived.
    Cancelled,
}

impl fmt::Display for Failure {
    /// The description that Swift gives of the value, as it shows up inside other messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(error) => {
                write!(f, "Error Domain=NSURLErrorDomain Code={} \"{}\"", error.code(), error.description())
            }
            Self::Status { when, code } => {
                write!(
                    f,
                    "UnexpectedHTTPStatusCode(when: \"{when}\", code: {code}, details: {:?})",
                    body(*code)
                )
            }
            Self::Auth { code } => write!(
                f,
                "AuthFailed(why: \"received unexpected HTTP status code {code} while retrieving an authentication \
                 token\", details: {:?})",
                body(*code)
            ),
            Self::Simulation(problem) => write!(f, "tart-sim: {problem}"),
            Self::Cancelled => write!(f, "CancellationError()"),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Url(error) => Self::other(error.description()),
            Failure::Cancelled => Self::cancelled(),
            other => Self::other(other),
        }
    }
}

/// The body that registries send along with a status.
fn body(status: u16) -> String {
    let (code, message) = match status {
        401 => ("UNAUTHORIZED", "authentication required"),
        403 => ("DENIED", "requested access to the resource is denied"),
        404 => ("MANIFEST_UNKNOWN", "manifest unknown"),
        429 => ("TOOMANYREQUESTS", "too many requests"),
        _ => ("UNKNOWN", "unknown error"),
    };
    format!("{{\"errors\":[{{\"code\":\"{code}\",\"message\":\"{message}\"}}]}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_read_as_the_real_ones_do() {
        for (failure, expected) in [
            (
                Failure::Status { when: "pulling manifest", code: 404 },
                r#"UnexpectedHTTPStatusCode(when: "pulling manifest", code: 404, details: "{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\",\"message\":\"manifest unknown\"}]}\n")"#,
            ),
            (
                Failure::Auth { code: 403 },
                r#"AuthFailed(why: "received unexpected HTTP status code 403 while retrieving an authentication token", details: "{\"errors\":[{\"code\":\"DENIED\",\"message\":\"requested access to the resource is denied\"}]}\n")"#,
            ),
            (Failure::Url(UrlError::TimedOut), "The request timed out."),
            (Failure::Cancelled, "CancellationError()"),
        ] {
            assert_eq!(Error::from(failure), Error::Other(expected.into()));
        }
    }
}
