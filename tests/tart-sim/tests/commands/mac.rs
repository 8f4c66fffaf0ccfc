//! A simulated Mac for one test.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde_json::Value;
use tart_kubelet_tests::sandbox::{MARKER, Sandbox};
use tart_sim::fault::{Fault, FaultDirectory};
use tempfile::TempDir;

/// A Mac with a user on it; all gone when dropped.
pub(crate) struct Mac {
    dir: TempDir,
}

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ended {
    /// The JSON on stdout of a command that has to succeed.
    pub(crate) fn json(&self) -> Value {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// The lines on stdout of a command that has to succeed.
    pub(crate) fn lines(&self) -> Vec<&str> {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{self:?}");
        self.stdout.lines().collect()
    }

    /// Checks that the command failed with this code and exactly these words.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, stderr: &str) {
        assert_eq!((self.code, self.stderr.trim_end_matches('\n')), (Some(code), stderr), "{self:?}");
    }
}

impl Mac {
    pub(crate) fn new() -> Self {
        let mac = Self { dir: tempfile::tempdir_in(Sandbox::shared().unwrap().path()).unwrap() };
        for dir in ["host/faults", "host/registry", "user"] {
            fs::create_dir_all(mac.path(dir)).unwrap();
        }
        // What is pruned must not depend on how full the disk is that the tests run on.
        mac.switch_on(Fault::Capacity, "100000");
        mac
    }

    /// A Mac whose registry has one image, `registry.example/team/mac:v1`.
    pub(crate) fn with_image(json: &str) -> Self {
        let mac = Self::new();
        mac.publish("team/mac/v1", json);
        mac
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.path("home")
    }

    pub(crate) fn vm(&self, name: &str) -> PathBuf {
        self.home().join("vms").join(name)
    }

    /// Puts an image into the registry.
    pub(crate) fn publish(&self, path: &str, json: &str) -> PathBuf {
        let dir = self.path("host/registry/registry.example").join(path);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("image.json"), json).unwrap();
        dir
    }

    pub(crate) fn switch_on(&self, fault: Fault, parameter: &str) {
        FaultDirectory::of_host(&self.path("host")).switch_on(&fault.into(), parameter).unwrap();
    }

    pub(crate) fn switch_off(&self, fault: Fault) {
        let was_on = FaultDirectory::of_host(&self.path("host")).switch_off(&fault.into()).unwrap();
        assert!(was_on, "{fault} is off");
    }

    /// A command that has yet to be started.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Sandbox::shared().unwrap().command(env!("CARGO_BIN_EXE_tart"));
        command
            .args(args)
            .current_dir(self.path("user"))
            .env_clear()
            .env(MARKER, Sandbox::shared().unwrap().path())
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path("user"))
            .env("CI", "1")
            .env("TART_HOME", self.home())
            .env("TART_SIM_HOST", self.path("host"));
        command
    }

    /// Runs a command to its end.
    pub(crate) fn tart(&self, args: &[&str]) -> Ended {
        self.command(args).output().unwrap().into()
    }

    /// Runs a command that has to succeed.
    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let ended = self.tart(args);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{args:?}: {ended:?}");
        ended.stdout
    }

    /// Creates a Linux VM, which takes no image.
    pub(crate) fn create(&self, name: &str) {
        self.ok(&["create", name, "--linux"]);
    }

    pub(crate) fn config(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.vm(name).join("config.json")).unwrap()).unwrap()
    }

    /// The names that `list` shows.
    pub(crate) fn names(&self) -> Vec<String> {
        self.ok(&["list", "-q"]).lines().map(str::to_owned).collect()
    }

    /// Pretends to be the `tart run` of a VM, until dropped.
    pub(crate) fn hold(&self, name: &str) -> File {
        let file = OpenOptions::new().read(true).write(true).open(self.vm(name).join("config.json")).unwrap();
        fcntl(&file, FcntlArg::F_SETLK(&write_lock())).unwrap();
        file
    }

    /// What is in `tmp`.
    pub(crate) fn tmp(&self) -> Vec<PathBuf> {
        fs::read_dir(self.home().join("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

/// The file's identity.
pub(crate) fn inode(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::unnecessary_cast,
    reason = "the types differ between systems"
)]
fn write_lock() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}
