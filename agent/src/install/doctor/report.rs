//! How `doctor` tells what it thinks.

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
        lines.push_str(&format!("{level:<8} {:<22} {}\n", finding.check, finding.found));
        if let Some(mend) = &finding.mend {
            lines.push_str(&format!("{:<8} {:<22} → {mend}\n", "", ""));
        }
    }
    lines
}
