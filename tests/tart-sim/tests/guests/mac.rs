//! A simulated Mac for one test, and VMs on it that are gone when the test ends, however it ends.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use tart_kubelet_tests::sandbox::Sandbox;
use tart_sim::fault::{FaultDirectory, FaultFile};
use tempfile::TempDir;

/// The deadline for what takes milliseconds on an idle machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until `look` finds something.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        // Leave the processor to the process that the test waits for.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Writes a file of the first user of the Mac.
pub(crate) fn write_shared(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    give_to_first_user(path);
}

/// Only root can give files away. Without root, guests are their host's user.
fn give_to_first_user(path: &Path) {
    if geteuid().is_root() {
        chown(path, Some(501), None).unwrap();
    }
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// The exit code; panics if a signal ended the command.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("{self:?}"))
    }

    /// Standard output of a command that succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert!(self.status.success(), "{self:?}");
        self.stdout
    }

    /// Checks exit code and the whole of standard error.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, stderr: &str) {
        assert_eq!((self.status.code(), self.stderr.as_str()), (Some(code), stderr), "{self:?}");
    }

    /// Checks exit code and how standard error begins.
    #[track_caller]
    pub(crate) fn refuses(&self, code: i32, stderr: &str) {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        assert!(self.stderr.starts_with(stderr), "{self:?}");
    }
}

/// A Mac with one user.
#[derive(Debug)]
pub(crate) struct Mac {
    dir: TempDir,
}

impl Mac {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir_in(Sandbox::shared().unwrap().path()).unwrap();
        fs::create_dir_all(dir.path().join("host/faults")).unwrap();
        Self { dir }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn host(&self) -> PathBuf {
        self.path().join("host")
    }

    /// A directory of the host, made for this test. It is that of the first user of the Mac, as the guest's is of the guest.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(&path).unwrap();
        give_to_first_user(&path);
        path
    }

    pub(crate) fn vm_dir(&self, vm: &str) -> PathBuf {
        self.path().join("home/vms").join(vm)
    }

    /// Puts a file into the image that a VM was made from.
    pub(crate) fn add_file(&self, vm: &str, path: &str, text: &str) {
        let path = self.vm_dir(vm).join("guest/lower").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Sandbox::shared().unwrap().command(env!("CARGO_BIN_EXE_tart"));
        command
            .args(words)
            .env("TART_HOME", self.path().join("home"))
            .env("TART_SIM_HOST", self.host())
            .env_remove("CI");
        command
    }

    pub(crate) fn tart(&self, words: &[&str]) -> Outcome {
        outcome(self.command(words).stdin(Stdio::null()))
    }

    pub(crate) fn tart_with_input(&self, words: &[&str], input: &[u8]) -> Outcome {
        let mut command = self.command(words);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        Outcome {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into(),
            stderr: String::from_utf8_lossy(&output.stderr).into(),
        }
    }

    /// Runs a shell script in a guest.
    pub(crate) fn sh(&self, vm: &str, script: &str) -> Outcome {
        self.tart(&["exec", vm, "sh", "-c", script])
    }

    pub(crate) fn create(&self, vm: &str) {
        self.tart(&["create", vm, "--from-ipsw", "latest"]).ok();
    }

    pub(crate) fn create_linux(&self, vm: &str) {
        self.tart(&["create", vm, "--linux"]).ok();
    }

    /// Writes what an image says of its guest.
    pub(crate) fn set_image(&self, vm: &str, json: &str) {
        let guest = self.vm_dir(vm).join("guest");
        fs::create_dir_all(&guest).unwrap();
        fs::write(guest.join("image.json"), json).unwrap();
    }

    pub(crate) fn switch_on(&self, fault: impl Into<FaultFile>, parameter: &str) {
        FaultDirectory::of_host(&self.host()).switch_on(&fault.into(), parameter).unwrap();
    }

    pub(crate) fn switch_off(&self, fault: impl Into<FaultFile>) {
        assert!(FaultDirectory::of_host(&self.host()).switch_off(&fault.into()).unwrap(), "the fault is off");
    }

    /// Creates a macOS VM, runs it and waits until its agent answers.
    pub(crate) fn boot(&self, vm: &str) -> Running {
        self.create(vm);
        let running = self.run(&[vm]);
        self.wait_for_agent(vm);
        running
    }

    /// Runs a VM in the background.
    pub(crate) fn run(&self, words: &[&str]) -> Running {
        self.run_with(self.command(&[&["run", "--no-graphics"], words].concat()))
    }

    pub(crate) fn run_with(&self, mut command: Command) -> Running {
        let log = tempfile::NamedTempFile::new_in(self.path()).unwrap().into_temp_path().keep().unwrap();
        let (stdout, stderr) = (log.with_extension("stdout"), log.with_extension("stderr"));
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        Running { child, stdout, stderr }
    }

    pub(crate) fn wait_for_agent(&self, vm: &str) {
        eventually("the agent answers", || self.tart(&["exec", vm, "true"]).status.success().then_some(()));
    }

    pub(crate) fn wait_until_running(&self, vm: &str) {
        eventually("the VM runs", || {
            self.tart(&["get", vm, "--format", "json"]).ok().contains("\"running\"").then_some(())
        });
    }

    /// Runs a VM until it ends by itself.
    pub(crate) fn run_to_the_end(&self, words: &[&str]) -> Outcome {
        self.run(words).end()
    }
}

/// How many processes of the machine have this in their command lines.
#[cfg(target_os = "linux")]
pub(crate) fn processes_with(text: &str) -> usize {
    let mut count = 0;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        count += usize::from(String::from_utf8_lossy(&arguments).contains(text));
    }
    count
}

fn outcome(command: &mut Command) -> Outcome {
    let output = command.output().unwrap();
    Outcome {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into(),
        stderr: String::from_utf8_lossy(&output.stderr).into(),
    }
}

/// A `tart run` in the background, killed when dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn stdout(&self) -> String {
        fs::read_to_string(&self.stdout).unwrap()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Outcome {
        let status = eventually("tart run ends", || self.child.try_wait().unwrap());
        Outcome { status, stdout: self.stdout(), stderr: fs::read_to_string(&self.stderr).unwrap() }
    }

    /// Kills it as the kernel would, and waits for it.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if `tart run` has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
