//! The guest's files in `/etc`.

use std::fs;
use std::io;

use crate::guest::Boot;

/// Writes the user, the group and the host names, anew at every boot.
pub(super) fn write(boot: &Boot) -> io::Result<()> {
    let (user, home, name) = (&boot.user, boot.home(), boot.host_name());
    let (uid, gid) = (boot.uid, boot.gid());
    // A user whose number is 0 is a second name of root.
    let passwd =
        with_entry("/etc/passwd", &format!("{user}:x:{uid}:{gid}:{user}:{}:/bin/sh", home.display()));
    let group = with_entry("/etc/group", &format!("staff:x:{gid}:{user}"));
    let own_name =
        boot.address.map(|address| format!("{address}\t{name}.local {name}\n")).unwrap_or_default();
    let hosts = format!("127.0.0.1\tlocalhost\n255.255.255.255\tbroadcasthost\n::1\tlocalhost\n{own_name}");
    let staff = (uid != 0).then_some(("/etc/group", group));
    for (path, content) in [("/etc/passwd", passwd), ("/etc/hosts", hosts)].into_iter().chain(staff) {
        let _ = fs::remove_file(path);
        fs::write(path, content)?;
    }
    Ok(())
}

/// A list of users or groups that begins with this entry. Other entries of its name are left out.
fn with_entry(path: &str, entry: &str) -> String {
    let name = entry.split(':').next().unwrap_or_default();
    let known = fs::read_to_string(path).unwrap_or_default();
    let others: Vec<_> = known.lines().filter(|line| !line.starts_with(&format!("{name}:"))).collect();
    format!("{entry}\n{}\n", others.join("\n"))
}
