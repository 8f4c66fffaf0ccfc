//! Programs of a macOS guest that this machine lacks, or must not run for real.

mod ln;
mod networksetup;
mod users;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::process::ExitCode;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::commands::INIT_PID;
use ln::ln;
use networksetup::networksetup;
use users::{chroot, sudo};

/// The signal by which init is told to power off.
pub(super) const POWER_OFF: Signal = Signal::SIGUSR2;

/// The signal by which init is told to reboot.
pub(super) const REBOOT: Signal = Signal::SIGTERM;

/// A program's body: from its arguments to its exit code.
type Program = fn(&[OsString]) -> ExitCode;

/// Every program, and the directory it lives in.
const PROGRAMS: &[(&str, &str, Program)] = &[
    ("/usr/bin", "sudo", sudo),
    ("/usr/bin", "pbcopy", pbcopy),
    ("/usr/bin", "pbpaste", pbpaste),
    ("/usr/bin", "sw_vers", sw_vers),
    ("/usr/sbin", "chroot", chroot),
    ("/usr/sbin", "networksetup", networksetup),
    ("/bin", "ln", ln),
    ("/sbin", "shutdown", shutdown),
    ("/sbin", "halt", halt),
    ("/sbin", "reboot", reboot),
    ("/sbin", "mount_tmpfs", mount_tmpfs),
    ("/sbin", "mount_virtiofs", mount_virtiofs),
    // Linux's `mount` calls it for this type of file system.
    ("/sbin", "mount.virtiofs", mount_dot_virtiofs),
];

/// The program of that name.
pub(super) fn find(name: &str) -> Option<Program> {
    PROGRAMS.iter().find(|(_, program, _)| *program == name).map(|(.., body)| *body)
}

/// Puts links to this binary where scripts expect the programs, and replaces what is there.
pub(super) fn install(own_program: &Path, place: impl Fn(&str) -> std::path::PathBuf) -> std::io::Result<()> {
    for (directory, name, _) in PROGRAMS {
        let directory = place(directory);
        let link = directory.join(name);
        if fs::read_link(&link).is_ok_and(|target| target == own_program) {
            continue;
        }
        fs::create_dir_all(&directory)?;
        // It may be missing.
        let _ = fs::remove_file(&link);
        symlink(own_program, &link)?;
    }
    Ok(())
}

/// Prints the macOS version of the guest.
fn sw_vers(words: &[OsString]) -> ExitCode {
    const FACTS: [(&str, &str, &str); 3] = [
        ("ProductName", "productName", "macOS"),
        ("ProductVersion", "productVersion", "26.3.1"),
        ("BuildVersion", "buildVersion", "25D2128"),
    ];
    let Some(wanted) = words.first().and_then(|word| word.to_str()) else {
        for (name, _, value) in FACTS {
            println!("{name}:\t\t{value}");
        }
        return ExitCode::SUCCESS;
    };
    match FACTS.iter().find(|(_, option, _)| wanted.trim_start_matches('-') == *option) {
        Some((.., value)) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        None => usage("sw_vers [--help|--productName|--productVersion|--productVersionExtra|--buildVersion]"),
    }
}

/// Prints the clipboard that the guest shares with the Mac.
fn pbpaste(_: &[OsString]) -> ExitCode {
    // A guest without the Mac's clipboard has an empty one of its own.
    let content = clipboard().and_then(|path| fs::read(path).ok()).unwrap_or_default();
    exit_code(&io::stdout().write_all(&content))
}

/// Replaces that clipboard.
fn pbcopy(_: &[OsString]) -> ExitCode {
    let mut content = Vec::new();
    let copied = io::stdin().read_to_end(&mut content);
    exit_code(&copied.and_then(|_| clipboard().map_or(Ok(()), |path| fs::write(path, content))))
}

fn exit_code(result: &io::Result<()>) -> ExitCode {
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(target_os = "linux")]
fn clipboard() -> Option<&'static Path> {
    Some(Path::new(super::namespaces::CLIPBOARD)).filter(|path| path.exists())
}

#[cfg(not(target_os = "linux"))]
fn clipboard() -> Option<&'static Path> {
    None
}

/// `shutdown -h now` and `shutdown -r now`.
fn shutdown(words: &[OsString]) -> ExitCode {
    let words: Vec<_> = words.iter().filter_map(|word| word.to_str()).collect();
    match words.as_slice() {
        ["-h" | "-P", "now" | "+0", ..] => tell_init(POWER_OFF),
        ["-r", "now" | "+0", ..] => tell_init(REBOOT),
        _ => usage("shutdown [-] [-h [-u] [-n] | -r [-n] | -s | -k] time [warning-message ...]"),
    }
}

fn halt(_: &[OsString]) -> ExitCode {
    tell_init(POWER_OFF)
}

fn reboot(_: &[OsString]) -> ExitCode {
    tell_init(REBOOT)
}

fn tell_init(signal: Signal) -> ExitCode {
    let told = match env::var(INIT_PID).ok().and_then(|id| id.parse().ok()) {
        Some(id) => kill(Pid::from_raw(id), signal).is_ok(),
        None => is_in_own_root() && kill(Pid::from_raw(1), signal).is_ok(),
    };
    if told {
        ExitCode::SUCCESS
    } else {
        eprintln!("shutdown: NOT super-user");
        ExitCode::FAILURE
    }
}

/// Whether this process is in a guest with files and processes of its own. Outside of one, the programs must not touch the
/// real machine. False for every user but root, who alone can tell.
pub(super) fn is_in_own_root() -> bool {
    env::var_os(INIT_PID).is_none() && is_own_binary("/proc/1/exe")
}

fn is_own_binary(path: &str) -> bool {
    let identity = |path: &str| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    identity(path).is_some_and(|theirs| identity("/proc/self/exe") == Some(theirs))
}

/// `mount_tmpfs [-s SIZE] DIRECTORY`.
fn mount_tmpfs(words: &[OsString]) -> ExitCode {
    const USAGE: &str = "mount_tmpfs [-o options] [-i | -e] [-n max_nodes] [-s max_mem_size] directory";
    let (mut size, mut directory) = (None, None);
    let mut words = words.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        match word {
            "-i" | "-e" => {}
            "-o" | "-n" => _ = words.next(),
            "-s" => match words.next().and_then(bytes) {
                Some(bytes) => size = Some(bytes),
                None => return usage(USAGE),
            },
            word if directory.is_none() && !word.starts_with('-') => directory = Some(word),
            _ => return usage(USAGE),
        }
    }
    let Some(directory) = directory else { return usage(USAGE) };
    match mount_memory(Path::new(directory), size) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("mount_tmpfs: {directory}: {message}");
            ExitCode::FAILURE
        }
    }
}

/// A number of bytes; a letter behind it is the unit.
fn bytes(text: &str) -> Option<u64> {
    let shift = match text.bytes().last()?.to_ascii_lowercase() {
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        b't' => 40,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(target_os = "linux")]
fn mount_memory(directory: &Path, size: Option<u64>) -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() || !is_in_own_root() {
        return Err("Operation not permitted".to_owned());
    }
    super::namespaces::mount_memory(directory, size)
}

#[cfg(not(target_os = "linux"))]
fn mount_memory(_: &Path, _: Option<u64>) -> Result<(), String> {
    Err("Operation not supported".to_owned())
}

/// `mount_virtiofs TAG DIRECTORY`.
fn mount_virtiofs(words: &[OsString]) -> ExitCode {
    let words: Vec<_> = words.iter().filter(|word| !word.as_encoded_bytes().starts_with(b"-")).collect();
    let [tag, directory] = words.as_slice() else {
        return usage("mount_virtiofs [-o options] fs_tag directory");
    };
    match mount_share(&tag.to_string_lossy(), Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("mount_virtiofs: {message}");
            ExitCode::FAILURE
        }
    }
}

/// `mount -t virtiofs TAG DIRECTORY`, in Linux.
fn mount_dot_virtiofs(words: &[OsString]) -> ExitCode {
    let [tag, directory, ..] = words else { return usage("mount.virtiofs tag directory [-o options]") };
    if mount_share(&tag.to_string_lossy(), Path::new(directory)).is_ok() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "mount: {}: wrong fs type, bad option, bad superblock on {}, missing codepage or helper program, or other error.",
        directory.display(),
        tag.display()
    );
    ExitCode::from(32)
}

#[cfg(target_os = "linux")]
fn mount_share(tag: &str, directory: &Path) -> Result<(), String> {
    super::namespaces::mount_share(tag, directory)
}

#[cfg(not(target_os = "linux"))]
fn mount_share(_: &str, directory: &Path) -> Result<(), String> {
    Err(format!("{}: Operation not supported", directory.display()))
}

fn usage(text: &str) -> ExitCode {
    eprintln!("usage: {text}");
    ExitCode::from(64)
}
