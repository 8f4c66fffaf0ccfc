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

/// Fills a directory with entries that mislead or block a reader.
pub(crate) fn fill(dir: &Path, outside: &Path) {
    fs::write(dir.join("file"), "content").unwrap();
    fs::hard_link(dir.join("file"), dir.join("other name")).unwrap();
    symlink(outside, dir.join("link to a directory")).unwrap();
    symlink(outside.join("kept"), dir.join("link to a file")).unwrap();
    symlink("../../../..", dir.join("link up")).unwrap();
    symlink("loop", dir.join("loop")).unwrap();
    mkfifo(&dir.join("pipe"), Mode::S_IRWXU).unwrap();
    // It fails if the path of the directory is too long for a socket.
    let _ = UnixListener::bind(dir.join("socket"));
    fs::write(dir.join("new\nline \u{1b}[31m"), "").unwrap();
    fs::write(dir.join("x".repeat(255)), "").unwrap();
}

/// Creates so many directories inside each other that no path leads to the last.
pub(super) fn nest(root: &Path, levels: usize) {
    let name = "d".repeat(100);
    let mut dir = Dir::trusted(root).unwrap();
    for _ in 0..levels {
        dir.write(OsStr::new("file"), b"x", 0o600).unwrap();
        dir = dir.create(OsStr::new(&name), 0o755).unwrap();
    }
}

/// A directory to which every user can write.
pub(crate) fn world_writable_dir() -> tempfile::TempDir {
    let all = fs::Permissions::from_mode(0o777);
    // Other users cannot enter the sandbox.
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), all).unwrap();
    temp
}

/// Runs `act` as a user who is not root, like the agent on a Mac. Tests may run as root.
pub(crate) fn as_nobody<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let act = || {
        be_nobody();
        act()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

/// From now on this thread has the file permissions of `nobody`.
pub(crate) fn be_nobody() {
    #[cfg(target_os = "linux")]
    nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
}

thread_local! {
    static ATTACK: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// The agent is about to use a name: runs the attack of the test, if any.
pub(super) fn attack() {
    if let Some(mut attack) = ATTACK.take() {
        attack();
        ATTACK.set(Some(attack));
    }
}

/// Tries an attack before each step of the victim: before its first one, before its second one, and so on. `prepare` runs before each try,
/// `check` after it.
pub(crate) fn at_every_moment(
    prepare: impl Fn(),
    attack: impl Fn() + Clone + 'static,
    victim: impl Fn(),
    check: impl Fn(),
) {
    for chosen in 0.. {
        prepare();
        let has_attacked = Rc::new(Cell::new(false));
        let step = {
            let (attack, has_attacked, mut passed) = (attack.clone(), has_attacked.clone(), 0);
            move || {
                if passed == chosen {
                    attack();
                    has_attacked.set(true);
                }
                passed += 1;
            }
        };
        ATTACK.set(Some(Box::new(step)));
        victim();
        ATTACK.take();
        check();
        if !has_attacked.get() {
            assert!(chosen > 3, "the victim had no steps to attack");
            return;
        }
    }
}

/// The attack that replaces every directory in `root`, and every directory in those, by a link.
pub(crate) fn replace_by_links(root: &Path, outside: &Path) -> impl Fn() + Clone + use<> {
    let (root, outside) = (root.to_owned(), outside.to_owned());
    move || {
        for dir in [1, 0].into_iter().flat_map(|level| directories(&root, level)) {
            let mut aside = dir.clone().into_os_string();
            aside.push(".aside");
            let _ = fs::rename(&dir, aside).and_then(|()| symlink(&outside, &dir));
        }
    }
}

/// The directories `level` levels below those in `root`.
fn directories(root: &Path, level: u32) -> Vec<PathBuf> {
    let inside = fs::read_dir(root).into_iter().flatten().flatten();
    let here =
        inside.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path());
    if level == 0 { here.collect() } else { here.flat_map(|dir| directories(&dir, level - 1)).collect() }
}

/// All entries below a directory, with the content of the files.
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
                // Bounded, so that the removal of its directory ends.
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
