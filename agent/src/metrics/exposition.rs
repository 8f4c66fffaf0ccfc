//! The text format that Prometheus reads.

use std::fmt::Write;

/// A page of figures in the making.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

impl Page {
    /// Begins a family of figures.
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Adds a figure.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{escaped}\"", if index == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// The page.
    pub(crate) fn text(self) -> String {
        self.0
    }
}

/// A count as Prometheus has all its figures.
#[expect(clippy::cast_precision_loss, reason = "nothing here is counted up to 2^52")]
pub(crate) fn number(count: usize) -> f64 {
    count as f64
}

/// An amount as Prometheus has all its figures.
#[expect(clippy::cast_precision_loss, reason = "no volume has 2^52 bytes")]
pub(super) fn bytes(amount: u64) -> f64 {
    amount as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_lines_with_escaped_labels() {
        let mut page = Page::default();
        page.family("a", "gauge", "An a.");
        page.sample("a", &[], 1.5);
        page.sample("a", &[("b", "c\"d\\e\nf"), ("g", "h")], 2.0);
        assert_eq!(
            page.text(),
            "# HELP a An a.\n# TYPE a gauge\na 1.5\na{b=\"c\\\"d\\\\e\\nf\",g=\"h\"} 2\n"
        );
    }
}
