//! The lines of a log that a client gets, in the form that it asks for. Knows no files.

use std::ops::ControlFlow;

use jiff::Timestamp;

use super::line::{LogLine, LogStream};
use super::query::LogQuery;

/// Chooses lines, one after the other.
#[derive(Debug)]
pub(super) struct Selection {
    timestamps: bool,
    since: Option<Timestamp>,
    stream: Option<LogStream>,
    /// How many bytes are left.
    left: Option<u64>,
    /// Whether the next byte begins a line of the answer.
    at_line_start: bool,
}

impl Selection {
    pub(super) fn new(query: &LogQuery, now: Timestamp) -> Self {
        Self {
            timestamps: query.timestamps,
            since: query.since(now),
            stream: query.stream,
            left: query.limit,
            at_line_start: true,
        }
    }

    /// Adds what the client gets of a line to `output`; breaks when the client gets no more.
    pub(super) fn take(&mut self, line: &[u8], output: &mut Vec<u8>) -> ControlFlow<()> {
        let Some(line) = LogLine::parse(line) else { return ControlFlow::Continue(()) };
        if self.stream.is_some_and(|stream| stream != line.stream) || self.is_too_early(&line) {
            return ControlFlow::Continue(());
        }
        let before = output.len();
        if self.timestamps && self.at_line_start {
            output.extend_from_slice(line.time.as_bytes());
            output.push(b' ');
        }
        output.extend_from_slice(line.content);
        if !line.is_partial {
            output.push(b'\n');
        }
        self.at_line_start = !line.is_partial;
        let Some(left) = &mut self.left else { return ControlFlow::Continue(()) };
        let added = output.len() - before;
        let allowed = usize::try_from(*left).unwrap_or(usize::MAX).min(added);
        output.truncate(before + allowed);
        *left -= u64::try_from(allowed).unwrap_or(*left);
        if *left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn is_too_early(&self, line: &LogLine<'_>) -> bool {
        let Some(since) = self.since else { return false };
        // A line with an unreadable time is shown rather than lost.
        line.time.parse::<Timestamp>().is_ok_and(|time| time < since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINES: [&str; 5] = [
        "2026-11-16T08:00:00.000000000Z stdout F one",
        "2026-11-16T08:00:01.000000000Z stderr P two ",
        "garbage",
        "2026-11-16T08:00:02.000000000Z stderr F parts",
        "2026-11-16T08:00:03.000000000Z stdout P no newline",
    ];

    fn selected(query: &str) -> String {
        let now = "2026-11-16T08:00:12Z".parse().unwrap();
        let mut selection = Selection::new(&LogQuery::parse(query).unwrap(), now);
        let mut output = Vec::new();
        for line in LINES {
            if selection.take(line.as_bytes(), &mut output).is_break() {
                break;
            }
        }
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn a_client_gets_the_lines_that_it_asks_for() {
        for (query, expected) in [
            ("", "one\ntwo parts\nno newline"),
            ("stream=Stdout", "one\nno newline"),
            ("stream=Stderr", "two parts\n"),
            (
                "timestamps=true",
                "2026-11-16T08:00:00.000000000Z one\n2026-11-16T08:00:01.000000000Z two parts\n2026-11-16T08:00:03.000000000Z no newline",
            ),
            ("sinceTime=2026-11-16T08:00:02Z", "parts\nno newline"),
            ("sinceSeconds=9", "no newline"),
            ("sinceSeconds=1", ""),
            ("limitBytes=5", "one\nt"),
            ("limitBytes=4", "one\n"),
            ("limitBytes=1000", "one\ntwo parts\nno newline"),
            ("limitBytes=11&timestamps=true", "2026-11-16T"),
        ] {
            assert_eq!(selected(query), expected, "{query}");
        }
    }

    proptest! {
        #[test]
        fn a_limit_cuts_the_answer_and_nothing_else(limit in 1usize..60) {
            let whole = selected("");
            let cut = selected(&format!("limitBytes={limit}"));
            prop_assert_eq!(cut.as_str(), &whole[..limit.min(whole.len())]);
        }
    }
}
