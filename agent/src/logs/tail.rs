//! Finds the last lines of a log from its end.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::line::LogLine;

/// How much is read at once. Lines of a log file are shorter.
const BLOCK: usize = 64 << 10;

/// Counts the lines of a container from the end, through one file after the other, the newest first.
#[derive(Debug)]
pub(super) struct TailSearch {
    wanted: u64,
    /// Lines of the container that were found so far.
    found: u64,
    /// Whether any line of a file was seen.
    begun: bool,
}

impl TailSearch {
    pub(super) fn new(lines: u64) -> Self {
        Self { wanted: lines, found: 0, begun: false }
    }

    /// Where in this file the wanted lines begin; `None` when they begin in an older file.
    pub(super) fn start_in(&mut self, file: &File) -> io::Result<Option<u64>> {
        let mut end = file.metadata()?.len();
        // The head of a line whose rest was in the block after this one.
        let mut rest: Vec<u8> = Vec::new();
        let mut is_last_line_open = true;
        while end > 0 {
            let length = end.min(BLOCK as u64);
            let begin = end - length;
            let mut block = vec![0; usize::try_from(length).unwrap_or(BLOCK)];
            file.read_exact_at(&mut block, begin)?;
            block.append(&mut rest);
            if is_last_line_open {
                // A line without its newline is still being written.
                match block.iter().rposition(|byte| *byte == b'\n') {
                    Some(newline) => block.truncate(newline + 1),
                    None => block.clear(),
                }
                is_last_line_open = block.is_empty();
            }
            let mut line_end = block.len();
            while let Some(newline) =
                block[..line_end.saturating_sub(1)].iter().rposition(|byte| *byte == b'\n')
            {
                if self.is_before_the_tail(&block[newline + 1..line_end]) {
                    return Ok(Some(begin + line_end as u64));
                }
                line_end = newline + 1;
            }
            if begin == 0 && line_end > 0 && self.is_before_the_tail(&block[..line_end]) {
                return Ok(Some(line_end as u64));
            }
            // What a shim writes fits. Of anything else, the head is enough to see what it is.
            block.truncate(line_end.min(BLOCK));
            rest = block;
            end = begin;
        }
        Ok(None)
    }

    /// Takes in a line of the file; true when the tail begins after it.
    fn is_before_the_tail(&mut self, line: &[u8]) -> bool {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let Some(parsed) = LogLine::parse(line) else { return false };
        let is_first = !std::mem::replace(&mut self.begun, true);
        if parsed.is_partial {
            // The container has not ended its last line, and it counts.
            self.found += u64::from(is_first);
            return false;
        }
        if self.found == self.wanted {
            return true;
        }
        self.found += 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;
    use proptest::prelude::*;
    use std::path::Path;

    fn line(content: &str, tag: &str) -> String {
        format!("2026-11-16T08:00:00.000000000Z stdout {tag} {content}\n")
    }

    fn file(path: &Path, text: &str) -> File {
        std::fs::write(path, text).unwrap();
        File::open(path).unwrap()
    }

    fn tail(text: &str, lines: u64) -> Option<String> {
        let dir = dir();
        let file = file(&dir.path().join("0.log"), text);
        let start = TailSearch::new(lines).start_in(&file).unwrap()?;
        Some(text[usize::try_from(start).unwrap()..].to_owned())
    }

    #[test]
    fn the_tail_begins_after_a_whole_line() {
        let [a, b, c] = ["a", "b", "c"].map(|content| line(content, "F"));
        let all = format!("{a}{b}{c}");
        assert_eq!(tail(&all, 1), Some(c.clone()));
        assert_eq!(tail(&all, 2), Some(format!("{b}{c}")));
        assert_eq!(tail(&all, 3), None, "the whole file, and maybe more in an older one");
        assert_eq!(tail(&all, 0), Some(String::new()));
        assert_eq!(tail("", 1), None);
        let torn = format!("{all}2026-11-16T08:00:00.0");
        assert_eq!(tail(&torn, 1), Some(torn[a.len() + b.len()..].to_owned()));
    }

    #[test]
    fn parts_count_as_the_line_that_they_are_of() {
        let long = [line("x", "P"), line("y", "P"), line("z", "F")].concat();
        let open = line("open", "P");
        let (a, b) = (line("a", "F"), line("b", "F"));
        assert_eq!(tail(&format!("{a}{long}"), 1), Some(long.clone()));
        assert_eq!(tail(&format!("{a}{long}{b}"), 2), Some(format!("{long}{b}")));
        assert_eq!(tail(&format!("{a}{b}{open}"), 1), Some(open.clone()));
        assert_eq!(tail(&format!("{a}{b}{open}"), 2), Some(format!("{b}{open}")));
    }

    #[test]
    fn a_search_goes_on_in_older_files() {
        let dir = dir();
        let newer = file(&dir.path().join("0.log"), &line("c", "F"));
        let older = file(&dir.path().join("0.log.1"), &[line("a", "F"), line("b", "F")].concat());
        let mut search = TailSearch::new(2);
        assert_eq!(search.start_in(&newer).unwrap(), None);
        assert_eq!(search.start_in(&older).unwrap(), Some(line("a", "F").len() as u64));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_tail_is_that_of_the_lines_whatever_their_lengths(
            lengths in proptest::collection::vec(0usize..40_000, 1..12), wanted in 0u64..14,
        ) {
            let lines: Vec<String> = lengths.iter().map(|length| line(&"x".repeat(*length), "F")).collect();
            let text = lines.concat();
            let kept = lines.len().saturating_sub(usize::try_from(wanted).unwrap());
            let expected = (kept > 0).then(|| lines[kept..].concat());
            prop_assert_eq!(tail(&text, wanted), expected);
        }
    }
}
