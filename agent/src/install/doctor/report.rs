//! How `doctor` tells what it thinks.

use std::fmt::Write;

use super::judge::{Finding, Level};

/// For whom a report is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// People
    Text,
    /// Programs
    Json,
}

/// A report as text.
pub(crate) fn render(findings: &[Finding], format: Format) -> String {
    match format {
        Format::Text => text(findings),
        Format::Json => serde_json::to_string_pretty(findings).unwrap_or_default() + "\n",
    }
}

fn text(findings: &[Finding]) -> String {
    let mut lines = String::new();
    for finding in findings {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Broken => "BROKEN",
        };
        let _ = writeln!(lines, "{level:<8} {:<22} {}", finding.check, finding.found);
        if let Some(mend) = &finding.mend {
            let _ = writeln!(lines, "{:<8} {:<22} → {mend}", "", "");
        }
    }
    lines
}
