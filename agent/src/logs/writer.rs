//! The container's log in the format of the container runtime interface:
//! `2026-11-16T08:00:00.000000000Z stdout F a line`, `P` instead of `F` for a part of a long one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::error_chain;
use crate::state::disk_space_request::{self, DiskSpaceRequest};

/// A line longer than this is written in parts, as container runtimes do.
const MAX_LINE: usize = 16 << 10;
/// A file larger than this makes room for a new one: the kubelet's `containerLogMaxSize`.
const MAX_FILE: u64 = 10 << 20;
/// How many files are kept, the current one included: the kubelet's `containerLogMaxFiles`.
const MAX_FILES: usize = 5;
/// How much waits in memory while the agent makes room on the disk.
const MAX_HELD: usize = 1 << 20;
/// How often a log asks for room at most: each time may cost an image, and a disk at the brink is full, has room for a short line, and
/// is full again.
const ASK_INTERVAL: Duration = Duration::from_mins(1);
/// How long the end of a log waits for that.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// Where a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogStream {
    Stdout,
    Stderr,
}

/// A log file that grows by lines and is rotated by size; memory and disk are bounded whatever is written.
#[derive(Debug)]
pub(crate) struct LogWriter {
    path: PathBuf,
    /// Absent when there is nowhere to write to: output is lost then, never the job.
    file: Option<File>,
    complained: bool,
    size: u64,
    max_file: u64,
    pending: [Vec<u8>; 2],
    /// Whom to ask for room on the disk.
    room: Option<DiskSpaceRequest>,
    asked_at: Option<Instant>,
    want: Want,
}

/// How it stands with room for a log.
#[derive(Debug, PartialEq, Eq)]
enum Want {
    /// There has been enough.
    Nothing,
    /// The agent was asked for some, and these lines wait for it.
    Space { lines: Vec<u8>, since: Instant },
    /// There is none: lines are lost until one can be written.
    Hopeless,
}

impl LogWriter {
    /// Opens the log, going on where an earlier writer stopped.
    pub(crate) fn open(path: &Path, room: Option<DiskSpaceRequest>) -> Self {
        let mut log = Self { path: path.to_owned(), room, ..Self::nowhere() };
        // Which opens it; what is in the way is in the way of the first line, too.
        let _ = log.append(&[]);
        log
    }

    /// A log that forgets everything.
    pub(crate) fn nowhere() -> Self {
        Self {
            path: PathBuf::new(),
            file: None,
            complained: false,
            size: 0,
            max_file: MAX_FILE,
            pending: Default::default(),
            room: None,
            asked_at: None,
            want: Want::Nothing,
        }
    }

    /// Takes bytes as they come and writes the lines that they complete.
    pub(crate) fn write(&mut self, source: LogStream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = MAX_LINE - self.pending[source as usize].len();
            let newline = bytes.iter().take(room).position(|&b| b == b'\n');
            let taken = newline.unwrap_or_else(|| room.min(bytes.len()));
            self.pending[source as usize].extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken + usize::from(newline.is_some())..];
            if newline.is_some() {
                self.flush(source, b'F');
            } else if self.pending[source as usize].len() == MAX_LINE {
                self.flush(source, b'P');
            }
        }
    }

    /// Writes what is left of unfinished lines, and of those that wait for room.
    pub(crate) async fn close(mut self) {
        for source in [LogStream::Stdout, LogStream::Stderr] {
            if !self.pending[source as usize].is_empty() {
                // No newline ever came, which is what `P` says.
                self.flush(source, b'P');
            }
        }
        if let (Want::Space { .. }, Some(room)) = (&self.want, &self.room) {
            room.answered(CLOSE_PATIENCE).await;
            self.catch_up();
        }
    }

    fn complain(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(path = %self.path.display(), %error, "the container's log cannot be written");
        }
    }

    fn flush(&mut self, source: LogStream, tag: u8) {
        let name = match source {
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
        };
        let mut line = format!("{:.9} {name} ", Timestamp::now()).into_bytes();
        line.extend([tag, b' ']);
        line.append(&mut self.pending[source as usize]);
        line.push(b'\n');
        self.put(line);
    }

    /// Writes a line. When the disk is full, it waits until the agent has made room, without holding anybody up.
    fn put(&mut self, line: Vec<u8>) {
        if let Want::Space { lines, since } = &mut self.want {
            let is_over = self.room.as_ref().is_none_or(DiskSpaceRequest::is_answered)
                || since.elapsed() > disk_space_request::PATIENCE;
            if !is_over && lines.len() + line.len() <= MAX_HELD {
                lines.extend(line);
                return;
            }
            self.catch_up();
        }
        match self.append(&line) {
            Ok(()) => {
                if std::mem::replace(&mut self.want, Want::Nothing) == Want::Hopeless {
                    // There may have been no room for this, either.
                    self.tell_of_loss();
                }
            }
            Err(error) if self.want == Want::Nothing && self.asks_for_room(&error) => {
                self.want = Want::Space { lines: line, since: Instant::now() };
            }
            Err(error) => self.lose(&error),
        }
    }

    /// Writes the lines that have waited for room.
    fn catch_up(&mut self) {
        if let Want::Space { lines, .. } = std::mem::replace(&mut self.want, Want::Nothing)
            && let Err(error) = self.append(&lines)
        {
            self.lose(&error);
        }
    }

    fn asks_for_room(&mut self, error: &io::Error) -> bool {
        let may_ask = self.asked_at.is_none_or(|asked_at| asked_at.elapsed() >= ASK_INTERVAL);
        let asks = may_ask
            && error_chain::is_for_want_of_space(error)
            && self.room.as_ref().is_some_and(|room| room.ask(&self.path));
        if asks {
            self.asked_at = Some(Instant::now());
        }
        asks
    }

    fn lose(&mut self, error: &io::Error) {
        let is_new = std::mem::replace(&mut self.want, Want::Hopeless) != Want::Hopeless;
        self.complain(error);
        if is_new {
            self.tell_of_loss();
        }
    }

    fn tell_of_loss(&self) {
        if let Some(room) = &self.room {
            let message = "the container's log cannot be written, and what it writes meanwhile is lost; free some disk space on the host";
            room.tell("FailedLog", message);
        }
    }

    /// Writes lines that are whole, or nothing.
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
        // One write for one line, so that a reader never sees half of it.
        let written = file.write_all(lines);
        match &written {
            Ok(()) => self.size += lines.len() as u64,
            // A full disk may have taken a part. If it cannot be taken back, it is half a line.
            Err(_) => drop(file.set_len(self.size)),
        }
        written
    }

    fn rotate(&mut self) -> io::Result<()> {
        for age in (1..MAX_FILES).rev() {
            let newer = if age == 1 { self.path.clone() } else { numbered(&self.path, age - 1) };
            match fs::rename(newer, numbered(&self.path, age)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.file = Some(append_to(&self.path)?);
        self.size = 0;
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn numbered(path: &Path, age: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{age}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    async fn lines_are_whole_whatever_the_chunks() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
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
    async fn a_long_line_comes_in_parts() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let path = dir.path().join("0.log");
        let mut log = LogWriter::open(&path, None);
        log.write(LogStream::Stdout, "x".repeat(MAX_LINE + 1).as_bytes());
        log.write(LogStream::Stdout, b"\n");
        log.close().await;
        assert_eq!(lines(&path), [expect("stdout P", &"x".repeat(MAX_LINE)), expect("stdout F", "x")]);
    }

    #[tokio::test]
    async fn disk_use_is_bounded() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
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

    /// A log on a disk that is full from the first byte, where there is one.
    fn full() -> LogWriter {
        LogWriter { path: "/dev/full".into(), ..LogWriter::nowhere() }
    }

    #[test]
    fn a_log_without_room_loses_lines_and_goes_on() {
        if !Path::new("/dev/full").exists() {
            return tart_kubelet_tests::skip::say("this system has no /dev/full").unwrap();
        }
        let mut log = full();
        log.write(LogStream::Stdout, b"one\ntwo\n");
        assert_eq!((&log.want, log.complained), (&Want::Hopeless, true), "there is nobody to ask");
        assert_eq!(log.size, 0);
    }

    #[test]
    fn a_disk_at_the_brink_is_asked_for_once_a_minute() {
        if !Path::new("/dev/full").exists() {
            return tart_kubelet_tests::skip::say("this system has no /dev/full").unwrap();
        }
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let pod = crate::state::StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap());
        let attempt = pod.attempt(crate::names::Restart(0));
        attempt.plan(&crate::state::ShimSpec::example(attempt.vm())).unwrap();
        // A home on the volume of /dev/full.
        let tart = crate::tart::Tart::in_home(Path::new("/tart"), Path::new("/dev"));
        let mut log = LogWriter { room: Some(DiskSpaceRequest::new(attempt.clone(), tart)), ..full() };
        log.write(LogStream::Stdout, b"one\n");
        assert!(attempt.wants_room() && matches!(log.want, Want::Space { .. }));
        attempt.tell_room_is_made().unwrap();
        log.write(LogStream::Stdout, b"two\n");
        assert_eq!(log.want, Want::Hopeless);
        // A short line fits.
        log.want = Want::Nothing;
        log.write(LogStream::Stdout, b"three\n");
        assert!(!attempt.wants_room() && log.want == Want::Hopeless);
        log.want = Want::Nothing;
        log.asked_at = Instant::now().checked_sub(ASK_INTERVAL);
        log.write(LogStream::Stdout, b"four\n");
        assert!(attempt.wants_room() && matches!(log.want, Want::Space { .. }));
    }

    #[test]
    fn lines_that_wait_for_room_are_bounded_and_come_in_order() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let pod = crate::state::StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap());
        let attempt = pod.attempt(crate::names::Restart(0));
        attempt.plan(&crate::state::ShimSpec::example(attempt.vm())).unwrap();
        attempt.ask_for_room().unwrap();
        let path = dir.path().join("0.log");
        let room = DiskSpaceRequest::new(attempt.clone(), crate::tart::Tart::new(Path::new("/tart")));
        let mut log = LogWriter::open(&path, Some(room));
        log.want = Want::Space { lines: Vec::new(), since: Instant::now() };
        log.write(LogStream::Stdout, b"one\ntwo\n");
        assert_eq!(lines(&path), []);
        attempt.tell_room_is_made().unwrap();
        log.write(LogStream::Stdout, b"three\n");
        let expected = ["one", "two", "three"].map(|body| expect("stdout F", body));
        assert_eq!(lines(&path), expected);

        attempt.ask_for_room().unwrap();
        log.want = Want::Space { lines: Vec::new(), since: Instant::now() };
        log.write(
            LogStream::Stdout,
            format!("{}\n", "x".repeat(MAX_LINE - 1)).repeat(MAX_HELD / MAX_LINE).as_bytes(),
        );
        log.write(LogStream::Stdout, b"the last straw\n");
        assert_eq!(log.want, Want::Nothing, "what is too much is written, or lost, at once");
    }
}
