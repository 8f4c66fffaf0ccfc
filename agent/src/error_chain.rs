//! An error with its causes: as one line, and as a full disk.

use std::error::Error;
use std::io;

use kube::core::Status;

/// An error with all its causes, in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut line = words(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let (text, words) = (error.to_string(), words(error));
        // Some libraries repeat the text of their cause.
        if line.contains(&text) {
            line = line.replace(&text, &words);
        } else if !line.contains(&words) {
            line.push_str(": ");
            line.push_str(&words);
        }
        cause = error.source();
    }
    line.replace('\n', " ")
}

/// The text of one error. kube shows an answer of the API server with all fields; users need its message. It calls a server that it does not
/// reach a `ServiceError`.
fn words(error: &(dyn Error + 'static)) -> String {
    let answer = match error.downcast_ref() {
        Some(kube::Error::Api(answer)) => Some(answer),
        Some(kube::Error::Service(_)) => return "the API server cannot be reached".to_owned(),
        _ => error.downcast_ref::<Box<Status>>(),
    };
    answer.map_or_else(|| error.to_string(), |answer| answer.message.clone())
}

/// Whether a full disk caused an error.
pub(crate) fn is_for_want_of_space(error: &(dyn Error + 'static)) -> bool {
    let is_full = |error: &(dyn Error + 'static)| {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    };
    std::iter::successors(Some(error), |&error| error.source()).any(is_full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn an_error_and_its_causes_are_one_line() {
        assert_eq!(chain(&Outer(std::io::Error::other("in\nner"))), "outer: in ner");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("refused: {0}")]
    struct Repeats(#[source] kube::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("refused")]
    struct Refused(#[source] kube::Error);

    #[test]
    fn an_answer_of_the_api_server_is_shown_by_its_message() {
        let answer = || {
            let message = "secrets \"pull\" not found";
            kube::Error::Api(Box::new(Status::failure(message, "NotFound").with_code(404)))
        };
        assert_eq!(chain(&answer()), "secrets \"pull\" not found");
        assert_eq!(chain(&Refused(answer())), "refused: secrets \"pull\" not found");
        assert_eq!(chain(&Repeats(answer())), "refused: secrets \"pull\" not found");
    }

    #[test]
    fn an_api_server_that_is_not_reached_is_told_without_the_words_of_a_library() {
        let cause = io::Error::other("Connection refused");
        let error = kube::Error::Service(Box::new(cause));
        assert_eq!(chain(&error), "the API server cannot be reached: Connection refused");
        assert_eq!(chain(&Refused(error)), "refused: the API server cannot be reached: Connection refused");
        let error = kube::Error::Service(Box::new(io::Error::other("Connection refused")));
        assert_eq!(chain(&Repeats(error)), "refused: the API server cannot be reached: Connection refused");
    }

    #[test]
    fn a_full_disk_is_found_among_the_causes() {
        for (kind, is_full) in [
            (io::ErrorKind::StorageFull, true),
            (io::ErrorKind::QuotaExceeded, true),
            (io::ErrorKind::PermissionDenied, false),
        ] {
            assert_eq!(is_for_want_of_space(&Outer(kind.into())), is_full, "{kind}");
            assert_eq!(is_for_want_of_space(&io::Error::from(kind)), is_full, "{kind}");
        }
    }
}
