//! What a guest may do to a share, for tests.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::dir::Dir;

/// Fills a directory with all that could lead astray or hold up whoever reads it.
pub(crate) fn plant(dir: &Path, outside: &Path) {
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

/// A directory in which every user can make something.
pub(crate) fn place_for_all() -> tempfile::TempDir {
    let all = fs::Permissions::from_mode(0o777);
    // Sandboxes are closed to others.
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), all).unwrap();
    temp
}

/// Does something as a user who is not root, as an agent on a Mac is not; tests may run as root.
pub(crate) fn as_nobody<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let act = || {
        be_nobody();
        act()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

/// From now on this thread can do with files what any user can, and no more.
pub(crate) fn be_nobody() {
    #[cfg(target_os = "linux")]
    nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
}

thread_local! {
    static ATTACK: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// The agent is about to use a name: the moment for a guest to put something else there.
pub(super) fn moment() {
    if let Some(mut attack) = ATTACK.take() {
        attack();
        ATTACK.set(Some(attack));
    }
}

/// Tries an attack at every moment of what a victim does: before its first step, before its second one, and so on. `prepare`
/// sets the scene, `check` looks at it afterwards.
pub(crate) fn at_every_moment(
    prepare: impl Fn(),
    attack: impl Fn() + Clone + 'static,
    victim: impl Fn(),
    check: impl Fn(),
) {
    for chosen in 0.. {
        prepare();
        let struck = Rc::new(Cell::new(false));
        let strike = {
            let (attack, struck, mut passed) = (attack.clone(), struck.clone(), 0);
            move || {
                if passed == chosen {
                    attack();
                    struck.set(true);
                }
                passed += 1;
            }
        };
        ATTACK.set(Some(Box::new(strike)));
        victim();
        ATTACK.take();
        check();
        if !struck.get() {
            assert!(chosen > 3, "the victim did nothing that could be attacked");
            return;
        }
    }
}

/// Puts a link in the place of every directory in `root`, and of every directory in those.
pub(crate) fn bend(root: &Path, outside: &Path) {
    for level in [1, 0] {
        for dir in directories(root, level) {
            let mut aside = dir.clone().into_os_string();
            aside.push(".aside");
            let _ = fs::rename(&dir, aside).and_then(|()| symlink(outside, &dir));
        }
    }
}

/// The directories so many levels below those in `root`.
fn directories(root: &Path, level: u32) -> Vec<PathBuf> {
    let inside = fs::read_dir(root).into_iter().flatten().flatten();
    let here =
        inside.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path());
    if level == 0 { here.collect() } else { here.flat_map(|dir| directories(&dir, level - 1)).collect() }
}

/// Everything below a directory, with what is in the files.
pub(crate) fn snapshot(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            found.extend(snapshot(&path));
        }
        found.push((path.clone(), fs::read(&path).unwrap_or_default()));
    }
    found.sort();
    found
}

/// Turns a directory into a link and back, as fast as it can.
pub(crate) struct Swapper {
    ended: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    /// Swaps `dir/name` for a link to `target`.
    pub(crate) fn start(dir: &Path, name: &str, target: &Path) -> Self {
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
    pub(crate) fn stop(mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}
