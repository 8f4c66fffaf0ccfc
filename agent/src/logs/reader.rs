//! Reads a container's log, through all its files, in memory that does not depend on its size. Its calls block.

use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::query::LogQuery;
use super::rotation::LogFile;
use super::selection::Selection;
use super::tail::TailSearch;

/// How much is read at once. A line of a log file fits.
const CHUNK: usize = 64 << 10;

/// Reads the lines of one log that a client asks for.
#[derive(Debug)]
pub(crate) struct LogReader {
    path: PathBuf,
    selection: Selection,
    /// The file that is read now, and where; `None` while the log has no file.
    cursor: Option<Cursor>,
    is_over: bool,
}

#[derive(Debug)]
struct Cursor {
    file: LogFile,
    /// The begin of the first line that was not read as a whole.
    offset: u64,
}

/// What a reader has read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LogChunk {
    /// A part of the answer.
    Content(Vec<u8>),
    /// There is nothing more yet.
    CaughtUp,
    /// The client gets no more.
    Over,
}

impl LogReader {
    /// Opens a log, and goes to the first line of the answer.
    pub(crate) fn open(path: &Path, query: &LogQuery, now: Timestamp) -> io::Result<Self> {
        let selection = Selection::new(query, now);
        let mut files = LogFile::all(path)?;
        let mut cursor = None;
        if let Some(lines) = query.tail {
            let mut search = TailSearch::new(lines);
            for (age, one) in files.iter().enumerate() {
                if let Some(offset) = search.start_in(&one.file)? {
                    cursor = Some(Cursor { file: files.swap_remove(age), offset });
                    break;
                }
            }
        }
        let cursor = cursor.or_else(|| files.pop().map(|file| Cursor { file, offset: 0 }));
        Ok(Self { path: path.to_owned(), selection, cursor, is_over: false })
    }

    /// Reads on.
    pub(crate) fn read(&mut self) -> io::Result<LogChunk> {
        if self.is_over {
            return Ok(LogChunk::Over);
        }
        if self.cursor.is_none() {
            self.cursor = LogFile::all(&self.path)?.pop().map(|file| Cursor { file, offset: 0 });
        }
        let Some(cursor) = &mut self.cursor else { return Ok(LogChunk::CaughtUp) };
        let mut buffer = vec![0; CHUNK];
        loop {
            let length = cursor.fill(&mut buffer)?;
            if let Some(newline) = memchr::memrchr(b'\n', &buffer[..length]) {
                let mut output = Vec::with_capacity(newline);
                cursor.offset += newline as u64 + 1;
                let mut start = 0;
                // The last newline of the buffer is the end of its last line.
                for end in memchr::memchr_iter(b'\n', &buffer[..=newline]) {
                    if let ControlFlow::Break(()) = self.selection.take(&buffer[start..end], &mut output) {
                        self.is_over = true;
                        break;
                    }
                    start = end + 1;
                }
                if output.is_empty() && !self.is_over {
                    continue;
                }
                return Ok(LogChunk::Content(output));
            }
            if length == CHUNK {
                // No shim has written this.
                cursor.offset += length as u64;
                continue;
            }
            let Some(next) = cursor.file.next(&self.path)? else { return Ok(LogChunk::CaughtUp) };
            // Lines may have come before the file was rotated. After that, none come.
            if cursor.fill(&mut buffer)? == length {
                *cursor = Cursor { file: next, offset: 0 };
            }
        }
    }
}

impl Cursor {
    fn fill(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut length = 0;
        while length < buffer.len() {
            match self.file.file.read_at(&mut buffer[length..], self.offset + length as u64) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::line::LogStream;
    use crate::logs::writer::LogWriter;
    use crate::testing::dir;
    use proptest::prelude::*;
    use std::fs;
    use std::io::Write;

    fn open(path: &Path, query: &str) -> LogReader {
        LogReader::open(path, &LogQuery::parse(query).unwrap(), Timestamp::now()).unwrap()
    }

    /// All that there is now.
    fn rest(reader: &mut LogReader) -> String {
        let mut all = Vec::new();
        while let LogChunk::Content(content) = reader.read().unwrap() {
            all.extend(content);
        }
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn a_log_that_grows_and_is_rotated_is_read_to_its_end() {
        let dir = dir();
        let path = dir.path().join("0.log");
        let mut reader = open(&path, "");
        assert_eq!(rest(&mut reader), "", "there is no file yet");
        let mut log = LogWriter::rotating_at(&path, 1000);
        let mut expected = String::new();
        for number in 0..200 {
            let line = format!("line {number}\n");
            log.write(LogStream::Stdout, line.as_bytes());
            expected.push_str(&line);
            if number % 7 == 0 {
                assert_eq!(rest(&mut reader), expected);
                expected.clear();
            }
        }
        assert_eq!(rest(&mut reader), expected);
        assert!(fs::read_dir(dir.path()).unwrap().count() > 1, "it was rotated");
    }

    #[test]
    fn a_tail_may_begin_in_an_older_file() {
        let dir = dir();
        let path = dir.path().join("0.log");
        let mut log = LogWriter::rotating_at(&path, 500);
        for number in 0..30 {
            log.write(LogStream::Stdout, format!("{number}\n").as_bytes());
        }
        assert!(path.with_extension("log.1").exists());
        let expected = (10..30).map(|number| format!("{number}\n")).collect::<Vec<_>>().concat();
        assert_eq!(rest(&mut open(&path, "tailLines=20")), expected);
        assert_eq!(rest(&mut open(&path, "tailLines=1")), "29\n");
        assert_eq!(rest(&mut open(&path, "tailLines=1000")), rest(&mut open(&path, "")));
        let mut end = open(&path, "tailLines=0");
        assert_eq!(rest(&mut end), "");
        log.write(LogStream::Stdout, b"30\n");
        assert_eq!(rest(&mut end), "30\n");
    }

    #[test]
    fn a_limit_ends_the_answer() {
        let dir = dir();
        let path = dir.path().join("0.log");
        let mut log = LogWriter::rotating_at(&path, 1000);
        log.write(LogStream::Stdout, b"one\ntwo\n");
        let mut reader = open(&path, "limitBytes=5");
        assert_eq!(reader.read().unwrap(), LogChunk::Content(b"one\nt".to_vec()));
        assert_eq!(reader.read().unwrap(), LogChunk::Over);
    }

    #[test]
    fn half_a_line_is_read_when_it_is_whole() {
        let dir = dir();
        let path = dir.path().join("0.log");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"2026-11-16T08:00:00.000000000Z stdout F o").unwrap();
        let mut reader = open(&path, "");
        assert_eq!(reader.read().unwrap(), LogChunk::CaughtUp);
        file.write_all(b"ne\n").unwrap();
        assert_eq!(rest(&mut reader), "one\n");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn whatever_a_container_writes_is_what_a_client_reads(
            chunks in proptest::collection::vec(("[a-z]{0,9}\n?", 0usize..3), 1..60),
        ) {
            let dir = dir();
            let path = dir.path().join("0.log");
            let mut log = LogWriter::rotating_at(&path, 20_000);
            let (mut reader, mut written, mut read) = (open(&path, ""), String::new(), String::new());
            for (text, times) in chunks {
                let text = text.repeat(times * 300);
                log.write(LogStream::Stdout, text.as_bytes());
                written.push_str(&text);
                read.push_str(&rest(&mut reader));
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(log.close());
            read.push_str(&rest(&mut reader));
            prop_assert_eq!(read, written);
        }
    }
}
