//! The files of a Mac that has just been unpacked: made once, before its first boot.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use mac_sim::settings::{ADMIN, GID, HostDirectory, LINUX, SIMULATOR, Settings, TART_HOST, UID};

use super::{programs, sshd};

/// Directories of root, with their modes. `/usr/local` is there, `/usr/local/bin` is not: so it is on a new Mac.
const DIRECTORIES: &[(&str, u32)] = &[
    ("Applications", 0o775),
    ("Library/LaunchAgents", 0o755),
    ("Library/LaunchDaemons", 0o755),
    ("Library/Preferences/SystemConfiguration", 0o755),
    ("System/Library/LaunchDaemons", 0o755),
    ("Users", 0o755),
    ("Volumes", 0o755),
    ("bin", 0o755),
    ("dev", 0o755),
    ("opt", 0o755),
    ("private/etc/newsyslog.d", 0o755),
    ("private/etc/pf.anchors", 0o755),
    ("private/etc/ssh/sshd_config.d", 0o755),
    ("private/etc/sudoers.d", 0o755),
    ("private/tmp", 0o1777),
    ("private/var/db/com.apple.xpc.launchd", 0o755),
    ("private/var/db/mac-sim", 0o755),
    ("private/var/empty", 0o755),
    ("private/var/lib", 0o755),
    ("private/var/log", 0o755),
    ("private/var/root", 0o750),
    ("private/var/run", 0o755),
    ("private/var/tmp", 0o1777),
    ("proc", 0o555),
    ("run", 0o755),
    ("sbin", 0o755),
    ("usr/bin", 0o755),
    ("usr/libexec", 0o755),
    ("usr/local", 0o755),
    ("usr/sbin", 0o755),
];

/// The stock rules of the packet filter, and those that they load.
const PF_CONF: &str = "scrub-anchor \"com.apple/*\"\nnat-anchor \"com.apple/*\"\nrdr-anchor \"com.apple/*\"\n\
    dummynet-anchor \"com.apple/*\"\nanchor \"com.apple/*\"\nload anchor \"com.apple\" from \"/etc/pf.anchors/com.apple\"\n";
const PF_ANCHOR: &str = "anchor \"200.AirDrop/*\"\nanchor \"250.ApplicationFirewall/*\"\n";

/// Makes the files of a new Mac; does nothing if it has some.
pub(super) fn build(host: &HostDirectory, settings: &Settings) -> io::Result<()> {
    let root = host.root();
    if root.join("System").exists() {
        return Ok(());
    }
    for (path, mode) in DIRECTORIES {
        make(&root.join(path), *mode)?;
    }
    // All of them relative, so that they also lead to the right place from outside.
    for (link, target) in [("etc", "private/etc"), ("var", "private/var"), ("tmp", "private/tmp")] {
        symlink(target, root.join(link))?;
    }
    for place in [SIMULATOR, LINUX] {
        make(&inside(&root, place), 0o755)?;
    }
    build_simulator(host)?;
    link_machine(&root)?;
    programs::install(&root)?;
    write_settings(&root, settings)?;
    make_user(&root, settings)?;
    if settings.tart.is_some() {
        install_tart(&root)?;
        // The DHCP server of the simulated tart keeps its leases in tart's directory.
        let leases = Path::new(TART_HOST).join("dhcpd_leases");
        symlink(leases, root.join("private/var/db/dhcpd_leases"))?;
    }
    if settings.pfctl.is_some() {
        symlink(Path::new(SIMULATOR).join("pfctl"), root.join("sbin/pfctl"))?;
    }
    sshd::write_settings(&root, host, settings)
}

fn build_simulator(host: &HostDirectory) -> io::Result<()> {
    make(&host.simulator().join("faults"), 0o755)?;
    fs::write(host.calls(), "")?;
    fs::set_permissions(host.calls(), Permissions::from_mode(0o666))?;
    fs::set_permissions(host.settings(), Permissions::from_mode(0o600))
}

/// The places in which the machine's programs look for their libraries and their loader.
fn link_machine(root: &Path) -> io::Result<()> {
    for name in ["lib", "lib32", "lib64", "libx32", "usr/lib", "usr/lib32", "usr/lib64", "usr/share"] {
        if Path::new("/").join(name).exists() {
            symlink(Path::new(LINUX).join(name), root.join(name))?;
        }
    }
    // Some of the machine's programs are links to one of several versions.
    symlink(Path::new(LINUX).join("etc/alternatives"), root.join("etc/alternatives"))?;
    for name in ["ld.so.cache", "localtime", "protocols", "services", "resolv.conf"] {
        if let Ok(content) = fs::read(Path::new("/etc").join(name)) {
            fs::write(root.join("etc").join(name), content)?;
        }
    }
    let certificates = "etc/ssl/certs/ca-certificates.crt";
    if let Ok(content) = fs::read(Path::new("/").join(certificates)) {
        make(&root.join("private/etc/ssl"), 0o755)?;
        fs::write(root.join("etc/ssl/cert.pem"), content)?;
    }
    Ok(())
}

fn write_settings(root: &Path, settings: &Settings) -> io::Result<()> {
    let user = &settings.user;
    let shell = sshd::login_shell(settings);
    let passwd = format!(
        "root:*:0:0:System Administrator:/var/root:/bin/sh\n\
         daemon:*:1:1:System Services:/var/root:/usr/bin/false\n\
         {user}:*:{UID}:{GID}:{user}:/Users/{user}:{shell}\n\
         _sshd:*:75:75:sshd Privilege separation:/var/empty:/usr/bin/false\n\
         sshd:*:75:75:sshd Privilege separation:/var/empty:/usr/bin/false\n\
         nobody:*:65534:65534:Unprivileged User:/var/empty:/usr/bin/false\n"
    );
    let group = format!(
        "wheel:*:0:root\ndaemon:*:1:root\nstaff:*:{GID}:root,{user}\n_sshd:*:75:\nadmin:*:{ADMIN}:root,{user}\n\
         tty:*:4:root\nnogroup:*:65534:\n"
    );
    let sudoers = "root            ALL = (ALL) ALL\n%admin          ALL = (ALL) ALL\n#includedir /private/etc/sudoers.d\n";
    let hosts = "127.0.0.1\tlocalhost\n255.255.255.255\tbroadcasthost\n::1             localhost\n";
    for (name, content, mode) in [
        ("passwd", passwd.as_str(), 0o644),
        ("group", &group, 0o644),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n", 0o644),
        ("hosts", hosts, 0o644),
        ("sudoers", sudoers, 0o440),
        ("shells", "/bin/bash\n/bin/csh\n/bin/dash\n/bin/ksh\n/bin/sh\n/bin/tcsh\n/bin/zsh\n", 0o644),
        (
            "newsyslog.conf",
            "# logfilename [owner:group] mode count size when flags [/pid_file] [sig_num]\n",
            0o644,
        ),
        ("pf.conf", PF_CONF, 0o644),
        ("pf.anchors/com.apple", PF_ANCHOR, 0o644),
    ] {
        let path = root.join("private/etc").join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn make_user(root: &Path, settings: &Settings) -> io::Result<()> {
    let home = root.join("Users").join(&settings.user);
    for (directory, mode) in
        [("", 0o750), ("Library", 0o700), ("Library/LaunchAgents", 0o755), (".ssh", 0o700)]
    {
        let path = home.join(directory);
        make(&path, mode)?;
        chown(&path, Some(UID), Some(GID))?;
    }
    let keys = home.join(".ssh/authorized_keys");
    fs::write(&keys, settings.authorized_keys.join("\n") + "\n")?;
    fs::set_permissions(&keys, Permissions::from_mode(0o600))?;
    chown(keys, Some(UID), Some(GID))?;
    let host = inside(root, TART_HOST);
    for directory in ["", "registry", "faults"] {
        let path = host.join(directory);
        make(&path, 0o777)?;
        chown(&path, Some(UID), Some(GID))?;
    }
    Ok(())
}

/// Homebrew installs tart as a script that starts the program in its bundle.
fn install_tart(root: &Path) -> io::Result<()> {
    for directory in ["opt/homebrew", "opt/homebrew/bin"] {
        make(&root.join(directory), 0o775)?;
        chown(root.join(directory), Some(UID), Some(ADMIN))?;
    }
    let wrapper = root.join("opt/homebrew/bin/tart");
    let variables = format!("TART_SIM_HOST={TART_HOST} TART_SIM_MACHINE={LINUX}");
    fs::write(&wrapper, format!("#!/bin/sh\n{variables} exec {SIMULATOR}/tart \"$@\"\n"))?;
    fs::set_permissions(&wrapper, Permissions::from_mode(0o755))?;
    chown(wrapper, Some(UID), Some(ADMIN))
}

fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Makes a directory and those above it, whatever the umask.
fn make(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}
