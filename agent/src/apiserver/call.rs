//! One call to the API server, with a deadline and one error.

use std::time::Duration;

use kube::core::Status;
use tokio::time::timeout;

use crate::error_chain::chain;

/// The deadline of a call on which nothing urgent waits.
pub(crate) const DEADLINE: Duration = Duration::from_secs(15);

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("the API server gave no answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the API server refused")]
    Refused(#[source] Box<Status>),
    /// There was no answer, or none that can be read.
    #[error("cannot talk to the API server")]
    Broken(#[source] Box<kube::Error>),
}

/// Makes a call, or several that share the deadline.
pub(crate) async fn call<T>(
    deadline: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    timeout(deadline, request).await.map_err(|_| CallError::Late(deadline))?.map_err(CallError::from)
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            error => Self::Broken(Box::new(error)),
        }
    }
}

impl CallError {
    /// The status code of the API server's answer.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(status) => Some(status.code),
            Self::Late(_) | Self::Broken(_) => None,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    pub(crate) fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    pub(crate) fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// What went wrong, in words that show nothing of an object's content.
    pub(crate) fn without_content(&self) -> String {
        match self {
            Self::Late(_) => self.to_string(),
            Self::Refused(status) => status.message.clone(),
            // A parser quotes what it cannot read.
            Self::Broken(error)
                if matches!(**error, kube::Error::SerdeError(_) | kube::Error::FromUtf8(_)) =>
            {
                "the API server's answer makes no sense".to_owned()
            }
            Self::Broken(error) => chain(&**error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_ends_at_its_deadline() {
        let never = std::future::pending::<Result<(), kube::Error>>();
        let error = call(Duration::ZERO, never).await.unwrap_err();
        assert_eq!(chain(&error), "the API server gave no answer within 0 s");
        assert_eq!(error.code(), None);
    }

    #[tokio::test]
    async fn an_error_of_the_api_server_keeps_its_code_and_message() {
        let status = Status::failure("pods \"a\" not found", "NotFound").with_code(404);
        let answer = async { Err::<(), _>(kube::Error::Api(Box::new(status))) };
        let error = call(DEADLINE, answer).await.unwrap_err();
        assert!(error.is_not_found() && !error.is_conflict() && !error.is_forbidden());
        assert_eq!(chain(&error), "the API server refused: pods \"a\" not found");
        assert_eq!(error.without_content(), "pods \"a\" not found");
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_not_quoted() {
        let secret = serde_json::from_str::<u8>("\"hunter2\"").unwrap_err();
        let error = CallError::from(kube::Error::SerdeError(secret));
        assert_eq!(error.without_content(), "the API server's answer makes no sense");
    }
}
