//! xpcproxy: the process that launchd starts for a job, and that becomes the job's program.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use mac_sim::settings::{LINUX, TART_HOST};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Group, User, dup2_stderr, dup2_stdin, dup2_stdout, getpid, initgroups, setgid, setuid};
use serde::{Deserialize, Serialize};

use super::definition::Definition;
use crate::mac::signature;

/// What xpcproxy tells launchd when the kernel would kill the program because of its signature.
pub(super) const CODESIGN: &str = "codesign";
/// The exit code of a job whose program cannot be started: `EX_CONFIG` of sysexits.h.
const EX_CONFIG: u8 = 78;
/// The number of files that a job may have open if it says nothing of it.
const SOFT_FILES: u64 = 256;

/// The search path of jobs that set none.
pub(in crate::mac) const PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin";

/// A job as xpcproxy needs it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    label: String,
    program: PathBuf,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    user: Option<String>,
    group: Option<String>,
    working_directory: Option<PathBuf>,
    stdin: Option<PathBuf>,
    stdout: Option<PathBuf>,
    stderr: Option<PathBuf>,
    umask: Option<u32>,
    nice: Option<i32>,
    soft_files: u64,
    hard_files: Option<u64>,
    is_killed_by_signature: bool,
}

impl Spec {
    pub(super) fn of(job: &Definition, user: Option<String>, is_killed_by_signature: bool) -> Self {
        Self {
            label: job.label.clone(),
            program: job.program.clone(),
            arguments: job.arguments.clone(),
            environment: environment(job),
            user,
            group: job.group.clone(),
            working_directory: job.working_directory.clone(),
            stdin: job.stdin.clone(),
            stdout: job.stdout.clone(),
            stderr: job.stderr.clone(),
            umask: job.umask,
            nice: job.nice,
            soft_files: job.soft_files.unwrap_or(SOFT_FILES),
            hard_files: job.hard_files,
            is_killed_by_signature,
        }
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }
}

/// The variables of a job: few, unless it sets more.
pub(super) fn environment(job: &Definition) -> BTreeMap<String, String> {
    let own = [("PATH", PATH), ("XPC_FLAGS", "0x0"), ("XPC_SERVICE_NAME", &job.label)];
    let mut all: BTreeMap<_, _> = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    all.extend(job.environment.clone());
    all
}

/// Becomes the program of the job that stdin describes.
pub(in crate::mac) fn main() -> ExitCode {
    let mut text = String::new();
    let spec = io::stdin().read_to_string(&mut text).and_then(|_| Ok(serde_json::from_str::<Spec>(&text)?));
    let told = match spec.and_then(|spec| become_job(&spec)) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    // launchd writes it to the Mac's log. The job's own log says nothing, as on a real Mac.
    let _ = write!(io::stdout(), "{told}");
    ExitCode::from(EX_CONFIG)
}

enum Never {}

fn become_job(spec: &Spec) -> io::Result<Never> {
    spec.program.metadata().map_err(told(&spec.program))?;
    if spec.is_killed_by_signature || signature::execution(&spec.program)?.is_killed() {
        write!(io::stdout(), "{CODESIGN}")?;
        io::stdout().flush()?;
        kill(getpid(), Signal::SIGKILL)?;
    }
    set_limits(spec)?;
    if let Some(mask) = spec.umask {
        umask(Mode::from_bits_truncate(mask));
    }
    let mut command = Command::new(&spec.program);
    if let Some(nice) = spec.nice {
        // There is no safe call for it; the machine's program does it for its own process and those that it starts.
        command = Command::new(Path::new(LINUX).join("usr/bin/nice"));
        command.arg(format!("-n{nice}")).arg(&spec.program);
    } else if let Some(name) = spec.arguments.first() {
        command.arg0(name);
    }
    command.args(spec.arguments.iter().skip(1)).env_clear().envs(&spec.environment);
    // They stand for the Mac's hardware, and no job can do without it.
    command.env("TART_SIM_HOST", TART_HOST).env("TART_SIM_MACHINE", LINUX);
    if let Some(user) = &spec.user {
        become_user(user, spec.group.as_deref())?;
    }
    let directory = spec.working_directory.as_deref().unwrap_or(Path::new("/"));
    std::env::set_current_dir(directory).map_err(told(directory))?;
    let null = Path::new("/dev/null");
    let input = spec.stdin.as_deref().unwrap_or(null);
    let (output, errors) = (open(spec.stdout.as_deref()), open(spec.stderr.as_deref()));
    let (input, output, errors) = (File::open(input).map_err(told(input))?, output?, errors?);
    // Until here stdout was the pipe to launchd. `exec` closes the copy, so that launchd hears of a failure and of nothing else.
    let pipe = std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?;
    dup2_stdin(input)?;
    dup2_stdout(output)?;
    dup2_stderr(errors)?;
    let error = command.exec();
    dup2_stdout(pipe)?;
    Err(told(&spec.program)(error))
}

/// Puts a path before what went wrong with it.
fn told(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::other(format!("{}: {error}", path.display()))
}

/// Opens what a job writes to. What it did not name goes nowhere.
fn open(path: Option<&Path>) -> io::Result<File> {
    let path = path.unwrap_or(Path::new("/dev/null"));
    let opened = File::options().create(true).append(true).open(path);
    opened.map_err(told(path))
}

fn set_limits(spec: &Spec) -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let hard = spec.hard_files.map_or(hard, |wanted| wanted.min(hard));
    Ok(setrlimit(Resource::RLIMIT_NOFILE, spec.soft_files.min(hard), hard)?)
}

fn become_user(name: &str, group: Option<&str>) -> io::Result<()> {
    let user = User::from_name(name)?.ok_or_else(|| io::Error::other(format!("no user {name}")))?;
    let gid = match group {
        Some(group) => {
            Group::from_name(group)?.ok_or_else(|| io::Error::other(format!("no group {group}")))?.gid
        }
        None => user.gid,
    };
    let name = std::ffi::CString::new(name)?;
    initgroups(&name, gid)?;
    setgid(gid)?;
    Ok(setuid(user.uid)?)
}
