//! Registries that fail.

use std::os::unix::process::ExitStatusExt as _;

use tart_sim::Fault;

use crate::mac::Mac;

const IMAGE: &str = "registry.example/team/mac:v1";
const DENIED: &str = r#"Error: AuthFailed(why: "received unexpected HTTP status code 403 while retrieving an authentication token", details: "{\"errors\":[{\"code\":\"DENIED\",\"message\":\"requested access to the resource is denied\"}]}\n")"#;

#[test]
fn pull_prints_tarts_words_for_every_outage() {
    let mac = Mac::with_image("{}");
    for (fault, stderr) in [
        (
            "404",
            r#"Error: UnexpectedHTTPStatusCode(when: "pulling manifest", code: 404, details: "{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\",\"message\":\"manifest unknown\"}]}\n")"#,
        ),
        ("403", DENIED),
        (
            "401",
            r#"Error: UnexpectedHTTPStatusCode(when: "pulling manifest", code: 401, details: "{\"errors\":[{\"code\":\"UNAUTHORIZED\",\"message\":\"authentication required\"}]}\n")"#,
        ),
        (
            "401-token",
            r#"Error: AuthFailed(why: "received unexpected HTTP status code 401 while retrieving an authentication token", details: "{\"errors\":[{\"code\":\"UNAUTHORIZED\",\"message\":\"authentication required\"}]}\n")"#,
        ),
        (
            "429 at=layers",
            r#"Error: UnexpectedHTTPStatusCode(when: "pulling blob", code: 429, details: "{\"errors\":[{\"code\":\"TOOMANYREQUESTS\",\"message\":\"too many requests\"}]}\n")"#,
        ),
        ("timeout", "Error: The request timed out."),
        ("connection-lost", "Error: The network connection was lost."),
        ("offline", "Error: The Internet connection appears to be offline."),
        ("dns", "Error: A server with the specified hostname could not be found."),
        ("refused", "Error: Could not connect to the server."),
    ] {
        mac.switch_on(Fault::Pull, fault);
        mac.tart(&["pull", IMAGE]).fails(1, stderr);
        mac.tart(&["clone", IMAGE, "vm"]).fails(1, stderr);
    }
    mac.switch_on(Fault::Pull, "timeout only=registry.example/other");
    mac.ok(&["pull", IMAGE]);
}

#[test]
fn pull_refuses_a_missing_image() {
    let mac = Mac::with_image("{}");
    let missing = mac.tart(&["pull", "registry.example/team/mac:v9"]);
    assert!(missing.stderr.contains("MANIFEST_UNKNOWN"), "{missing:?}");
    mac.tart(&["pull", "elsewhere.example/team/mac:v1"])
        .fails(1, "Error: A server with the specified hostname could not be found.");
    std::fs::write(mac.path("host/registry/registry.example/registry.json"), r#"{ "hidesMissing": true }"#)
        .unwrap();
    mac.tart(&["pull", "registry.example/team/other:v1"]).fails(1, DENIED);
    let missing = mac.tart(&["pull", "registry.example/team/mac:v9"]);
    assert!(missing.stderr.contains("MANIFEST_UNKNOWN"), "the repository is there: {missing:?}");
}

#[test]
fn pull_tries_layers_again_after_a_lost_connection() {
    let mac = Mac::with_image("{}");
    let again = "Error pulling image: \"The network connection was lost.\", attempting to re-try...";
    mac.switch_on(Fault::Pull, "connection-lost at=layers times=2");
    let pulled = mac.tart(&["pull", IMAGE]);
    assert_eq!(pulled.lines().iter().filter(|line| **line == again).count(), 2, "{pulled:?}");
    mac.ok(&["delete", IMAGE]);
    mac.switch_on(Fault::Pull, "connection-lost at=layers");
    let failed = mac.tart(&["pull", IMAGE]);
    failed.fails(1, "Error: The network connection was lost.");
    assert_eq!(failed.stdout.lines().filter(|line| *line == again).count(), 4, "five attempts: {failed:?}");
    assert_eq!(mac.tmp().len(), 1, "what arrived is kept");
}

#[test]
fn pull_fails_on_a_full_disk() {
    let mac = Mac::with_image("{}");
    mac.switch_on(Fault::NoSpace, "pull");
    mac.tart(&["pull", IMAGE]).fails(
        1,
        "Error: You can’t save the file “disk.img” because the volume “Macintosh HD” is out of space.",
    );
    mac.switch_on(Fault::Version, "2.23.0");
    let crashed = mac.command(&["pull", IMAGE]).output().unwrap();
    assert_eq!(crashed.status.signal(), Some(6), "SIGABRT");
    assert!(String::from_utf8(crashed.stderr).unwrap().contains("No space left on device"));
}

#[test]
fn a_mistake_in_the_registry_folder_is_not_taken_for_a_registrys_answer() {
    let mac = Mac::with_image(r#"{ "cpus": 4 }"#);
    let ended = mac.tart(&["pull", IMAGE]);
    assert!(ended.stderr.starts_with("Error: tart-sim: ") && ended.stderr.contains("cpus"), "{ended:?}");
}
