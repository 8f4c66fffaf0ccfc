//! Writes a container's log in the format of the container runtime interface:
//! `2026-11-16T08:00:00.000000000Z stdout F a line`; `P` instead of `F` for a part of a line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::line::LogStream;
use super::rotation::{MAX_FILES, numbered};
use crate::error_chain;
use crate::fs::absent_is_fine;
use crate::state::disk_space_request::{self, DiskSpaceRequest};

/// A line longer than this is written in parts, as container runtimes do.
const MAX_LINE: usize = 16 << 10;
/// A larger file is rotated: the kubelet's `containerLogMaxSize`.
pub(crate) const MAX_FILE_SIZE: u64 = 10 << 20;
/// How much waits in memory while the agent frees disk space.
const MAX_WAITING: usize = 1 << 20;
/// The shortest time between two requests for disk space: each may cost an image, and a disk may be full, take a short line, and be full
/// again.
const REQUEST_INTERVAL: Duration = Duration::from_mins(1);
/// How long `close` waits for disk space.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// A log file that is rotated by size. Its memory and disk space are bounded.
#[derive(Debug)]
pub(crate) struct LogWriter {
    path: PathBuf,
    /// Absent when the file cannot be opened: the output is then lost, but the job runs.
    file: Option<File>,
    warned: bool,
    size: u64,
    max_file: u64,
    pending: [Vec<u8>; 2],
    request: Option<DiskSpaceRequest>,
    requested_at: Option<Instant>,
    space: Space,
}

#[derive(Debug, PartialEq, Eq)]
enum Space {
    Enough,
    /// The writer has asked the agent for space, and these lines wait for it.
    Requested {
        lines: Vec<u8>,
        since: Instant,
    },
    /// Lines are lost until one can be written.
    None,
}

impl LogWriter {
    /// Opens the log, and appends to that of an earlier writer.
    pub(crate) fn open(path: &Path, request: Option<DiskSpaceRequest>) -> Self {
        let mut log = Self { path: path.to_owned(), request, ..Self::nowhere() };
        // Opens the file. After an error the first line tries again.
        let _ = log.append(&[]);
        log
    }

    pub(crate) fn nowhere() -> Self {
        Self {
            path: PathBuf::new(),
            file: None,
            warned: false,
            size: 0,
            max_file: MAX_FILE_SIZE,
            pending: Default::default(),
            request: None,
            requested_at: None,
            space: Space::Enough,
        }
    }

    /// Writes the lines that these bytes complete.
    pub(crate) fn write(&mut self, source: LogStream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = MAX_LINE - self.pending[source as usize].len();
            let newline = bytes.iter().take(left).position(|&b| b == b'\n');
            let taken = newline.unwrap_or_else(|| left.min(bytes.len()));
            self.pending[source as usize].extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken + usize::from(newline.is_some())..];
            if newline.is_some() {
                self.flush(source, b'F');
            } else if self.pending[source as usize].len() == MAX_LINE {
                self.flush(source, b'P');
            }
        }
    }

    /// Writes incomplete lines, and the lines that wait for disk space.
    pub(crate) async fn close(mut self) {
        for source in LogStream::ALL {
            if !self.pending[source as usize].is_empty() {
                // `P`: there was no newline.
                self.flush(source, b'P');
            }
        }
        if let (Space::Requested { .. }, Some(request)) = (&self.space, &self.request) {
            request.wait(CLOSE_LIMIT).await;
            self.write_waiting();
        }
    }

    fn flush(&mut self, source: LogStream, tag: u8) {
        let mut line = format!("{:.9} {source} ", Timestamp::now()).into_bytes();
        line.extend([tag, b' ']);
        line.append(&mut self.pending[source as usize]);
        line.push(b'\n');
        self.put(line);
    }

    /// Writes a line. On a full disk the line waits in memory until the agent has freed space.
    fn put(&mut self, line: Vec<u8>) {
        if let Space::Requested { lines, since } = &mut self.space {
            let is_over = self.request.as_ref().is_none_or(DiskSpaceRequest::is_answered)
                || since.elapsed() > disk_space_request::ANSWER_LIMIT;
            if !is_over && lines.len() + line.len() <= MAX_WAITING {
                lines.extend(line);
                return;
            }
            self.write_waiting();
        }
        match self.append(&line) {
            Ok(()) => {
                if std::mem::replace(&mut self.space, Space::Enough) == Space::None {
                    // There may have been no disk space for the first notice.
                    self.notice_loss();
                }
            }
            Err(error) if self.space == Space::Enough && self.requests_space(&error) => {
                self.space = Space::Requested { lines: line, since: Instant::now() };
            }
            Err(error) => self.lose(&error),
        }
    }

    /// Writes the lines that have waited for disk space.
    fn write_waiting(&mut self) {
        if let Space::Requested { lines, .. } = std::mem::replace(&mut self.space, Space::Enough)
            && let Err(error) = self.append(&lines)
        {
            self.lose(&error);
        }
    }

    fn requests_space(&mut self, error: &io::Error) -> bool {
        let may_request = self.requested_at.is_none_or(|at| at.elapsed() >= REQUEST_INTERVAL);
        let requests = may_request
            && error_chain::is_for_want_of_space(error)
            && self.request.as_ref().is_some_and(|request| request.send(&self.path));
        if requests {
            self.requested_at = Some(Instant::now());
        }
        requests
    }

    fn lose(&mut self, error: &io::Error) {
        let is_new = std::mem::replace(&mut self.space, Space::None) != Space::None;
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(path = %self.path.display(), %error, "cannot write the container's log");
        }
        if is_new {
            self.notice_loss();
        }
    }

    fn notice_loss(&self) {
        if let Some(request) = &self.request {
            let message = "the container's log cannot be written, and what it writes meanwhile is lost; free some disk space on the host";
            request.notice("FailedLog", message);
        }
    }

    /// Writes whole lines, or none of them.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.path.as_os_str().is_empty() {
            return Ok(());
        }
        if self.file.is_some() && self.size > 0 && self.size + lines.len() as u64 > self.max_file {
            self.rotate()?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = append_to(&self.path)?;
                self.size = file.metadata()?.len();
                self.file.insert(file)
            }
        };
        // One write, so that a reader never sees half a line.
        let written = file.write_all(lines);
        match &written {
            Ok(()) => self.size += lines.len() as u64,
            // A full disk may have taken a part of the lines. If the file cannot be truncated, half a line stays.
            Err(_) => drop(file.set_len(self.size)),
        }
        written
    }

    fn rotate(&mut self) -> io::Result<()> {
        for age in (1..MAX_FILES).rev() {
            let newer = if age == 1 { self.path.clone() } else { numbered(&self.path, age - 1) };
            absent_is_fine(fs::rename(newer, numbered(&self.path, age)))?;
        }
        self.file = Some(append_to(&self.path)?);
        self.size = 0;
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
impl LogWriter {
    /// A log whose files are this large at most.
    pub(crate) fn rotating_at(path: &Path, max_file: u64) -> Self {
        Self { max_file, ..Self::open(path, None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::VmRun;
    use crate::tart::Tart;
    use crate::testing::dir;

    fn lines(path: &Path) -> Vec<(String, String)> {
        let text = fs::read_to_string(path).unwrap();
        let fields = |line: &str| {
            let (time, rest) = line.split_once(' ').unwrap();
            time.parse::<Timestamp>().unwrap();
            let (head, body) = rest.split_at(9);
            (head.trim_end().to_owned(), body.to_owned())
        };
        text.lines().map(fields).collect()
    }

    fn expect(head: &str, body: &str) -> (String, String) {
        (head.to_owned(), body.to_owned())
    }

    #[tokio::test]
    async fn lines_are_whole_however_they_are_split_into_chunks() {
        let dir = dir();
        let path = dir.path().join("0.log");
        let mut log = LogWriter::open(&path, None);
        for (source, chunk) in [
            (LogStream::Stdout, "he"),
            (LogStream::Stderr, "oops\n"),
            (LogStream::Stdout, "llo\n\nwor"),
            (LogStream::Stdout, "ld"),
        ] {
            log.write(source, chunk.as_bytes());
        }
        log.close().await;
        assert_eq!(
            lines(&path),
            [
                expect("stderr F", "oops"),
                expect("stdout F", "hello"),
                expect("stdout F", ""),
                expect("stdout P", "world"),
            ]
        );
    }

    #[tokio::test]
    async fn a_long_line_is_written_in_parts() {
        let dir = dir();
        let path = dir.path().join("0.log");
        let mut log = LogWriter::open(&path, None);
        log.write(LogStream::Stdout, "x".repeat(MAX_LINE + 1).as_bytes());
        log.write(LogStream::Stdout, b"\n");
        log.close().await;
        assert_eq!(lines(&path), [expect("stdout P", &"x".repeat(MAX_LINE)), expect("stdout F", "x")]);
    }

    #[tokio::test]
    async fn the_files_of_a_log_are_bounded_in_number_and_size() {
        let dir = dir();
        let path = dir.path().join("0.log");
        let mut log = LogWriter::open(&path, None);
        log.max_file = 1000;
        for number in 0..1000 {
            log.write(LogStream::Stdout, format!("line {number}\n").as_bytes());
        }
        log.close().await;
        let sizes: Vec<u64> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).collect();
        assert_eq!(sizes.len(), MAX_FILES);
        assert!(sizes.iter().all(|&size| size <= 1000), "{sizes:?}");
        assert!(lines(&path).last().unwrap().1.contains("line 999"));
    }

    /// A log on a full disk, if the system has one.
    fn full() -> Option<LogWriter> {
        if !Path::new("/dev/full").exists() {
            tart_kubelet_tests::skip::say("this system has no /dev/full").unwrap();
            return None;
        }
        Some(LogWriter { path: "/dev/full".into(), ..LogWriter::nowhere() })
    }

    #[test]
    fn a_log_on_a_full_disk_loses_lines() {
        let Some(mut log) = full() else { return };
        log.write(LogStream::Stdout, b"one\ntwo\n");
        assert_eq!((&log.space, log.warned), (&Space::None, true), "there is no agent to ask");
        assert_eq!(log.size, 0);
    }

    #[test]
    fn a_log_requests_disk_space_at_most_once_a_minute() {
        let Some(full) = full() else { return };
        let dir = dir();
        let run = VmRun::planned_example(dir.path());
        // A tart home on the volume of /dev/full.
        let tart = Tart::in_home(Path::new("/tart"), Path::new("/dev"));
        let mut log = LogWriter { request: Some(DiskSpaceRequest::new(run.clone(), tart)), ..full };
        log.write(LogStream::Stdout, b"one\n");
        assert!(run.wants_disk_space() && matches!(log.space, Space::Requested { .. }));
        run.remove_disk_space_request().unwrap();
        log.write(LogStream::Stdout, b"two\n");
        assert_eq!(log.space, Space::None);
        // A short line fits.
        log.space = Space::Enough;
        log.write(LogStream::Stdout, b"three\n");
        assert!(!run.wants_disk_space() && log.space == Space::None);
        log.space = Space::Enough;
        log.requested_at = Instant::now().checked_sub(REQUEST_INTERVAL);
        log.write(LogStream::Stdout, b"four\n");
        assert!(run.wants_disk_space() && matches!(log.space, Space::Requested { .. }));
    }

    #[test]
    fn lines_that_wait_for_disk_space_are_bounded_and_stay_in_order() {
        let dir = dir();
        let run = VmRun::planned_example(dir.path());
        run.request_disk_space().unwrap();
        let path = dir.path().join("0.log");
        let request = DiskSpaceRequest::new(run.clone(), Tart::new(Path::new("/tart")));
        let mut log = LogWriter::open(&path, Some(request));
        log.space = Space::Requested { lines: Vec::new(), since: Instant::now() };
        log.write(LogStream::Stdout, b"one\ntwo\n");
        assert_eq!(lines(&path), []);
        run.remove_disk_space_request().unwrap();
        log.write(LogStream::Stdout, b"three\n");
        let expected = ["one", "two", "three"].map(|body| expect("stdout F", body));
        assert_eq!(lines(&path), expected);

        run.request_disk_space().unwrap();
        log.space = Space::Requested { lines: Vec::new(), since: Instant::now() };
        log.write(
            LogStream::Stdout,
            format!("{}\n", "x".repeat(MAX_LINE - 1)).repeat(MAX_WAITING / MAX_LINE).as_bytes(),
        );
        log.write(LogStream::Stdout, b"the last straw\n");
        assert_eq!(log.space, Space::Enough, "lines beyond the bound are written, or lost, at once");
    }
}
