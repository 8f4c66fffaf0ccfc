//! Units, as Grafana writes figures in them.

use serde::Deserialize;

/// What a figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Unit {
    #[serde(rename = "short", alias = "none")]
    Number,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "bytes")]
    Bytes,
    #[serde(rename = "percentunit")]
    Share,
    #[serde(rename = "reqps", alias = "ops")]
    PerSecond,
}

const DURATIONS: [(f64, &str); 4] = [(86_400.0, "days"), (3600.0, "hours"), (60.0, "min"), (1.0, "s")];
const BYTES: [(f64, &str); 4] =
    [(1_099_511_627_776.0, "TiB"), (1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1024.0, "KiB")];

impl Unit {
    /// A figure with its unit.
    pub(crate) fn write(self, value: f64) -> String {
        match self {
            Self::Number => number(value),
            Self::Seconds if value != 0.0 && value.abs() < 1.0 => format!("{} ms", number(value * 1000.0)),
            Self::Seconds => scaled(value, &DURATIONS, "s"),
            Self::Bytes => scaled(value, &BYTES, "B"),
            Self::Share => format!("{}%", number(value * 100.0)),
            Self::PerSecond => format!("{}/s", number(value)),
        }
    }
}

fn scaled(value: f64, units: &[(f64, &str)], smallest: &str) -> String {
    let fits = units.iter().find(|(size, _)| value.abs() >= *size);
    let (size, word) = fits.copied().unwrap_or((1.0, smallest));
    format!("{} {word}", number(value / size))
}

/// Three digits that count at most, without zeros at the end.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_have_their_unit() {
        for (unit, value, text) in [
            (Unit::Number, 3.0, "3"),
            (Unit::Number, 0.25, "0.25"),
            (Unit::Number, 1234.5, "1234"),
            (Unit::Seconds, 0.004, "4 ms"),
            (Unit::Seconds, 0.0, "0 s"),
            (Unit::Seconds, 90.0, "1.5 min"),
            (Unit::Seconds, 31_536_000.0, "365 days"),
            (Unit::Bytes, 1536.0, "1.5 KiB"),
            (Unit::Share, 0.5, "50%"),
            (Unit::PerSecond, 2.0, "2/s"),
        ] {
            assert_eq!(unit.write(value), text);
        }
    }
}
