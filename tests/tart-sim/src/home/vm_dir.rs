//! One VM's directory: its files, its locks, its sizes.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use tart_sim::Fault;

use crate::error::{Error, Result};
use crate::home::config::Config;
use crate::home::copy;
use crate::home::image::Image;
use crate::host::faults;
use crate::output::file_error;
use crate::{interrupt, version};

/// How often a stalled copy looks whether the fault is gone.
const POLL: Duration = Duration::from_millis(20);

/// The state that `list` and `get` show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Some process holds the lock on `config.json`.
    Running,
    /// A snapshot of its memory is on disk.
    Suspended,
    /// Neither.
    Stopped,
}

impl State {
    /// The word in the output.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Stopped => "stopped",
        }
    }
}

/// The lock that makes a VM run: `F_WRLCK` on `config.json`, lost when this process closes *any* descriptor of that
/// file. Read the configuration before taking it, never while holding it.
#[derive(Debug)]
pub(crate) struct RunLock {
    _file: File,
}

/// One VM's directory, local or in the image cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmDir {
    path: PathBuf,
}

impl VmDir {
    /// The VM directory at this path, whether or not there is anything.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes this the process's directory, since the path of a socket is limited in length. tart passes the directory's path as
    /// it is in a URL: if that has to escape a character, the directory is not found, and tart goes on where it is.
    pub(crate) fn enter(&self) {
        let _ = env::set_current_dir(self.path_in_url());
    }

    /// The path as a URL has it.
    fn path_in_url(&self) -> PathBuf {
        let escaped =
            self.path.as_os_str().as_encoded_bytes().iter().fold(String::new(), |mut url, &byte| {
                if byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,=:@".contains(&byte) {
                    url.push(byte.into());
                } else {
                    // Writing to a string cannot fail.
                    let _ = write!(url, "%{byte:02X}");
                }
                url
            });
        escaped.into()
    }

    /// The socket by which the host's programs reach the guest agent, as a path from the directory that `enter` leads to.
    pub(crate) fn control_socket_path(&self) -> PathBuf {
        // Releases before 2.30.6 have no such directory.
        if version::at_least((2, 30, 6)) { "control.sock".into() } else { self.path.join("control.sock") }
    }

    /// Removes the socket that an earlier `run` has left, by the same path.
    pub(crate) fn remove_control_socket(&self) {
        let _ = fs::remove_file(self.path_in_url().join("control.sock"));
    }

    /// The VM's configuration; also the file whose lock means "running".
    pub(crate) fn config_path(&self) -> PathBuf {
        self.path.join("config.json")
    }

    /// The disk image, a sparse file.
    pub(crate) fn disk_path(&self) -> PathBuf {
        self.path.join("disk.img")
    }

    /// The auxiliary storage.
    pub(crate) fn nvram_path(&self) -> PathBuf {
        self.path.join("nvram.bin")
    }

    /// The memory of a suspended VM.
    pub(crate) fn state_path(&self) -> PathBuf {
        self.path.join("state.vzvmsave")
    }

    /// Everything of the simulated guest, which real VMs keep inside their disk image.
    pub(crate) fn guest_path(&self) -> PathBuf {
        self.path.join("guest")
    }

    /// The image's files, never written to; absent when the image brings none.
    pub(crate) fn guest_lower_path(&self) -> PathBuf {
        self.guest_path().join("lower")
    }

    /// What this VM's guest wrote.
    pub(crate) fn guest_upper_path(&self) -> PathBuf {
        self.guest_path().join("upper")
    }

    /// The image's description, which a clone keeps.
    pub(crate) fn image_path(&self) -> PathBuf {
        self.guest_path().join("image.json")
    }

    /// What the image says about its guest; all defaults when there is no image.
    pub(crate) fn image(&self) -> Image {
        Image::read(&self.image_path()).unwrap_or_default()
    }

    /// Whether all the files of a VM are there.
    pub(crate) fn is_initialized(&self) -> bool {
        self.config_path().exists() && self.disk_path().exists() && self.nvram_path().exists()
    }

    /// Refuses a directory that is missing, or that lacks files of a VM.
    pub(crate) fn validate(&self, name: &str) -> Result<()> {
        if !self.path.exists() {
            return Err(Error::vm_does_not_exist(name));
        }
        if !self.is_initialized() {
            return Err(Error::runtime(if version::is_snapshot() {
                "VM is missing files for a supported layout: standalone requires config.json, disk.img and nvram.bin; \
                 stacked requires config.json, manifest.json, overlay.asif and nvram.bin"
            } else {
                "VM is missing some of its files (config.json, disk.img or nvram.bin)"
            }));
        }
        Ok(())
    }

    /// Reads the configuration. Not to be called by the process that holds the [`RunLock`].
    pub(crate) fn config(&self) -> io::Result<Config> {
        Config::read(&self.config_path())
    }

    /// The process that runs this VM. A file that cannot be opened for writing counts as not running.
    pub(crate) fn running_pid(&self) -> Option<i32> {
        let file = OpenOptions::new().read(true).write(true).open(self.config_path()).ok()?;
        let mut lock = whole_file(lock_kind::READ);
        fcntl(&file, FcntlArg::F_GETLK(&mut lock)).ok()?;
        (lock.l_type != lock_kind::NONE && lock.l_pid != 0).then_some(lock.l_pid)
    }

    /// Whether some process runs this VM.
    pub(crate) fn is_running(&self) -> bool {
        self.running_pid().is_some()
    }

    /// Takes the lock that makes this VM run. `None` if another process has it.
    pub(crate) fn lock_for_running(&self) -> io::Result<Option<RunLock>> {
        let file = OpenOptions::new().read(true).write(true).open(self.config_path())?;
        match fcntl(&file, FcntlArg::F_SETLK(&whole_file(lock_kind::WRITE))) {
            Ok(_) => Ok(Some(RunLock { _file: file })),
            Err(nix::Error::EAGAIN | nix::Error::EACCES) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Running, suspended or stopped.
    pub(crate) fn state(&self) -> State {
        if self.is_running() {
            State::Running
        } else if self.state_path().exists() {
            State::Suspended
        } else {
            State::Stopped
        }
    }

    /// The logical size in bytes.
    pub(crate) fn size(&self) -> io::Result<u64> {
        self.sum_of_files(fs::Metadata::len)
    }

    /// The allocated size in bytes: what the image says it would be, else what the files really take.
    pub(crate) fn allocated_size(&self) -> io::Result<u64> {
        match self.image().allocated_bytes() {
            Some(bytes) => Ok(bytes),
            None => self.sum_of_files(|metadata| metadata.blocks() * 512),
        }
    }

    fn sum_of_files(&self, size: impl Fn(&fs::Metadata) -> u64) -> io::Result<u64> {
        [self.config_path(), self.disk_path(), self.nvram_path()]
            .iter()
            .map(|path| fs::metadata(path).map(|metadata| size(&metadata)))
            .sum()
    }

    /// When a command last opened this VM.
    pub(crate) fn access_date(&self) -> io::Result<SystemTime> {
        fs::metadata(&self.path)?.accessed()
    }

    /// Sets the date by which `prune` decides.
    pub(crate) fn set_access_date(&self, date: SystemTime) -> io::Result<()> {
        let times = fs::FileTimes::new().set_accessed(date).set_modified(date);
        File::open(&self.path)?.set_times(times)
    }

    /// Marks this VM as used now.
    pub(crate) fn touch(&self) -> io::Result<()> {
        self.set_access_date(SystemTime::now())
    }

    /// Copies everything that makes up this VM into an empty directory, in the order of the real tart.
    pub(crate) fn copy_to(&self, target: &Self) -> Result<()> {
        let failed =
            |file: &Path, error: io::Error| Error::other(file_error::copying(file, target.path(), &error));
        let copy = |from: PathBuf, to: PathBuf| copy::file(&from, &to).map_err(|error| failed(&from, error));
        copy(self.config_path(), target.config_path())?;
        copy(self.nvram_path(), target.nvram_path())?;
        while faults::is_on(Fault::StallCopy) {
            interrupt::sleep(POLL)?;
        }
        if faults::is_on_for(Fault::NoSpace, "clone") {
            return Err(failed(&self.disk_path(), io::ErrorKind::StorageFull.into()));
        }
        copy(self.disk_path(), target.disk_path())?;
        if self.state_path().exists() {
            copy(self.state_path(), target.state_path())?;
        }
        self.copy_guest_to(target).map_err(|error| failed(&self.disk_path(), error))
    }

    /// Copies the guest's file system, which is part of a real VM's disk image.
    fn copy_guest_to(&self, target: &Self) -> io::Result<()> {
        fs::create_dir_all(target.guest_path())?;
        if self.image_path().exists() {
            copy::file(&self.image_path(), &target.image_path())?;
        }
        if self.guest_lower_path().exists() {
            copy::link_tree(&self.guest_lower_path(), &target.guest_lower_path())?;
        }
        if self.guest_upper_path().exists() {
            copy::tree(&self.guest_upper_path(), &target.guest_upper_path())?;
        }
        Ok(())
    }

    /// Makes the disk image this large, in bytes.
    pub(crate) fn resize_disk(&self, bytes: u64) -> io::Result<()> {
        OpenOptions::new().write(true).create(true).truncate(false).open(self.disk_path())?.set_len(bytes)
    }
}

/// The kinds of lock have another integer type on Linux than on macOS, and in either place another than the field.
#[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast, reason = "the values are 0 to 3")]
mod lock_kind {
    use nix::libc;

    pub(super) const READ: libc::c_short = libc::F_RDLCK as libc::c_short;
    pub(super) const WRITE: libc::c_short = libc::F_WRLCK as libc::c_short;
    pub(super) const NONE: libc::c_short = libc::F_UNLCK as libc::c_short;
    pub(super) const FROM_START: libc::c_short = libc::SEEK_SET as libc::c_short;
}

fn whole_file(kind: libc::c_short) -> libc::flock {
    libc::flock { l_type: kind, l_whence: lock_kind::FROM_START, l_start: 0, l_len: 0, l_pid: 0 }
}
