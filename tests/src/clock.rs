//! A wall clock that a test moves, for the programs of one simulated Mac.
//!
//! The programs are the shipped ones: libfaketime stands between them and the C library, and reads the offset from a file at each call.
//! Their monotonic clock runs on, as on a Mac whose wall clock is set; on a Mac that wakes up it has stood still meanwhile, which looks
//! the same to a program.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::programs;
use crate::sandbox::Sandbox;

/// A wall clock of its own.
#[derive(Debug, Clone)]
pub struct Clock {
    library: PathBuf,
    offset: PathBuf,
}

impl Clock {
    /// A clock that shows the true time.
    pub fn new(sandbox: &Sandbox) -> Result<Self> {
        let library = programs::debian("libfaketime", "usr/lib/*/faketime/libfaketimeMT.so.1")?;
        let clock = Self { library, offset: sandbox.directory("clock")?.join("offset") };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets the clock, for all that run by it: so many seconds ahead of the true time, or behind it.
    pub fn set(&self, seconds: i64) -> Result<()> {
        // By rename: a program that reads an empty file would see the year 1970.
        let next = self.offset.with_extension("next");
        std::fs::write(&next, format!("{seconds:+}\n"))
            .and_then(|()| std::fs::rename(&next, &self.offset))
            .with_context(|| format!("cannot set the clock {}", self.offset.display()))
    }

    /// The variables that have a program, and all that it starts, run by this clock.
    pub fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.display().to_string();
        [
            ("LD_PRELOAD", text(&self.library)),
            ("FAKETIME_TIMESTAMP_FILE", text(&self.offset)),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            // Times of files stay true: they come from the kernel, which has no such clock.
            ("NO_FAKE_STAT", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}
