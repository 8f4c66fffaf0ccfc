//! What one call of `pfctl` prints, and how it ends.

/// What `pfctl` prints, and its exit code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Its exit code.
    pub code: u8,
}

impl Output {
    /// Adds a line to standard output.
    pub(crate) fn print(&mut self, line: impl AsRef<str>) {
        self.stdout.push_str(line.as_ref());
        self.stdout.push('\n');
    }

    /// Adds a line to standard error.
    pub(crate) fn note(&mut self, line: impl AsRef<str>) {
        self.stderr.push_str(line.as_ref());
        self.stderr.push('\n');
    }

    /// Adds an error, with the program's name before it, and makes the call fail.
    pub(crate) fn fail(&mut self, message: impl AsRef<str>) {
        self.note(format!("pfctl: {}", message.as_ref()));
        self.code = 1;
    }
}
