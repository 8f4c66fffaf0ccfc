//! Errors as one line for people.

use std::error::Error;

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
}
