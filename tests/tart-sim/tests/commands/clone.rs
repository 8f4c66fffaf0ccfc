//! `tart clone`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use tart_sim::Fault;

use crate::mac::{Mac, inode};

const IMAGE: &str = "registry.example/team/mac:v1";

#[test]
fn a_clone_keeps_the_machine_and_changes_the_mac_address_only_if_it_must() {
    let mac = Mac::with_image("{}");
    mac.ok(&["clone", IMAGE, "first"]);
    mac.ok(&["clone", IMAGE, "second"]);
    let image = mac.home().join("cache/OCIs/registry.example/team/mac/v1/config.json");
    let image: serde_json::Value = serde_json::from_slice(&fs::read(image).unwrap()).unwrap();
    let (first, second) = (mac.config("first"), mac.config("second"));
    assert_eq!(first["macAddress"], image["macAddress"]);
    assert_ne!(second["macAddress"], image["macAddress"]);
    assert_eq!((&first["ecid"], &second["ecid"]), (&image["ecid"], &image["ecid"]));
    fs::write(mac.vm("second").join("state.vzvmsave"), "memory").unwrap();
    mac.ok(&["clone", "second", "third"]);
    assert_eq!(mac.config("third")["macAddress"], second["macAddress"], "suspended");
    assert_eq!(fs::read_to_string(mac.vm("third").join("state.vzvmsave")).unwrap(), "memory");
}

#[test]
fn every_pull_of_an_image_gives_the_same_machine() {
    let mac = Mac::with_image("{}");
    mac.ok(&["clone", IMAGE, "vm"]);
    let first = mac.config("vm");
    fs::remove_dir_all(mac.home()).unwrap();
    mac.ok(&["clone", IMAGE, "vm"]);
    assert_eq!(mac.config("vm"), first);
}

#[test]
fn clone_silently_replaces_an_existing_vm_even_while_it_runs() {
    let mac = Mac::with_image("{}");
    mac.create("vm");
    let running = mac.hold("vm");
    assert_eq!(mac.state_of("vm"), "running");
    mac.ok(&["clone", IMAGE, "vm"]);
    assert_eq!(mac.state_of("vm"), "stopped", "the lock is on a file that is gone");
    assert_eq!(mac.tart(&["get", "vm", "--format=json"]).json()["OS"], "darwin");
    assert!(mac.tmp().is_empty());
    drop(running);
}

impl Mac {
    fn state_of(&self, name: &str) -> String {
        self.tart(&["get", name, "--format=json"]).json()["State"].as_str().unwrap().to_owned()
    }
}

#[test]
fn the_guests_files_are_shared_and_what_it_wrote_is_copied() {
    let mac = Mac::with_image("{}");
    let rootfs = mac.path("host/registry/registry.example/team/mac/v1/rootfs/bin");
    fs::create_dir_all(&rootfs).unwrap();
    fs::write(rootfs.join("tool"), "tool").unwrap();
    mac.ok(&["clone", IMAGE, "a"]);
    let written = mac.vm("a").join("guest/upper/tmp");
    fs::create_dir_all(&written).unwrap();
    fs::write(written.join("note"), "note").unwrap();
    mac.ok(&["clone", "a", "b"]);
    let (of_a, of_b) = (mac.vm("a").join("guest"), mac.vm("b").join("guest"));
    assert_eq!(inode(&of_a.join("lower/bin/tool")), inode(&of_b.join("lower/bin/tool")));
    assert_ne!(inode(&of_a.join("upper/tmp/note")), inode(&of_b.join("upper/tmp/note")));
    assert_eq!(fs::read_to_string(of_b.join("upper/tmp/note")).unwrap(), "note");
    assert_ne!(
        inode(&rootfs.join("tool")),
        inode(&of_a.join("lower/bin/tool")),
        "the registry may change its files"
    );
    assert_eq!(fs::read_to_string(of_b.join("image.json")).unwrap(), "{}");
}

#[test]
fn a_clone_of_a_large_disk_takes_no_room() {
    let mac = Mac::with_image(r#"{ "diskGB": 500 }"#);
    mac.ok(&["clone", IMAGE, "vm"]);
    let disk = mac.vm("vm").join("disk.img").metadata().unwrap();
    assert_eq!(disk.len(), 500_000_000_000);
    assert!(disk.blocks() < 100);
}

#[test]
fn clone_fails_on_a_full_disk() {
    let mac = Mac::with_image("{}");
    mac.ok(&["pull", IMAGE]);
    mac.switch_on(Fault::NoSpace, "clone");
    let ended = mac.tart(&["clone", IMAGE, "vm"]);
    let left = mac.tmp();
    let uuid = left[0].file_name().unwrap().to_str().unwrap();
    assert_eq!((left.len(), uuid.len()), (1, 36), "it stays until the next command: {left:?}");
    ended.fails(
        1,
        &format!("Error: “disk.img” couldn’t be copied to “{uuid}” because there isn’t enough space."),
    );
    assert!(!mac.vm("vm").exists());
    mac.switch_off(Fault::NoSpace);
    mac.ok(&["list"]);
    assert!(mac.tmp().is_empty());
}

#[test]
fn clone_of_a_cached_image_asks_no_registry() {
    let mac = Mac::with_image(r#"{ "cpu": 5 }"#);
    mac.ok(&["pull", IMAGE]);
    mac.publish("team/mac/v1", r#"{ "cpu": 6 }"#);
    mac.switch_on(Fault::Pull, "offline");
    assert_eq!(mac.ok(&["clone", IMAGE, "vm"]), "");
    assert_eq!(mac.config("vm")["cpuCount"], 5, "the tag has moved, the cache has not");
    mac.tart(&["pull", IMAGE]).fails(1, "Error: The Internet connection appears to be offline.");
}

#[test]
fn clones_wait_for_the_lock_on_the_home() {
    let mac = Mac::new();
    mac.create("vm");
    let home = fs::File::open(mac.home()).unwrap();
    home.lock().unwrap();
    let mut clone = mac.command(&["clone", "vm", "copy"]).spawn().unwrap();
    let mut has_nothing_but_its_place = || {
        assert_eq!(clone.try_wait().unwrap(), None);
        // Unlike `clone`, `list` waits for no lock.
        assert_eq!(mac.names(), ["vm"]);
        mac.tmp().iter().all(|made| fs::read_dir(made).unwrap().next().is_none())
    };
    while mac.tmp().is_empty() {
        assert!(has_nothing_but_its_place());
    }
    // A clone that did not wait would have ended long before the last of these.
    for _ in 0..20 {
        assert!(has_nothing_but_its_place());
    }
    drop(home);
    assert_eq!(clone.wait().unwrap().code(), Some(0));
    assert_eq!(mac.names(), ["copy", "vm"]);
}

#[test]
fn a_copy_that_stalls_has_half_of_the_vm_locked_where_it_is_made() {
    let mac = Mac::with_image("{}");
    mac.ok(&["pull", IMAGE]);
    mac.switch_on(Fault::StallCopy, "");
    let mut clone = mac.command(&["clone", IMAGE, "vm"]).spawn().unwrap();
    let half = loop {
        if let Some(half) = mac.tmp().into_iter().find(|path| path.join("nvram.bin").exists()) {
            break half;
        }
        assert!(clone.try_wait().unwrap().is_none(), "it has ended");
        std::thread::yield_now();
    };
    mac.ok(&["list"]);
    assert!(half.exists() && !half.join("disk.img").exists() && !mac.vm("vm").exists());
    mac.switch_off(Fault::StallCopy);
    assert!(clone.wait().unwrap().success());
    assert!(mac.tmp().is_empty() && mac.vm("vm").join("disk.img").exists());
}
