//! What a guest may do to a share, for tests.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::dir::Dir;

/// Fills a directory with all that could lead astray or hold up whoever reads it.
pub(super) fn plant(dir: &Path, outside: &Path) {
    fs::write(dir.join("file"), "content").unwrap();
    fs::hard_link(dir.join("file"), dir.join("other name")).unwrap();
    symlink(outside, dir.join("link to a directory")).unwrap();
    symlink(outside.join("kept"), dir.join("link to a file")).unwrap();
    symlink("../../../..", dir.join("link up")).unwrap();
    symlink("loop", dir.join("loop")).unwrap();
    mkfifo(&dir.join("pipe"), Mode::S_IRWXU).unwrap();
    // A path to a socket must be short, and this directory's may not be.
    let _ = UnixListener::bind(dir.join("socket"));
    fs::write(dir.join("new\nline \u{1b}[31m"), "").unwrap();
    fs::write(dir.join("x".repeat(255)), "").unwrap();
}

/// Makes directories inside each other, so many that no path leads to the last.
pub(super) fn dig(root: &Path, levels: usize) {
    let name = "d".repeat(100);
    let mut dir = Dir::trusted(root).unwrap();
    for _ in 0..levels {
        dir.write(OsStr::new("file"), b"x", 0o600).unwrap();
        dir = dir.create(OsStr::new(&name), 0o755).unwrap();
    }
}

/// Turns a directory into a link and back, as fast as it can.
pub(super) struct Swapper {
    ended: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    /// Swaps `dir/name` for a link to `target`.
    pub(super) fn start(dir: &Path, name: &str, target: &Path) -> Self {
        let (ended, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (path, aside): (PathBuf, PathBuf) = (dir.join(name), dir.join("aside"));
        let target = target.to_owned();
        let thread = std::thread::spawn({
            let (ended, swaps) = (ended.clone(), swaps.clone());
            move || {
                // Bounded, so that whoever removes what it makes comes to an end.
                for _ in 0..500 {
                    if ended.load(Ordering::Relaxed) {
                        break;
                    }
                    let _ = fs::rename(&path, &aside);
                    let _ = symlink(&target, &path);
                    std::thread::yield_now();
                    let _ = fs::remove_file(&path);
                    let _ = fs::rename(&aside, &path);
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let swapper = Self { ended, swaps, thread: Some(thread) };
        while swapper.swaps.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        swapper
    }

    /// Ends it; the directory may be left in either form.
    pub(super) fn stop(mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}
