//! Private registries, and where the credentials come from.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use tart_sim::Fault;

use crate::mac::{Ended, Mac};

const IMAGE: &str = "registry.example/team/mac:v1";
const USERNAME: &str = "TART_REGISTRY_USERNAME";
const PASSWORD: &str = "TART_REGISTRY_PASSWORD";
const HOSTNAME: &str = "TART_REGISTRY_HOSTNAME";

fn private_mac() -> Mac {
    let mac = Mac::with_image("{}");
    let credentials = mac.path("host/registry/registry.example/credentials.json");
    fs::write(credentials, r#"{ "username": "user", "password": "secret" }"#).unwrap();
    mac
}

#[track_caller]
fn assert_pulls(command: &mut Command, expected: bool) -> Ended {
    let ended = Ended::from(command.output().unwrap());
    let denied =
        ended.stderr.starts_with("Error: AuthFailed(why: \"received unexpected HTTP status code 403 while");
    assert_eq!((ended.code, denied), if expected { (Some(0), false) } else { (Some(1), true) }, "{ended:?}");
    ended
}

#[test]
fn credentials_of_the_environment_are_for_one_host_or_for_all() {
    let mac = private_mac();
    let pull = || mac.command(&["pull", IMAGE]);
    assert_pulls(&mut pull(), false);
    assert_pulls(pull().env(USERNAME, "user"), false);
    assert_pulls(pull().env(USERNAME, "user").env(PASSWORD, "wrong"), false);
    assert_pulls(pull().env(USERNAME, "user").env(PASSWORD, "secret").env(HOSTNAME, "other.example"), false);
    assert_pulls(
        pull().env(USERNAME, "user").env(PASSWORD, "secret").env(HOSTNAME, "registry.example"),
        true,
    );
    assert_pulls(pull().env(USERNAME, "user").env(PASSWORD, "secret"), true);
}

#[test]
fn docker_configuration_can_have_credentials() {
    let mac = private_mac();
    let pull = || mac.command(&["pull", IMAGE]);
    let docker = |json: &str| {
        fs::create_dir_all(mac.path("user/.docker")).unwrap();
        fs::write(mac.path("user/.docker/config.json"), json).unwrap();
    };
    // Base64 of `user:secret` and of `user:se:cret`.
    docker(r#"{ "auths": { "registry.example": { "auth": "dXNlcjpzZTpjcmV0" } } }"#);
    assert_pulls(&mut pull(), false);
    docker("{");
    let warned = assert_pulls(&mut pull(), false);
    let warning = "Failed to retrieve credentials using Docker configuration credentials provider, authentication may fail: ";
    assert!(warned.stdout.contains(warning), "{warned:?}");
    docker(r#"{ "auths": { "registry.example": { "auth": "dXNlcjpzZWNyZXQ=" } } }"#);
    assert_pulls(&mut pull(), true);
}

#[test]
fn a_docker_helper_can_have_credentials() {
    let mac = private_mac();
    fs::create_dir_all(mac.path("user/.docker")).unwrap();
    let config = r#"{ "credHelpers": { ".*\\.example": "test" } }"#;
    fs::write(mac.path("user/.docker/config.json"), config).unwrap();
    let helper = mac.path("user/docker-credential-test");
    let script = "#!/bin/sh\nread host\n[ \"$1 $host\" = \"get registry.example\" ] || exit 1\necho '{\"Username\":\"user\",\"Secret\":\"secret\"}'\n";
    tart_kubelet_tests::programs::write(&helper, script).unwrap();
    let path = format!("{}:{}", mac.path("user").display(), std::env::var("PATH").unwrap());
    assert_pulls(&mut mac.command(&["pull", IMAGE]), false);
    assert_pulls(mac.command(&["pull", IMAGE]).env("PATH", path), true);
}

fn login(mac: &Mac, host: &str, password: &str, flags: &[&str]) -> Ended {
    let args = [&["login", host, "--username", "user", "--password-stdin"], flags].concat();
    let mut child = mac
        .command(&args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(child.stdin.take().unwrap(), "{password}").unwrap();
    child.wait_with_output().unwrap().into()
}

#[test]
fn login_stores_credentials_in_the_keychain() {
    let mac = private_mac();
    login(&mac, "registry.example", "wrong", &[]).fails(
        1,
        r#"invalid credentials: AuthFailed(why: "received unexpected HTTP status code 403 while retrieving an authentication token", details: "{\"errors\":[{\"code\":\"DENIED\",\"message\":\"requested access to the resource is denied\"}]}\n")"#,
    );
    let unknown = login(&mac, "elsewhere.example", "secret", &[]);
    assert!(
        unknown.stderr.starts_with("invalid credentials: Error Domain=NSURLErrorDomain Code=-1003"),
        "{unknown:?}"
    );
    assert_eq!(login(&mac, "elsewhere.example", "secret", &["--no-validate"]).code, Some(0));
    assert_pulls(&mut mac.command(&["pull", IMAGE]), false);
    assert_eq!(login(&mac, "registry.example", "secret", &[]).code, Some(0));
    assert_pulls(&mut mac.command(&["pull", IMAGE]), true);
    mac.ok(&["logout", "registry.example"]);
    mac.publish("team/mac/v1", r#"{ "cpu": 8 }"#);
    assert_pulls(&mut mac.command(&["pull", IMAGE]), false);
}

#[test]
fn pull_mentions_a_locked_keychain_and_goes_on() {
    let mac = private_mac();
    assert_eq!(login(&mac, "registry.example", "secret", &[]).code, Some(0));
    mac.switch_on(Fault::KeychainLocked, "");
    let ended = assert_pulls(&mut mac.command(&["pull", IMAGE]), false);
    let line = "Failed to retrieve credentials using Keychain credentials provider, authentication may fail: Failed(message: \"Keychain returned unsuccessful status -25308\")";
    assert!(ended.stdout.lines().any(|l| l == line), "{ended:?}");
    login(&mac, "registry.example", "secret", &[])
        .fails(1, "Error: Failed(message: \"Keychain returned unsuccessful status -25308\")");
    let from_environment =
        assert_pulls(mac.command(&["pull", IMAGE]).env(USERNAME, "user").env(PASSWORD, "secret"), true);
    assert!(!from_environment.stdout.contains("Keychain"), "tart has asked it");
}

#[test]
fn push_needs_credentials() {
    let mac = private_mac();
    mac.create("vm");
    let push = || mac.command(&["push", "vm", "registry.example/team/mac:v2"]);
    assert_pulls(&mut push(), false);
    assert_pulls(push().env(USERNAME, "user").env(PASSWORD, "secret"), true);
}
