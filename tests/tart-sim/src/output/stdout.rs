//! What a command prints on stdout.

use std::env;
use std::io::{self, Write as _};

/// Prints a line. Ignores that the reader is gone.
pub(crate) fn line(text: impl AsRef<str>) {
    write(&format!("{}\n", text.as_ref()));
}

/// Prints text as it is.
pub(crate) fn write(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Progress in percent: one line that is written over, or plain lines when the environment has `CI`.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    shown: Option<u64>,
}

impl Progress {
    /// Shows the percentage unless it is the one on the screen.
    pub(crate) fn show(&mut self, percent: u64) {
        if self.shown == Some(percent) {
            return;
        }
        if self.shown.is_some() && env::var_os("CI").is_none() {
            // Up one line, to its beginning, erase it.
            write("\u{1b}[1A\r\u{1b}[2K");
        }
        line(format!("{percent}%"));
        self.shown = Some(percent);
    }
}
