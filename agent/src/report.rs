//! What an error says: to people, in one line, and to those who can do something about a full disk.

use std::error::Error;
use std::io;

/// An error with all its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some libraries repeat their cause in their own text.
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line.replace('\n', " ")
}

/// Whether a full disk is behind an error.
pub fn is_for_want_of_space(error: &(dyn Error + 'static)) -> bool {
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
    fn causes_follow_in_one_line() {
        assert_eq!(chain(&Outer(std::io::Error::other("in\nner"))), "outer: in ner");
    }

    #[test]
    fn a_full_disk_is_found_behind_other_words() {
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
