//! Durations in the format of the kubelet's flags and messages: `5m0s`, `90s`, `500ms`.

use std::fmt;
use std::time::Duration;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a duration such as `90s`, `5m` or `1h30m`")]
pub(crate) struct BadDuration(String);

/// Parses whole numbers, each with one of the units `h`, `m`, `s` and `ms`. `0` needs no unit.
pub(crate) fn parse(text: &str) -> Result<Duration, BadDuration> {
    let bad = || BadDuration(text.to_owned());
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let milliseconds: u64 = match &rest[..unit] {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1000,
            "ms" => 1,
            _ => return Err(bad()),
        };
        rest = &rest[unit..];
        let part = number.checked_mul(milliseconds).map(Duration::from_millis);
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(bad)?;
    }
    if text.is_empty() { Err(bad()) } else { Ok(total) }
}

/// Formats whole seconds as Go does, and thus the kubelet.
pub(crate) fn show(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// A duration in its largest unit, for users.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Approximate(pub(crate) Duration);

impl fmt::Display for Approximate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds @ ..120 => write!(f, "{seconds} s"),
            seconds @ 120..7200 => write!(f, "{} min", seconds / 60),
            seconds @ 7200..172_800 => write!(f, "{} h", seconds / 3600),
            seconds => write!(f, "{} days", seconds / 86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_parsed_as_the_kubelet_parses_them() {
        for (text, milliseconds) in
            [("5m0s", 300_000), ("90s", 90_000), ("500ms", 500), ("1h30m", 5_400_000), ("0", 0), ("0s", 0)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "5", "s", "5 m", "-1s", "1d", "99999999999999999999s", "9999999999999999999h"] {
            assert_eq!(parse(text), Err(BadDuration(text.to_owned())));
        }
    }

    #[test]
    fn durations_are_shown_as_the_kubelet_shows_them() {
        for (seconds, text) in [(0, "0s"), (10, "10s"), (80, "1m20s"), (300, "5m0s"), (3600, "1h0m0s")] {
            assert_eq!(show(Duration::from_secs(seconds)), text);
        }
    }

    proptest! {
        #[test]
        fn any_duration_is_parsed_as_it_is_shown(seconds in 0..1_000_000u64) {
            let duration = Duration::from_secs(seconds);
            prop_assert_eq!(parse(&show(duration)), Ok(duration));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9hms .-]{0,12}") {
            let _ = parse(&text);
        }
    }
}
