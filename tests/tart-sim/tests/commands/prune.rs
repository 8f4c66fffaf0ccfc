//! `tart prune`, and the pruning that `pull` and `clone` do.

use std::fs;
use std::time::{Duration, SystemTime};

use tart_sim::Fault;

use crate::mac::Mac;

/// Makes a VM or image look as if it was last used that many days ago.
fn age(mac: &Mac, path: &str, days: u64) {
    let date = SystemTime::now() - Duration::from_secs(days * 24 * 60 * 60);
    let path = mac.home().join(path).canonicalize().unwrap();
    let times = fs::FileTimes::new().set_accessed(date).set_modified(date);
    fs::File::open(path).unwrap().set_times(times).unwrap();
}

/// A Mac that pulled images of these sizes, all different; the first was used longest ago.
fn with_images(allocated_gb: &[u32]) -> Mac {
    let mac = Mac::new();
    for (index, gb) in allocated_gb.iter().enumerate() {
        let tag = format!("v{index}");
        mac.publish(&format!("mac/{tag}"), &format!(r#"{{ "diskGB": 50, "allocatedGB": {gb} }}"#));
        mac.ok(&["pull", &format!("registry.example/mac:{tag}")]);
        age(&mac, &format!("cache/OCIs/registry.example/mac/{tag}"), 100 - index as u64);
    }
    mac
}

fn tags(mac: &Mac) -> Vec<String> {
    let names = mac.ok(&["list", "-q", "--source", "oci"]);
    names.lines().filter_map(|name| name.split_once("mac:").map(|(_, tag)| tag.to_owned())).collect()
}

#[test]
fn prune_removes_by_age() {
    let mac = with_images(&[1, 2, 3]);
    mac.create("vm");
    age(&mac, "vms/vm", 200);
    mac.ok(&["prune", "--older-than", "99"]);
    assert_eq!(tags(&mac), ["v2"]);
    assert!(mac.vm("vm").exists());
    let running = mac.hold("vm");
    mac.ok(&["prune", "--older-than", "99", "--entries", "vms"]);
    assert!(mac.vm("vm").exists(), "running");
    drop(running);
    mac.ok(&["prune", "--older-than", "99", "--entries", "vms"]);
    assert!(!mac.vm("vm").exists());
    assert_eq!(tags(&mac), ["v2"]);
}

#[test]
fn prune_removes_by_space() {
    let mac = with_images(&[30, 10, 40]);
    mac.ok(&["prune", "--space-budget", "60"]);
    assert_eq!(tags(&mac), ["v1", "v2"], "the oldest does not fit any more");
    mac.ok(&["prune", "--cache-budget", "0"]);
    assert!(tags(&mac).is_empty());
}

#[test]
fn a_dangling_tag_is_collected() {
    let mac = with_images(&[1]);
    let tag = mac.home().join("cache/OCIs/registry.example/mac/v0");
    fs::remove_dir_all(tag.canonicalize().unwrap()).unwrap();
    mac.ok(&["prune", "--gc"]);
    assert!(tag.symlink_metadata().is_err());
}

#[test]
fn a_pull_makes_room_for_itself() {
    let mac = with_images(&[20, 21]);
    mac.publish("mac/new", r#"{ "diskGB": 50, "allocatedGB": 45 }"#);
    let new = "registry.example/mac:new";
    mac.switch_on(Fault::Capacity, "87");
    let forbidden = mac.command(&["pull", new]).env("TART_NO_AUTO_PRUNE", "").output().unwrap();
    assert_eq!(forbidden.status.code(), Some(0), "45 GB fit, even though 50 GB would not");
    assert_eq!(tags(&mac), ["new", "v0", "v1"]);
    mac.ok(&["delete", new]);
    mac.ok(&["pull", new]);
    assert_eq!(tags(&mac), ["new", "v1"], "the one used longest ago went");
}

#[test]
fn a_pull_prunes_nothing_if_that_would_not_be_enough() {
    let mac = with_images(&[20]);
    mac.publish("mac/new", r#"{ "diskGB": 50, "allocatedGB": 45 }"#);
    mac.switch_on(Fault::Capacity, "21");
    mac.tart(&["pull", "registry.example/mac:new"]).fails(
        1,
        "Error: You can’t save the file “disk.img” because the volume “Macintosh HD” is out of space.",
    );
    assert_eq!(tags(&mac), ["v0"]);
}

#[test]
fn a_clone_makes_room_and_keeps_its_source() {
    let mac = with_images(&[20, 21]);
    mac.switch_on(Fault::Capacity, "65");
    mac.ok(&["clone", "registry.example/mac:v0", "vm", "--prune-limit", "0"]);
    assert_eq!(tags(&mac), ["v0", "v1"]);
    mac.ok(&["clone", "registry.example/mac:v0", "vm", "--prune-limit", "10"]);
    assert_eq!(tags(&mac), ["v0"], "4 GB were left, and v1 is the only other");
}

#[test]
fn the_image_that_a_moved_tag_left_is_pruned_first() {
    let mac = with_images(&[20, 21]);
    age(&mac, "cache/OCIs/registry.example/mac/v1", 1);
    mac.publish("mac/v1", r#"{ "diskGB": 50, "allocatedGB": 45 }"#);
    mac.switch_on(Fault::Capacity, "75");
    mac.ok(&["pull", "registry.example/mac:v1"]);
    assert_eq!(tags(&mac), ["v0", "v1"], "not v0, although it is older");
}
