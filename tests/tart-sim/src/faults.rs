//! Faults and knobs: a file in `TART_SIM_HOST/faults` switches one on, its content is the parameter.
//!
//! The files are read at each use, so that a test can switch a fault while a VM runs.

use std::fs;
use std::time::Duration;

use crate::mac;

/// The parameter of a fault, trimmed, or nothing when the fault is off.
pub(crate) fn parameter(name: &str) -> Option<String> {
    fs::read_to_string(mac::dir().join("faults").join(name)).ok().map(|text| text.trim().to_owned())
}

/// Whether a fault is on, whatever its parameter.
pub(crate) fn is_on(name: &str) -> bool {
    parameter(name).is_some()
}

/// The duration that a fault carries (`20ms`, `1.5s`, or plain seconds), if it is on and says one.
pub(crate) fn duration(name: &str) -> Option<Duration> {
    parse_duration(&parameter(name)?)
}

/// Whether a fault is on for this subject (a command, an image, a VM): one of its words is the subject or `*`, or
/// it has no words at all.
pub(crate) fn names(fault: &str, subject: &str) -> bool {
    parameter(fault).is_some_and(|words| {
        words.is_empty() || words.split_whitespace().any(|word| word == subject || word == "*")
    })
}

/// Reads `20ms`, `1.5s` or plain seconds.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    Duration::try_from_secs_f64(number.trim().parse::<f64>().ok()? * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_or_are_seconds() {
        for (text, expected) in [
            ("20ms", Some(Duration::from_millis(20))),
            ("1.5s", Some(Duration::from_millis(1500))),
            ("2", Some(Duration::from_secs(2))),
            ("0.25", Some(Duration::from_millis(250))),
            ("-1", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(parse_duration(text), expected, "{text:?}");
        }
    }
}
