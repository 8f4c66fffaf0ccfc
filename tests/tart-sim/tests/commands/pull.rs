//! `tart pull` from a registry that works.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tart_sim::Fault;

use crate::mac::Mac;

const IMAGE: &str = "registry.example/team/mac:v1";

/// A pull that can be watched.
struct Watched {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Watched {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Reads up to the first line that fits, and returns it.
    fn until(&mut self, fits: impl Fn(&str) -> bool) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "it ended");
            if fits(line.trim_end()) {
                return line.trim_end().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Exit code and stderr.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

fn percent(line: &str) -> Option<u32> {
    line.strip_suffix('%')?.parse().ok()
}

#[test]
fn pull_prints_its_steps() {
    let mac = Mac::with_image(r#"{ "compressedGB": 18.1 }"#);
    assert_eq!(
        mac.tart(&["pull", IMAGE]).lines(),
        [
            "pulling registry.example/team/mac:v1...",
            "pulling manifest...",
            "pulling disk (18.1 GB compressed)...",
            "0%",
            "100%",
            "pulling NVRAM..."
        ]
    );
    let fqn = mac.ok(&["fqn", IMAGE]);
    assert_eq!(
        mac.tart(&["pull", IMAGE]).lines()[2],
        format!("{} image is already cached and linked!", fqn.trim_end())
    );
}

#[test]
fn pull_overwrites_its_progress_line_unless_in_ci() {
    let mac = Mac::with_image("{}");
    let output = mac.command(&["pull", IMAGE]).env_remove("CI").output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("0%\n\u{1b}[1A\r\u{1b}[2K100%\n"));
}

#[test]
fn the_cache_has_a_directory_per_digest_and_a_link_per_tag() {
    let mac = Mac::with_image("{}");
    mac.publish("team/mac/v2", "{}");
    mac.ok(&["pull", IMAGE]);
    mac.ok(&["pull", "registry.example/team/mac:v2"]);
    let repository = mac.home().canonicalize().unwrap().join("cache/OCIs/registry.example/team/mac");
    let target = fs::read_link(repository.join("v1")).unwrap();
    assert_eq!(target, fs::read_link(repository.join("v2")).unwrap(), "the same content");
    assert_eq!(target.parent(), Some(repository.as_path()), "absolute");
    assert!(target.file_name().unwrap().to_str().unwrap().starts_with("sha256:"));
    for file in ["config.json", "disk.img", "nvram.bin", "manifest.json"] {
        assert!(target.join(file).exists(), "{file}");
    }
    assert!(mac.tmp().is_empty());
}

#[test]
fn a_port_is_escaped_on_disk_and_nowhere_else() {
    let mac = Mac::new();
    let image = mac.path("host/registry/registry.example:5000/image/latest");
    fs::create_dir_all(&image).unwrap();
    fs::write(image.join("image.json"), "{}").unwrap();
    mac.ok(&["pull", "registry.example:5000/image"]);
    assert!(mac.home().join("cache/OCIs/registry.example%3A5000/image/latest").exists());
    assert_eq!(mac.names()[0], "registry.example:5000/image:latest");
}

#[test]
fn pulls_from_one_registry_wait_for_each_other() {
    let mac = Mac::with_image("{}");
    mac.publish("team/other/v1", r#"{ "cpu": 8 }"#);
    mac.switch_on(Fault::Pull, &format!("stall at=layers only={IMAGE}"));
    let mut first = Watched::start(&mut mac.command(&["pull", IMAGE]));
    first.until(|line| line.starts_with("pulling disk"));
    let mut second = Watched::start(&mut mac.command(&["pull", "registry.example/team/other:v1"]));
    second.until(|line| line == "waiting for lock...");
    assert!(mac.names().is_empty());
    mac.switch_off(Fault::Pull);
    assert_eq!(first.end(), (Some(0), String::new()));
    assert_eq!(second.end(), (Some(0), String::new()));
    assert_eq!(mac.names().len(), 4);
}

#[test]
fn an_interrupted_pull_leaves_nothing() {
    let mac = Mac::with_image(r#"{ "pullSeconds": 600 }"#);
    for args in [&["pull", IMAGE][..], &["clone", IMAGE, "vm"]] {
        let mut pull = Watched::start(&mut mac.command(args));
        pull.until(|line| percent(line).is_some());
        assert_eq!(mac.tmp().len(), 1);
        pull.signal(Signal::SIGINT);
        assert_eq!(pull.end(), (Some(1), "Error: CancellationError()\n".into()));
        assert!(mac.tmp().is_empty());
        assert!(mac.names().is_empty());
    }
}

#[test]
fn a_killed_pull_goes_on_where_it_was_unless_another_command_cleans_up() {
    let mac = Mac::with_image(r#"{ "pullSeconds": 40 }"#);
    let killed = || {
        let mut pull = Watched::start(&mut mac.command(&["pull", IMAGE]));
        let first = pull.until(|line| percent(line).is_some());
        pull.until(|line| percent(line).is_some_and(|reached| reached > percent(&first).unwrap()));
        pull.signal(Signal::SIGKILL);
        assert_eq!(pull.end().0, None);
        percent(&first).unwrap()
    };
    assert_eq!(killed(), 0);
    assert_eq!(mac.tmp()[0].file_name().unwrap().len(), 32, "a hash of the name");
    assert!(killed() >= 1);
    assert!(killed() >= 2);
    mac.ok(&["list"]);
    assert!(mac.tmp().is_empty());
    assert_eq!(killed(), 0);
}
