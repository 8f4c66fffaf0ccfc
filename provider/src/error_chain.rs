//! An error with its causes, as one line.

use std::error::Error;

/// An error with all its causes, in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        // An error that only passes on its cause repeats its text.
        if !line.ends_with(&words) {
            line.push_str(": ");
            line.push_str(&words);
        }
        cause = error.source();
    }
    line.replace('\n', " ")
}
