//! The cache of images: which ones stay.

use std::fs;

use crate::mac::Mac;

const IMAGE: &str = "registry.example/team/mac:v1";

#[test]
fn a_moved_tag_takes_the_old_image_with_it() {
    let mac = Mac::with_image(r#"{ "cpu": 5 }"#);
    mac.ok(&["pull", IMAGE]);
    let old = mac.ok(&["fqn", IMAGE]);
    mac.publish("team/mac/v1", r#"{ "cpu": 6 }"#);
    mac.ok(&["pull", IMAGE]);
    let new = mac.ok(&["fqn", IMAGE]);
    assert_ne!(old, new);
    assert_eq!(mac.names(), [IMAGE, new.trim_end()]);
    mac.tart(&["pull", old.trim_end()]).fails(
        1,
        r#"Error: UnexpectedHTTPStatusCode(when: "pulling manifest", code: 404, details: "{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\",\"message\":\"manifest unknown\"}]}\n")"#,
    );
}

#[test]
fn an_image_pulled_by_digest_stays_without_a_tag() {
    let mac = Mac::with_image(r#"{ "cpu": 5 }"#);
    mac.ok(&["pull", IMAGE]);
    let digest = mac.ok(&["fqn", IMAGE]).trim_end().to_owned();
    mac.ok(&["delete", IMAGE]);
    assert!(mac.names().is_empty(), "no name leads to it any more");
    mac.ok(&["pull", &digest]);
    assert_eq!(mac.ok(&["fqn", &digest]).trim_end(), digest);
    mac.ok(&["pull", IMAGE]);
    mac.ok(&["delete", IMAGE]);
    assert_eq!(mac.names(), [digest.as_str()]);
    mac.ok(&["clone", &digest, "vm"]);
    mac.ok(&["delete", &digest]);
    assert_eq!(mac.names(), ["vm"]);
}

#[test]
fn the_digest_covers_the_guests_files() {
    let mac = Mac::with_image("{}");
    mac.ok(&["pull", IMAGE]);
    let before = mac.ok(&["fqn", IMAGE]);
    let rootfs = mac.path("host/registry/registry.example/team/mac/v1/rootfs");
    fs::create_dir(&rootfs).unwrap();
    fs::write(rootfs.join("file"), "new").unwrap();
    mac.ok(&["pull", IMAGE]);
    assert_ne!(mac.ok(&["fqn", IMAGE]), before);
}
