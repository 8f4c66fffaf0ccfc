//! What the demo says.

use std::io::Write as _;

/// A line about what is done.
pub(crate) fn say(line: &str) {
    print(&format!("\x1b[1m==> {line}\x1b[0m\n"));
}

/// Writes at once: a reader of a pipe wants to see each line when it comes.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
