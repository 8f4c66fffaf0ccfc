//! The Mac's programs: those that are simulated, and the machine's, as far as a Mac has them too.

mod accounts;
mod bsd;
mod codesign;
mod defaults;
mod energy;
pub(super) mod host_facts;
pub(super) mod loginwindow;
pub(super) mod names;
mod network;
mod newsyslog;
mod plutil;
mod strict;
mod sudo;
mod sudoers;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use mac_sim::control::{Reply, Request, ask};
use mac_sim::fault::{Fault, FaultDirectory, FaultError, REFUSED};
use mac_sim::settings::{LINUX, SIMULATOR};

use super::{launchctl, root};

/// What a program does with its arguments.
type Program = fn(&[String]) -> ExitCode;

/// The simulated programs, and the directories in which macOS has them.
const SIMULATED: &[(&str, &str, Program)] = &[
    ("bin", "hostname", names::hostname),
    ("bin", "launchctl", launchctl::main),
    ("sbin", "halt", energy::halt),
    ("sbin", "reboot", energy::reboot),
    ("sbin", "shutdown", energy::shutdown),
    ("usr/bin", "arch", host_facts::arch),
    ("usr/bin", "caffeinate", energy::caffeinate),
    ("usr/bin", "codesign", codesign::main),
    ("usr/bin", "defaults", defaults::main),
    ("usr/bin", "dscl", accounts::dscl),
    ("usr/bin", "install", bsd::install),
    ("usr/bin", "mktemp", bsd::mktemp),
    ("usr/bin", "plutil", plutil::main),
    ("usr/bin", "pmset", energy::pmset),
    ("usr/bin", "security", accounts::security),
    ("usr/bin", "sed", bsd::sed),
    ("usr/bin", "shasum", bsd::shasum),
    ("usr/bin", "stat", bsd::stat),
    ("usr/bin", "sudo", sudo::main),
    ("usr/bin", "sw_vers", host_facts::sw_vers),
    ("usr/bin", "uname", host_facts::uname),
    ("usr/bin", "xattr", codesign::xattr),
    ("usr/sbin", "networksetup", network::networksetup),
    ("usr/sbin", "newsyslog", newsyslog::main),
    ("usr/sbin", "scutil", names::scutil),
    ("usr/sbin", "softwareupdate", network::softwareupdate),
    ("usr/sbin", "sysadminctl", accounts::sysadminctl),
    ("usr/sbin", "sysctl", host_facts::sysctl),
    ("usr/sbin", "systemsetup", energy::systemsetup),
    ("usr/sbin", "visudo", sudoers::visudo),
];

/// Puts the Mac's programs into its root.
pub(super) fn install(root: &Path) -> io::Result<()> {
    let own = Path::new(SIMULATOR).join("mac-sim");
    for (directory, name, _) in SIMULATED {
        let program = if *name == "sudo" { Path::new(root::SETUID).join("sudo") } else { own.clone() };
        symlink(program, root.join(directory).join(name))?;
    }
    let loginwindow = root.join(loginwindow::PROGRAM.trim_start_matches('/'));
    fs::create_dir_all(loginwindow.parent().unwrap_or(root))?;
    symlink(&own, loginwindow)?;
    strict::install(root)
}

/// Where one of the machine's programs is inside the Mac; `None` if the machine does not have it.
pub(super) fn machine(name: &str) -> Option<PathBuf> {
    let places = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(|directory| Path::new(directory).join(name));
    let found = places.iter().find_map(|path| path.canonicalize().ok())?;
    Some(Path::new(LINUX).join(found.strip_prefix("/").ok()?))
}

/// Runs a program by its name.
pub(super) fn run(name: &str, words: &[OsString]) -> ExitCode {
    if name == "loginwindow" {
        return loginwindow::main();
    }
    if let Some(code) = strict::run(name, words) {
        return code;
    }
    let Some((_, _, program)) = SIMULATED.iter().find(|(_, known, _)| *known == name) else {
        eprintln!("mac-sim: {name} is not simulated");
        return ExitCode::from(REFUSED);
    };
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    match before(name, &words) {
        Ok(None) => program(&words),
        Ok(Some(code)) => code,
        Err(error) => {
            eprintln!("mac-sim: {error}");
            ExitCode::from(REFUSED)
        }
    }
}

/// Notes the call, and applies the faults of calls. Returns the exit code of a call that is to do nothing.
fn before(name: &str, words: &[String]) -> Result<Option<ExitCode>, FaultError> {
    let call: Vec<_> = std::iter::once(name.to_owned()).chain(words.iter().cloned()).collect();
    let path = Path::new(SIMULATOR).join("calls");
    let line = call.iter().map(|word| word.replace('\n', "\\n")).collect::<Vec<_>>().join(" ") + "\n";
    let noted = File::options().append(true).open(&path).and_then(|mut file| file.write_all(line.as_bytes()));
    noted.map_err(|source| FaultError::Io { path, source })?;
    let faults = FaultDirectory::of_this_mac();
    faults.check()?;
    if let Ok(Err(refusal)) = launchd(&Request::Called(call.clone())) {
        eprintln!("{}", refusal.detail);
        return Ok(Some(ExitCode::from(refusal.code)));
    }
    while faults.hits_call(Fault::Hang, &call)? {
        // The only signal that ends it is SIGKILL: a hanging program does not listen to the others.
        nix::sys::signal::SigSet::all().thread_block().ok();
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(faults.hits_call(Fault::Fail, &call)?.then_some(ExitCode::FAILURE))
}

/// Asks launchd.
fn launchd(request: &Request) -> io::Result<Result<Reply, mac_sim::control::Refusal>> {
    ask(&Path::new(SIMULATOR).join("launchd.sock"), request, None)
}

/// Refuses what the real program can do and the simulated one cannot.
fn not_simulated(program: &str, words: &[String]) -> ExitCode {
    eprintln!("mac-sim: {program} {} is not simulated", words.join(" "));
    ExitCode::from(REFUSED)
}

/// Whether this process has the rights of root.
fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
