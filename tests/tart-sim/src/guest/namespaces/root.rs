//! The guest's root file system: the image's files or the machine's programs, under what the guest wrote.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, pivot_root, sethostname};

use super::mounts::{bind, make_read_only, mount_at};
use super::shares;
use crate::guest::{Boot, layout};
use crate::home::config::Os;

/// The machine's directories that hold its programs.
const PROGRAMS: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// The directories of macOS, and of the machine's programs, that nothing can be created in.
const SEALED: &[&str] = &["System", "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Where users other than root find this binary: they must not read `/proc/1/exe`.
pub(super) const OWN_PROGRAM: &str = "/dev/.tart";

/// Where a guest has the clipboard that it shares with the Mac.
pub(in crate::guest) const CLIPBOARD: &str = "/dev/.clipboard";

/// Builds the guest's root file system from the current directory and makes it this process's root.
pub(super) fn enter(boot: &Boot, rootless: bool) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)?;
    sethostname(boot.host_name())?;
    mount_at(None, "/".as_ref(), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None)?;
    let root = Path::new("root");
    let files = Files { rootless };
    files.mount_base(root)?;
    layout::build(root, boot)?;
    if !brings_programs() {
        files.mount_machine(root, boot.os)?;
    }
    mount_devices(&root.join("dev"))?;
    if boot.uid != 0 {
        // Before `pivot_root`, while the machine's files are in sight.
        let place = root.join(OWN_PROGRAM.trim_start_matches('/'));
        File::create(&place)?;
        bind(&std::env::current_exe()?, &place)?;
    }
    if let Some(clipboard) = boot.clipboard.as_deref().filter(|clipboard| clipboard.exists()) {
        let place = root.join(CLIPBOARD.trim_start_matches('/'));
        File::create(&place)?;
        bind(clipboard, &place)?;
    }
    mount_processes(&root.join("proc"))?;
    shares::stage(root, boot)?;
    // The old root goes on top of the new one, so that unmounting the topmost leaves the new one alone.
    chdir(root)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")?;
    Ok(())
}

/// Whether the image has programs. A guest whose image has none uses the machine's.
fn brings_programs() -> bool {
    ["lower/bin", "lower/usr/bin"].iter().any(|path| Path::new(path).symlink_metadata().is_ok())
}

/// Makes the system's directories read-only, and leaves the rest writable.
pub(super) fn seal() -> io::Result<()> {
    let system: Vec<_> = SEALED.iter().map(|name| Path::new("/").join(name)).collect();
    for entry in fs::read_dir("/")? {
        let path = entry?.path();
        let is_own =
            !system.contains(&path) && !["/dev", "/proc"].iter().any(|kernels| path == Path::new(kernels));
        if is_own && path.symlink_metadata()?.is_dir() {
            bind(&path, &path)?;
        }
    }
    bind("/usr/local".as_ref(), "/usr/local".as_ref())?;
    for directory in system.iter().filter(|directory| is_mount_point(directory)) {
        make_read_only(directory)?;
    }
    // macOS has no files in `/dev` but devices.
    make_read_only("/dev".as_ref())?;
    make_read_only("/".as_ref())
}

/// The guest's files. Each mount has an upper directory for what the guest writes.
struct Files {
    rootless: bool,
}

impl Files {
    /// The image's files, if it brings any, under what this guest wrote.
    fn mount_base(&self, root: &Path) -> io::Result<()> {
        fs::create_dir_all(root)?;
        if Path::new("lower").is_dir() {
            return self.overlay("root", &["lower".into()], root);
        }
        fs::create_dir_all("upper/root")?;
        bind("upper/root".as_ref(), root)
    }

    /// The machine's programs and their settings, under what this guest wrote.
    fn mount_machine(&self, root: &Path, os: Os) -> io::Result<()> {
        for name in PROGRAMS {
            let machine = Path::new("/").join(name);
            let target = root.join(name);
            if let Ok(link) = fs::read_link(&machine) {
                if target.symlink_metadata().is_err() {
                    symlink(link, target)?;
                }
            } else if machine.is_dir() {
                layout::make_directory(root, name.as_ref())?;
                own_directories(name)?;
                self.overlay(name, &layers(&Path::new("lower").join(name), machine), &target)?;
            }
        }
        self.mount_settings(root, os)
    }

    fn mount_settings(&self, root: &Path, os: Os) -> io::Result<()> {
        let settings = match os {
            Os::Darwin => "private/etc",
            Os::Linux => "etc",
        };
        let target = root.join(settings);
        self.overlay("etc", &layers(&Path::new("lower").join(settings), "/etc".into()), &target)?;
        // On many machines it links to a directory that the guest does not have.
        if Path::new("/etc/resolv.conf").is_symlink()
            && !Path::new("lower").join(settings).join("resolv.conf").exists()
            && let Ok(content) = fs::read("/etc/resolv.conf")
        {
            let _ = fs::remove_file(target.join("resolv.conf"));
            fs::write(target.join("resolv.conf"), content)?;
        }
        Ok(())
    }

    /// Mounts an overlay. Relative paths need no escapes and are short enough.
    fn overlay(&self, name: &str, lowers: &[PathBuf], target: &Path) -> io::Result<()> {
        let (upper, work) = (Path::new("upper").join(name), Path::new("work").join(name));
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        let lowers: Vec<_> = lowers.iter().map(|lower| lower.display().to_string()).collect();
        let options = format!(
            "lowerdir={},upperdir={},workdir={},index=off{}",
            lowers.join(":"),
            upper.display(),
            work.display(),
            if self.rootless { ",userxattr" } else { "" }
        );
        mount_at(Some("overlay".as_ref()), target, Some("overlay"), MsFlags::empty(), Some(&options))
    }
}

/// Gives this guest directories of its own where it has to create files. Without a user id for the machine's root in
/// its namespace it could write to none of root's directories, not even in an overlay.
fn own_directories(name: &str) -> io::Result<()> {
    if name != "usr" {
        return Ok(());
    }
    fs::create_dir_all("upper/usr")?;
    let children = fs::read_dir("/usr/local").into_iter().flatten().flatten();
    let directories = children.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let local = directories.map(|entry| Path::new("local").join(entry.file_name()));
    for directory in ["bin".into(), "sbin".into(), "local".into()].into_iter().chain(local) {
        // Skips what the guest has put there instead.
        layout::make_directory("upper/usr".as_ref(), &directory)?;
    }
    Ok(())
}

fn layers(image: &Path, machine: PathBuf) -> Vec<PathBuf> {
    image.is_dir().then(|| image.to_owned()).into_iter().chain([machine]).collect()
}

/// The few devices that programs need, and terminals of the guest's own.
fn mount_devices(dev: &Path) -> io::Result<()> {
    mount_at(Some("dev".as_ref()), dev, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=755"))?;
    for name in ["full", "null", "random", "tty", "urandom", "zero"] {
        File::create(dev.join(name))?;
        bind(&Path::new("/dev").join(name), &dev.join(name))?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(target, dev.join(name))?;
    }
    for name in ["pts", "shm"] {
        fs::create_dir(dev.join(name))?;
    }
    fs::set_permissions(dev.join("shm"), Permissions::from_mode(0o1777))?;
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount_at(
        Some("devpts".as_ref()),
        &dev.join("pts"),
        Some("devpts"),
        quiet,
        Some("newinstance,ptmxmode=0666,mode=0620"),
    )
}

/// Mounts the guest's `/proc`. The settings of the machine's kernel in it are read-only.
fn mount_processes(proc: &Path) -> io::Result<()> {
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount_at(Some("proc".as_ref()), proc, Some("proc"), quiet, None)?;
    for switches in ["bus", "fs", "irq", "sys", "sysrq-trigger"].map(|name| proc.join(name)) {
        if switches.exists() {
            bind(&switches, &switches)?;
            make_read_only(&switches)?;
        }
    }
    Ok(())
}

fn is_mount_point(path: &Path) -> bool {
    let device = |path: &Path| {
        path.symlink_metadata().ok().filter(fs::Metadata::is_dir).map(|metadata| metadata.dev())
    };
    device(path).is_some_and(|own| device("/".as_ref()) != Some(own))
}
