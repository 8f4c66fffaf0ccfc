//! The container's log in the format of the container runtime interface:
//! `2026-11-16T08:00:00.000000000Z stdout F a line`, `P` instead of `F` for a part of a long one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

/// A line longer than this is written in parts, as container runtimes do.
const MAX_LINE: usize = 16 << 10;
/// A file larger than this makes room for a new one: the kubelet's `containerLogMaxSize`.
const MAX_FILE: u64 = 10 << 20;
/// How many files are kept, the current one included: the kubelet's `containerLogMaxFiles`.
const MAX_FILES: usize = 5;

/// Where a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Stdout,
    Stderr,
}

/// A log file that grows by lines and is rotated by size; memory and disk are bounded whatever is written.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// Absent when there is nowhere to write to: output is lost then, never the job.
    file: Option<File>,
    complained: bool,
    size: u64,
    max_file: u64,
    pending: [Vec<u8>; 2],
}

impl Log {
    /// Opens the log, going on where an earlier writer stopped.
    pub(super) fn open(path: &Path) -> Self {
        let mut log = Self { path: path.to_owned(), ..Self::nowhere() };
        match append_to(path).and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((size, file)) => {
                log.size = size;
                log.file = Some(file);
            }
            Err(error) => log.complain(&error),
        }
        log
    }

    /// A log that forgets everything.
    pub(super) fn nowhere() -> Self {
        Self {
            path: PathBuf::new(),
            file: None,
            complained: false,
            size: 0,
            max_file: MAX_FILE,
            pending: Default::default(),
        }
    }

    /// Takes bytes as they come and writes the lines that they complete.
    pub(super) fn write(&mut self, source: Source, mut bytes: &[u8]) {
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

    /// Writes what is left of unfinished lines.
    pub(super) fn close(mut self) {
        for source in [Source::Stdout, Source::Stderr] {
            if !self.pending[source as usize].is_empty() {
                // No newline ever came, which is what `P` says.
                self.flush(source, b'P');
            }
        }
    }

    fn flush(&mut self, source: Source, tag: u8) {
        if let Err(error) = self.try_flush(source, tag) {
            self.complain(&error);
        }
    }

    fn complain(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(path = %self.path.display(), %error, "the container's log cannot be written");
        }
    }

    fn try_flush(&mut self, source: Source, tag: u8) -> io::Result<()> {
        let name = match source {
            Source::Stdout => "stdout",
            Source::Stderr => "stderr",
        };
        let mut line = format!("{:.9} {name} ", Timestamp::now()).into_bytes();
        line.extend([tag, b' ']);
        line.append(&mut self.pending[source as usize]);
        line.push(b'\n');
        if self.file.is_some() && self.size > 0 && self.size + line.len() as u64 > self.max_file {
            self.rotate()?;
        }
        // One write for one line, so that a reader never sees half of it.
        if let Some(file) = &mut self.file {
            file.write_all(&line)?;
        }
        self.size += line.len() as u64;
        Ok(())
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

    #[test]
    fn lines_are_whole_whatever_the_chunks() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(&path);
        for (source, chunk) in [
            (Source::Stdout, "he"),
            (Source::Stderr, "oops\n"),
            (Source::Stdout, "llo\n\nwor"),
            (Source::Stdout, "ld"),
        ] {
            log.write(source, chunk.as_bytes());
        }
        log.close();
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

    #[test]
    fn a_long_line_comes_in_parts() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(&path);
        log.write(Source::Stdout, "x".repeat(MAX_LINE + 1).as_bytes());
        log.write(Source::Stdout, b"\n");
        log.close();
        assert_eq!(lines(&path), [expect("stdout P", &"x".repeat(MAX_LINE)), expect("stdout F", "x")]);
    }

    #[test]
    fn disk_use_is_bounded() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(&path);
        log.max_file = 1000;
        for number in 0..1000 {
            log.write(Source::Stdout, format!("line {number}\n").as_bytes());
        }
        log.close();
        let sizes: Vec<u64> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).collect();
        assert_eq!(sizes.len(), MAX_FILES);
        assert!(sizes.iter().all(|&size| size <= 1000), "{sizes:?}");
        assert!(lines(&path).last().unwrap().1.contains("line 999"));
    }
}
