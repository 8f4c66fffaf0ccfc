//! One line of a log file: `2026-11-16T08:00:00.000000000Z stdout F a line`; `P` instead of `F` for a part of a line.

words! {
    /// The output that a line comes from.
    pub(crate) enum LogStream {
        Stdout = "stdout",
        Stderr = "stderr",
    }
}

/// A line of a log file, without its newline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogLine<'a> {
    /// As it was written.
    pub(super) time: &'a str,
    pub(super) stream: LogStream,
    /// Whether the container's line goes on in the next line of the file.
    pub(super) is_partial: bool,
    pub(super) content: &'a [u8],
}

impl<'a> LogLine<'a> {
    /// `None` for a line that no shim has written.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(4, |byte| *byte == b' ');
        let time = std::str::from_utf8(fields.next()?).ok()?;
        let stream = match fields.next()? {
            b"stdout" => LogStream::Stdout,
            b"stderr" => LogStream::Stderr,
            _ => return None,
        };
        let is_partial = match fields.next()? {
            b"F" => false,
            b"P" => true,
            _ => return None,
        };
        Some(Self { time, stream, is_partial, content: fields.next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_time_a_stream_a_tag_and_its_content() {
        let parse = |line: &'static str| LogLine::parse(line.as_bytes());
        let expected = LogLine {
            time: "2026-11-16T08:00:00.000000000Z",
            stream: LogStream::Stderr,
            is_partial: true,
            content: b"a  line ",
        };
        assert_eq!(parse("2026-11-16T08:00:00.000000000Z stderr P a  line "), Some(expected));
        assert_eq!(
            parse("t stdout F "),
            Some(LogLine { time: "t", stream: LogStream::Stdout, is_partial: false, content: b"" })
        );
        for broken in ["", "t", "t stdout", "t stdout F", "t stdin F a", "t stdout X a", "a line"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }
}
