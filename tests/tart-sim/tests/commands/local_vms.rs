//! Local VMs: files, configuration, listing, names.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tart_sim::Fault;

use crate::mac::{Mac, inode};

#[test]
fn commands_refuse_a_vm_that_does_not_exist() {
    let mac = Mac::new();
    for args in [
        &["get", "x"][..],
        &["set", "x"],
        &["delete", "x"],
        &["clone", "x", "y"],
        &["push", "x", "h/i"],
        &["export", "x"],
    ] {
        let ended = mac.tart(args);
        ended.fails(2, "the specified VM \"x\" does not exist");
    }
    mac.tart(&["delete", "registry.example/x:y"])
        .fails(2, "the specified VM \"registry.example/x:y\" does not exist");
    mac.tart(&["get", "registry.example/x:y"])
        .fails(2, "the specified VM \"registry.example/x:y\" does not exist");
}

#[test]
fn a_created_vm_has_the_files_of_a_vm() {
    let mac = Mac::new();
    mac.ok(&["create", "vm", "--linux", "--disk-size", "20"]);
    let disk = mac.vm("vm").join("disk.img").metadata().unwrap();
    assert_eq!(disk.len(), 20_000_000_000);
    assert!(disk.blocks() < 100, "sparse");
    assert!(mac.vm("vm").join("nvram.bin").exists());
    let config = mac.config("vm");
    assert_eq!(config["os"], "linux");
    assert_eq!(config["memorySize"], 4_294_967_296_u64);
    assert_eq!(config["display"], json!({ "width": 1024, "height": 768 }));
    assert!(config["ecid"].is_null(), "{config}");
    mac.tart(&["create", "vm", "--linux"])
        .fails(1, "VM directory is already initialized, preventing overwrite");
}

#[test]
fn a_mac_is_created_from_a_restore_image() {
    let mac = Mac::new();
    mac.tart(&["create", "vm", "--from-ipsw", "none.ipsw"])
        .fails(1, "Error: The file “none.ipsw” couldn’t be opened because there is no such file.");
    mac.ok(&["create", "vm", "--from-ipsw", "latest", "--disk-format", "asif"]);
    let config = mac.config("vm");
    assert!(config["ecid"].as_str().unwrap().starts_with("YnBsaXN0MDDR"), "{config}");
    assert!(config["hardwareModel"].as_str().unwrap().starts_with("YnBsaXN0MDDT"), "{config}");
    assert_eq!(config["diskFormat"], "asif");
    let cached: Vec<_> = fs::read_dir(mac.home().join("cache/IPSWs")).unwrap().collect();
    assert_eq!(cached.len(), 1);
}

#[test]
fn configuration_files_have_their_keys_in_any_order() {
    let mac = Mac::new();
    let orders: std::collections::HashSet<Vec<String>> = (0..6)
        .map(|n| {
            mac.create(&format!("vm{n}"));
            let text = fs::read_to_string(mac.vm(&format!("vm{n}")).join("config.json")).unwrap();
            text.lines().filter_map(|line| line.split('"').nth(1).map(str::to_owned)).collect()
        })
        .collect();
    assert!(orders.len() > 1, "{orders:?}");
}

#[test]
fn commands_refuse_a_vm_with_missing_files() {
    let mac = Mac::new();
    mac.create("vm");
    fs::remove_file(mac.vm("vm").join("nvram.bin")).unwrap();
    mac.tart(&["get", "vm"]).fails(1, "VM is missing some of its files (config.json, disk.img or nvram.bin)");
    assert!(mac.names().is_empty(), "an incomplete VM is not listed");
    mac.switch_on(Fault::Version, "SNAPSHOT");
    let ended = mac.tart(&["get", "vm"]);
    assert!(
        ended.stderr.starts_with("VM is missing files for a supported layout: standalone requires"),
        "{ended:?}"
    );
    fs::remove_file(mac.vm("vm").join("config.json")).unwrap();
    mac.tart(&["delete", "vm"]).fails(2, "the specified VM \"vm\" does not exist");
    assert!(mac.vm("vm").exists(), "and its directory leaks");
}

#[test]
fn get_and_list_show_a_vm() {
    let mac = Mac::with_image(r#"{ "allocatedGB": 31.0567, "memoryMiB": 8192 }"#);
    assert_eq!(mac.ok(&["list", "--format", "json"]), "[\n\n]\n");
    mac.ok(&["clone", "registry.example/team/mac:v1", "vm"]);
    let got = mac.tart(&["get", "vm", "--format", "json"]).json();
    let expected = json!({
        "CPU": 4, "DiskFormat": "raw", "OS": "darwin", "State": "stopped", "Display": "1024x768",
        "Size": "31.057", "Disk": 50, "Memory": 8192, "Running": false,
    });
    assert_eq!(got, expected);
    let listed = mac.tart(&["list", "--format", "json"]).json();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|row| (&row["Source"], &row["Name"])).collect();
    let fqn = mac.ok(&["fqn", "registry.example/team/mac:v1"]);
    assert_eq!(names[0], (&json!("local"), &json!("vm")));
    assert_eq!(names[1], (&json!("OCI"), &json!("registry.example/team/mac:v1")));
    assert_eq!(names[2], (&json!("OCI"), &json!(fqn.trim_end())));
    assert_eq!(listed[0]["Size"], 31, "a number here, a string there");
    assert_eq!(listed[0]["Disk"], 50);
    let keys: Vec<_> = listed[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys.len(), 7, "{keys:?}");
    assert_eq!(mac.tart(&["list", "--source", "oci", "-q"]).lines().len(), 2);
    assert_eq!(mac.tart(&["list", "--source", "local", "-q"]).lines(), ["vm"]);
}

#[test]
fn a_vm_runs_while_its_configuration_is_locked() {
    let mac = Mac::new();
    mac.create("vm");
    let state = || {
        let got = mac.tart(&["get", "vm", "--format", "json"]).json();
        let listed = mac.tart(&["list", "--format", "json"]).json()[0].clone();
        assert_eq!((&got["State"], &got["Running"]), (&listed["State"], &listed["Running"]));
        (got["State"].as_str().unwrap().to_owned(), got["Running"] == Value::Bool(true))
    };
    assert_eq!(state(), ("stopped".into(), false));
    fs::write(mac.vm("vm").join("state.vzvmsave"), "").unwrap();
    assert_eq!(state(), ("suspended".into(), false));
    let running = mac.hold("vm");
    assert_eq!(state(), ("running".into(), true));
    mac.tart(&["delete", "vm"]).fails(1, "VM \"vm\" is running");
    mac.tart(&["push", "vm", "registry.example/team/mac:v2"]).fails(1, "VM \"vm\" is running");
    drop(running);
    mac.ok(&["delete", "vm"]);
    assert!(!mac.vm("vm").exists());
}

#[test]
fn one_broken_vm_fails_the_list_and_every_clone() {
    let mac = Mac::new();
    mac.create("good");
    mac.create("a-racing");
    let looks: [&[&str]; 2] = [&["list", "--format=json"], &["clone", "good", "new"]];
    mac.switch_on(Fault::ListRace, "a-racing");
    for look in looks {
        mac.tart(look)
            .fails(1, "Error: The file “config.json” couldn’t be opened because there is no such file.");
    }
    mac.switch_off(Fault::ListRace);
    fs::write(mac.vm("a-racing").join("config.json"), "{").unwrap();
    for look in looks {
        let failed = mac.tart(look);
        let words = "Error: dataCorrupted(Swift.DecodingError.Context(codingPath: [], \
                     debugDescription: \"The given data was not valid JSON.\"";
        assert_eq!(failed.code, Some(1), "{failed:?}");
        assert!(failed.stderr.starts_with(words), "{failed:?}");
    }
    assert_eq!(mac.tart(&["get", "good"]).code, Some(0));
}

#[test]
fn set_changes_the_configuration_in_place() {
    let mac = Mac::with_image("{}");
    mac.ok(&["clone", "registry.example/team/mac:v1", "vm"]);
    let (before, file) = (mac.config("vm"), inode(&mac.vm("vm").join("config.json")));
    mac.ok(&["set", "vm", "--cpu", "6", "--memory", "6000", "--display", "800x600pt", "--display-refit"]);
    let after = mac.config("vm");
    assert_eq!((&after["cpuCount"], &after["memorySize"]), (&json!(6), &json!(6000_u64 << 20)));
    assert_eq!(after["display"], json!({ "width": 800, "height": 600, "unit": "pt" }));
    assert_eq!(after["displayRefit"], true);
    assert_eq!((&after["macAddress"], &after["ecid"]), (&before["macAddress"], &before["ecid"]));
    assert_eq!(inode(&mac.vm("vm").join("config.json")), file, "a lock on the file stays a lock");
    assert_eq!(mac.tart(&["get", "vm", "--format=json"]).json()["Display"], "800x600pt");
    mac.ok(&["set", "vm", "--random-mac", "--random-serial"]);
    let random = mac.config("vm");
    assert_ne!(random["macAddress"], before["macAddress"]);
    assert_ne!(random["ecid"], before["ecid"]);
    assert!(random["displayRefit"].is_null(), "forgotten: {random}");
    mac.ok(&["set", "vm", "--no-display-refit"]);
    assert_eq!(mac.config("vm")["displayRefit"], false);
}

#[test]
fn set_refuses_less_than_the_minimum() {
    let mac = Mac::with_image(r#"{ "cpuMin": 4, "memoryMinMiB": 4096 }"#);
    mac.ok(&["clone", "registry.example/team/mac:v1", "vm"]);
    mac.tart(&["set", "vm", "--cpu", "2"]).fails(
        1,
        "Error: LessThanMinimalResourcesError: VM should have 4 CPU cores at minimum (requested 2)",
    );
    mac.tart(&["set", "vm", "--memory", "1024"]).fails(
        1,
        "Error: LessThanMinimalResourcesError: VM should have 4294967296 bytes of memory at minimum (requested 1073741824)",
    );
    mac.ok(&["set", "vm", "--cpu", "1000", "--memory", "1000000"]);
}

#[test]
fn set_only_grows_disks_and_keeps_earlier_changes() {
    let mac = Mac::new();
    mac.create("vm");
    mac.tart(&["set", "vm", "--cpu", "7", "--disk-size", "40"])
        .fails(1, "new disk size of 40 GB should be larger than the current disk size of 50 GB");
    assert_eq!(mac.config("vm")["cpuCount"], 7);
    let _running = mac.hold("vm");
    mac.ok(&["set", "vm", "--disk-size", "60"]);
    assert_eq!(mac.tart(&["get", "vm", "--format=json"]).json()["Disk"], 60);
    fs::write(mac.path("user/other.img"), "other").unwrap();
    mac.ok(&["set", "vm", "--disk", "other.img"]);
    assert_eq!(fs::read(mac.vm("vm").join("disk.img")).unwrap(), b"other");
    assert!(mac.tmp().is_empty());
}

#[test]
fn get_counts_as_use_and_list_does_not() {
    let mac = Mac::new();
    mac.create("vm");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let times = fs::FileTimes::new().set_accessed(long_ago).set_modified(long_ago);
    fs::File::open(mac.vm("vm")).unwrap().set_times(times).unwrap();
    let accessed = || mac.tart(&["list", "--format=json"]).json()[0]["Accessed"].as_str().unwrap().to_owned();
    assert_eq!(accessed(), "2001-09-09T01:46:40Z");
    assert!(mac.ok(&["list"]).contains(" days ago "));
    assert_eq!(accessed(), "2001-09-09T01:46:40Z");
    mac.ok(&["get", "vm"]);
    assert_ne!(accessed(), "2001-09-09T01:46:40Z");
}

#[test]
fn rename_moves_a_vm() {
    let mac = Mac::new();
    mac.create("a");
    mac.create("b");
    let ended = mac.tart(&["rename", "a", "b"]);
    assert!(
        ended.stderr.starts_with(
            "Error: failed to rename VM a, target VM b already exists, delete it first!\nUsage: "
        ),
        "{ended:?}"
    );
    mac.ok(&["rename", "a", "c"]);
    assert_eq!(mac.names(), ["b", "c"]);
}

#[test]
fn delete_stops_at_the_first_failure() {
    let mac = Mac::new();
    for name in ["a", "b", "c"] {
        mac.create(name);
    }
    mac.tart(&["delete", "a", "x", "b"]).fails(2, "the specified VM \"x\" does not exist");
    assert_eq!(mac.names(), ["b", "c"]);
    mac.ok(&["delete", "b", "c"]);
    assert!(mac.names().is_empty());
}

#[test]
fn fqn_needs_a_cached_image_and_pull_a_remote_name() {
    let mac = Mac::new();
    assert_eq!(mac.ok(&["fqn", "local-name"]), "local-name\n");
    mac.tart(&["fqn", "registry.example/team/mac"]).fails(
        1,
        "OCI storage error: registry.example/team/mac:latest is not a digest and doesn't point to a digest",
    );
    let ended = mac.tart(&["pull", "local-name"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.starts_with("failed to parse remote name: "), "{ended:?}");
}

#[test]
fn tart_refuses_a_home_that_cannot_be_created() {
    let mac = Mac::new();
    fs::write(mac.path("user/file"), "").unwrap();
    let home = mac.path("user/file/home");
    let ended = mac.command(&["list"]).env("TART_HOME", &home).output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    let expected =
        format!("TART_HOME is invalid: {} does not exist, yet we can't create it: ", home.display());
    assert!(stderr.starts_with(&expected), "{stderr}");
    assert_eq!(ended.status.code(), Some(1));
}

#[test]
fn garbage_is_collected_by_all_commands_but_pull_and_clone() {
    let mac = Mac::with_image("{}");
    mac.create("vm");
    let (crashed, busy) = (mac.home().join("tmp/crashed"), mac.home().join("tmp/busy"));
    fs::create_dir_all(crashed.join("guest")).unwrap();
    fs::create_dir_all(&busy).unwrap();
    let lock = fs::File::open(&busy).unwrap();
    lock.lock().unwrap();
    mac.ok(&["pull", "registry.example/team/mac:v1"]);
    mac.ok(&["clone", "vm", "other"]);
    assert!(crashed.exists());
    mac.ok(&["list"]);
    assert_eq!(mac.tmp(), [busy]);
    drop(lock);
    mac.ok(&["get", "vm"]);
    assert!(mac.tmp().is_empty());
}
