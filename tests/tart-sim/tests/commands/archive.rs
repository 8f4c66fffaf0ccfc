//! VMs that leave this Mac and come back: export, import, push.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use serde_json::json;
use tart_sim::Fault;

use crate::mac::Mac;

const IMAGE: &str = "registry.example/team/mac:v1";

fn with_guest() -> Mac {
    let mac = Mac::with_image(r#"{ "cpu": 5, "diskGB": 60 }"#);
    let rootfs = mac.path("host/registry/registry.example/team/mac/v1/rootfs");
    fs::create_dir(&rootfs).unwrap();
    fs::write(rootfs.join("system"), "system").unwrap();
    mac.ok(&["clone", IMAGE, "vm"]);
    let upper = mac.vm("vm").join("guest/upper");
    fs::create_dir_all(&upper).unwrap();
    fs::write(upper.join("written"), "written").unwrap();
    mac
}

#[track_caller]
fn assert_same_guest(mac: &Mac, name: &str) {
    let guest = mac.vm(name).join("guest");
    assert_eq!(fs::read_to_string(guest.join("lower/system")).unwrap(), "system");
    assert_eq!(fs::read_to_string(guest.join("upper/written")).unwrap(), "written");
    assert_eq!(mac.vm(name).join("disk.img").metadata().unwrap().len(), 60_000_000_000);
}

#[test]
fn import_restores_what_export_wrote() {
    let mac = with_guest();
    assert_eq!(mac.ok(&["export", "vm"]), "exporting...\n");
    let file = mac.path("user/vm.tvm");
    assert!(file.metadata().unwrap().len() < 1 << 20, "holes take no room");
    assert_eq!(mac.ok(&["import", "vm.tvm", "copy"]), "importing...\n");
    assert_same_guest(&mac, "copy");
    assert_ne!(mac.config("copy")["macAddress"], mac.config("vm")["macAddress"], "taken");
    assert_eq!(mac.config("copy")["ecid"], mac.config("vm")["ecid"]);
    mac.ok(&["delete", "vm"]);
    mac.ok(&["import", "vm.tvm", "vm"]);
    assert!(mac.tmp().is_empty());
}

#[test]
fn export_asks_before_it_overwrites_the_default_file() {
    let mac = with_guest();
    let file = mac.path("user/vm.tvm");
    fs::write(&file, "precious").unwrap();
    for (answer, expected) in [("n", true), ("y", false)] {
        let mut command = mac.command(&["export", "vm"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "{answer}").unwrap();
        let output = child.wait_with_output().unwrap();
        let question = "file vm.tvm already exists, are you sure you want to overwrite it? (y/N) ";
        assert!(String::from_utf8(output.stdout).unwrap().starts_with(question));
        assert_eq!(fs::read(&file).unwrap() == b"precious", expected, "{answer}");
    }
    fs::write(&file, "named").unwrap();
    mac.ok(&["export", "vm", "vm.tvm"]);
    assert_ne!(fs::read(&file).unwrap(), b"named");
}

#[test]
fn import_refuses_a_file_that_is_no_vm() {
    let mac = Mac::new();
    let missing = mac.tart(&["import", "none.tvm", "vm"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.starts_with("VM import failed: "), "{missing:?}");
    fs::write(mac.path("user/garbage.tvm"), "garbage".repeat(1000)).unwrap();
    let garbage = mac.tart(&["import", "garbage.tvm", "vm"]);
    assert!(garbage.code == Some(1) && garbage.stderr.starts_with("VM import failed: "), "{garbage:?}");
    mac.create("vm");
    let export = mac.tart(&["export", "vm", "no/such/folder.tvm"]);
    assert!(export.code == Some(1) && export.stderr.starts_with("VM export failed: "), "{export:?}");
}

#[test]
fn pull_restores_what_push_sent() {
    let mac = with_guest();
    mac.ok(&["set", "vm", "--cpu", "9"]);
    let pushed = mac.tart(&[
        "push",
        "vm",
        "registry.example/team/new:a",
        "registry.example/team/new:b",
        "--label",
        "k=v",
    ]);
    assert_eq!(pushed.lines()[0], "pushing vm to registry.example/team/new:a...");
    let machine = mac.config("vm");
    fs::remove_dir_all(mac.home()).unwrap();
    mac.ok(&["clone", "registry.example/team/new:b", "vm"]);
    assert_same_guest(&mac, "vm");
    assert_eq!(mac.config("vm"), machine, "configuration and identity travel along");
    let digest = |tag: &str| {
        let name = format!("registry.example/team/new:{tag}");
        mac.ok(&["pull", &name]);
        mac.ok(&["fqn", &name])
    };
    assert_eq!(digest("a"), digest("b"));
}

#[test]
fn push_can_fill_the_cache() {
    let mac = Mac::with_image("{}");
    mac.create("vm");
    mac.ok(&["push", "vm", "registry.example/team/new:a", "--populate-cache"]);
    mac.switch_on(Fault::Pull, "offline");
    mac.ok(&["clone", "registry.example/team/new:a", "copy"]);
    assert_eq!(mac.config("copy")["os"], json!("linux"));
    mac.tart(&["push", "vm", "registry.example/team/new:b"])
        .fails(1, "Error: The Internet connection appears to be offline.");
}

#[test]
fn push_refuses_some_names() {
    let mac = Mac::with_image("{}");
    mac.create("vm");
    let digest = format!("registry.example/team/new@sha256:{}", "0".repeat(64));
    for name in ["local", &digest] {
        let ended = mac.tart(&["push", "vm", name]);
        assert!(
            ended.code == Some(1) && ended.stderr.starts_with("failed to parse remote name: "),
            "{ended:?}"
        );
    }
    mac.tart(&["push", "vm", "elsewhere.example/team/new:a"])
        .fails(1, "Error: A server with the specified hostname could not be found.");
}
