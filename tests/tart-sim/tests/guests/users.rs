//! The guest's users, and what only root can change in it.

use crate::mac::{Mac, Running};

/// A guest whose user is like that of real images. `None` if the tests do not run as root.
fn guest(mac: &Mac, image: &str) -> Option<Running> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    mac.create("a");
    mac.set_image("a", image);
    mac.add_file("a", "private/etc/resolv.conf", "search lan\nnameserver 192.0.2.1\n");
    let guest = mac.run(&["a"]);
    mac.wait_for_agent("a");
    Some(guest)
}

#[test]
fn sudo_follows_the_rules_of_real_images() {
    let mac = Mac::new();
    let Some(_a) = guest(&mac, r#"{"uid": 501}"#) else { return };
    assert_eq!(mac.sh("a", "id -u; id -g; whoami; touch mine && pwd").ok(), "501\n20\nadmin\n/Users/admin\n");
    for forbidden in
        ["touch /etc/x", "touch /usr/local/x", "kill -USR2 1", "cat /proc/1/environ", "shutdown -h now"]
    {
        assert_ne!(mac.sh("a", forbidden).code(), 0, "{forbidden}");
    }
    assert_eq!(mac.sh("a", "sudo -n id -u; sudo -n touch /etc/x && sudo -n -u '#1' id -u").ok(), "0\n1\n");
    // `sudo` passes on only the variables on its command line and those that macOS keeps.
    let seen = "FOO=x; export FOO; sudo -n env | grep -c FOO; sudo -n FOO=y sh -c 'echo $FOO $HOME'; sudo -n -H sh -c 'echo $HOME'";
    assert_eq!(mac.sh("a", seen).ok(), "0\ny /Users/admin\n/root\n");
    mac.sh("a", "sudo -n -u '#12345' true").fails(1, "sudo: unknown user #12345\n");
    let words =
        "Sorry, user admin is not allowed to execute 'true' as admin:daemon on admins-Virtual-Machine.\n";
    mac.sh("a", "sudo -n -g '#1' true").fails(1, words);
    assert_eq!(mac.sh("a", "sudo -n -g staff id -g").ok(), "20\n");

    mac.sh("a", "chroot -u 1 / true").fails(1, "chroot: /: Operation not permitted\n");
    let any_user = "sudo -n chroot -u 12345 -g 54321 -G 7,8 / sh -c 'id -u; id -g; id -G'";
    assert_eq!(mac.sh("a", any_user).ok(), "12345\n54321\n54321 7 8\n");
    assert_eq!(mac.sh("a", "sudo -n chroot --userspec=1 / true").code(), 64);
}

#[test]
fn an_image_can_deny_sudo() {
    let mac = Mac::new();
    let Some(_a) = guest(&mac, r#"{"uid": 501, "sudo": false}"#) else { return };
    mac.sh("a", "sudo -n true").fails(1, "sudo: a password is required\n");
    assert_eq!(mac.sh("a", "id -u; sw_vers -productVersion").ok(), "501\n26.3.1\n");
}

#[test]
fn only_root_changes_name_servers() {
    let mac = Mac::new();
    let Some(_a) = guest(&mac, r#"{"uid": 501}"#) else { return };
    let services = "An asterisk (*) denotes that a network service is disabled.\nEthernet\n";
    assert_eq!(mac.sh("a", "networksetup -listallnetworkservices").ok(), services);
    let none =
        "There aren't any DNS Servers set on Ethernet.\nThere aren't any Search Domains set on Ethernet.\n";
    let show = "networksetup -getdnsservers Ethernet; networksetup -getsearchdomains Ethernet";
    assert_eq!(mac.sh("a", show).ok(), none);
    let refused = mac.sh("a", "networksetup -setdnsservers Ethernet 192.0.2.53");
    assert_eq!(
        (refused.code(), refused.stdout.as_str()),
        (14, "** Error: Command requires admin privileges.\n")
    );
    let unknown = mac.sh("a", "sudo -n networksetup -setdnsservers Wi-Fi 192.0.2.53");
    let words = "Wi-Fi is not a recognized network service.\n** Error: The parameters were not valid.\n";
    assert_eq!((unknown.code(), unknown.stdout.as_str()), (4, words));
    assert_eq!(mac.sh("a", "sudo -n networksetup -setdnsservers Ethernet nonsense").code(), 4);

    let file = "grep -v '^#' /etc/resolv.conf";
    assert_eq!(mac.sh("a", file).ok(), "search lan\nnameserver 192.0.2.1\n");
    let set = "sudo -n networksetup -setdnsservers Ethernet 192.0.2.53 192.0.2.54";
    assert_eq!(
        mac.sh("a", &format!("{set} && {file}")).ok(),
        "search lan\nnameserver 192.0.2.53\nnameserver 192.0.2.54\n"
    );
    let set = "sudo -n networksetup -setsearchdomains Ethernet a.test b.test && sudo -n networksetup -setdnsservers Ethernet Empty";
    assert_eq!(mac.sh("a", &format!("{set} && {file}")).ok(), "search a.test b.test\nnameserver 192.0.2.1\n");
    let set = "There aren't any DNS Servers set on Ethernet.\na.test\nb.test\n";
    assert_eq!(mac.sh("a", show).ok(), set);
}

#[test]
fn only_root_mounts_tmpfs() {
    let mac = Mac::new();
    let Some(_a) = guest(&mac, r#"{"uid": 501}"#) else { return };
    mac.sh("a", "mkdir m && /sbin/mount_tmpfs m").fails(1, "mount_tmpfs: m: Operation not permitted\n");
    let script = "sudo -n /sbin/mount_tmpfs -s 1m m && df -k m | awk 'NR == 2 {print $1, $2}'";
    assert_eq!(mac.sh("a", script).ok(), "tmpfs 1024\n");
    assert_eq!(mac.sh("a", "sudo -n /sbin/mount_tmpfs -s much m").code(), 64);
}
