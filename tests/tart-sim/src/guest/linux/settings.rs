//! The guest's files in `/etc`.

use std::fs;
use std::io;

use crate::guest::Boot;

/// Who the user is and what the network looks like, written anew at every boot.
pub(super) fn write(boot: &Boot) -> io::Result<()> {
    let (user, home, name) = (&boot.user, boot.home(), boot.host_name());
    // Both names are for one user: without a second user id there is nobody else to be.
    let others = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let others: Vec<_> = others.lines().filter(|line| !line.starts_with(&format!("{user}:"))).collect();
    let passwd = format!("{user}:x:0:0:{user}:{}:/bin/sh\n{}\n", home.display(), others.join("\n"));
    let own_name =
        boot.address.map(|address| format!("{address}\t{name}.local {name}\n")).unwrap_or_default();
    let hosts = format!("127.0.0.1\tlocalhost\n255.255.255.255\tbroadcasthost\n::1\tlocalhost\n{own_name}");
    for (path, content) in [("/etc/passwd", passwd), ("/etc/hosts", hosts)] {
        let _ = fs::remove_file(path);
        fs::write(path, content)?;
    }
    Ok(())
}
