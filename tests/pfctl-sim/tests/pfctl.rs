//! The simulated `pfctl`, as a program sees it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::net::IpAddr;

use pfctl_sim::{Delivery, Fault, Mac, Output, Packet, Protocol};

/// A Mac with files of its own.
struct Scene {
    mac: Mac,
    root: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc/pf.anchors")).unwrap();
        Self { mac: Mac::new(&root.path().join("host"), root.path()), root }
    }

    fn file(&self, path: &str, text: &str) {
        fs::write(self.root.path().join(path.trim_start_matches('/')), text).unwrap();
    }

    fn pfctl(&self, arguments: &str) -> Output {
        self.mac.pfctl(&arguments.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs pfctl; it must succeed. Returns what it says after its usual noise.
    fn ok(&self, arguments: &str) -> String {
        let output = self.pfctl(arguments);
        assert_eq!(output.code, 0, "{arguments}: {}", output.stderr);
        words(&output)
    }

    /// Runs pfctl; it must fail with exit code 1.
    fn fails(&self, arguments: &str) -> String {
        let output = self.pfctl(arguments);
        assert_eq!(output.code, 1, "{arguments}: {}", output.stderr);
        words(&output)
    }

    fn tcp(from: &str, to: &str, port: u16) -> Packet {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        Packet::new(Protocol::Tcp, (address(from), 50000), (address(to), port))
    }
}

fn words(output: &Output) -> String {
    const NOISE: &str = "No ALTQ support in kernel\nALTQ related functions disabled\n";
    assert!(output.stderr.contains(NOISE), "{}", output.stderr);
    format!("{}{}", output.stdout, output.stderr.split(NOISE).last().unwrap())
}

fn token(text: &str) -> String {
    text.strip_prefix("pf enabled\nToken : ").unwrap().trim().to_owned()
}

#[test]
fn pf_is_off_after_the_start_and_has_the_stock_anchors() {
    let scene = Scene::new();
    assert!(scene.ok("-s info").starts_with("Status: Disabled"));
    assert_eq!(scene.ok("-sr"), "scrub-anchor \"com.apple/*\" all\nanchor \"com.apple/*\" all\n");
    assert_eq!(scene.ok("-s Anchors"), "  com.apple\n");
    assert_eq!(scene.ok("-s References"), "No pf starter references held\n");
    assert!(scene.ok("-vsA").contains("  com.apple\n"));
}

#[test]
fn every_enable_takes_a_reference_and_the_last_release_disables() {
    let scene = Scene::new();
    let first = token(&scene.ok("-E"));
    let second = token(&scene.ok("-E"));
    assert_eq!(scene.ok("-s References").lines().count(), 4);
    assert_eq!(
        scene.ok(&format!("-X {first}")),
        "disable request successful. 1 more pf enable reference(s) remaining, pf still enabled.\n"
    );
    assert_eq!(scene.fails(&format!("-X {first}")), "pfctl: pf: token invalid\n");
    assert_eq!(scene.ok(&format!("-X {second}")), "pf disabled\n");
    assert_eq!(scene.fails(&format!("-X {second}")), "pfctl: pf not enabled\n");
    assert_eq!(scene.ok("-e"), "pf enabled\n");
    assert_eq!(scene.fails("-e"), "pfctl: pf already enabled\n");
    assert_eq!(scene.ok("-d"), "pf disabled\n");
    assert_eq!(scene.fails("-d"), "pfctl: pf not enabled\n");
}

#[test]
fn a_file_with_an_error_leaves_the_old_rules() {
    let scene = Scene::new();
    scene.file("/etc/good", "block in on en0\n");
    scene.file("/etc/bad", "pass all\n\nnonsense\n");
    scene.ok("-a com.apple/x -f /etc/good");
    assert_eq!(
        scene.fails("-a com.apple/x -f /etc/bad"),
        "/etc/bad:3: syntax error\npfctl: Syntax error in config file: pf rules not loaded\n"
    );
    assert_eq!(scene.ok("-a com.apple/x -sr"), "block drop in on en0 all\n");
    assert!(scene.fails("-a com.apple/x -f /etc/none").contains("No such file or directory"));
    assert_eq!(scene.ok("-n -a com.apple/y -f /etc/good"), "");
    assert_eq!(scene.ok("-a com.apple/y -sr"), "");
}

#[test]
fn an_anchor_outside_com_apple_is_loaded_and_not_evaluated() {
    let scene = Scene::new();
    scene.file("/etc/block", "block in on en0\n");
    scene.ok("-E");
    let arrives = || scene.mac.receive("en0", Scene::tcp("198.51.100.1", "203.0.113.7", 22)).unwrap();
    scene.ok("-a mine -f /etc/block");
    assert!(arrives().is_allowed());
    scene.ok("-a com.apple/mine -f /etc/block");
    assert_eq!(arrives(), Delivery::Blocked("block drop in on en0 all".into()));
    scene.ok("-a com.apple/mine -F rules");
    assert!(arrives().is_allowed());
}

#[test]
fn the_last_match_decides_unless_one_is_quick_and_anchors_come_in_alphabetical_order() {
    let scene = Scene::new();
    scene.ok("-E");
    scene.file("/etc/block", "block in on en0\n");
    scene.file("/etc/pass", "pass in on en0\n");
    scene.file("/etc/quick", "block in quick on en0\n");
    let arrives = |port| scene.mac.receive("en0", Scene::tcp("198.51.100.1", "203.0.113.7", port)).unwrap();
    scene.ok("-a com.apple/1 -f /etc/block");
    scene.ok("-a com.apple/2 -f /etc/pass");
    assert!(arrives(1).is_allowed());
    scene.ok("-a com.apple/3 -f /etc/block");
    assert!(!arrives(2).is_allowed());
    scene.ok("-a com.apple/3 -f /etc/pass");
    scene.ok("-a com.apple/1 -f /etc/quick");
    assert!(!arrives(3).is_allowed());
}

#[test]
fn a_reply_passes_by_its_state_and_only_a_rule_that_passes_makes_one() {
    let scene = Scene::new();
    scene.ok("-E");
    scene.file("/etc/in", "block in on en0\n");
    scene.file("/etc/both", "block in on en0\npass out on en0\n");
    let (out, other) =
        (Scene::tcp("203.0.113.7", "198.51.100.1", 443), Scene::tcp("203.0.113.7", "198.51.100.2", 443));
    scene.ok("-a com.apple/x -f /etc/in");
    assert!(scene.mac.send(out).unwrap().is_allowed());
    assert!(!scene.mac.receive("en0", out.reply()).unwrap().is_allowed());
    scene.ok("-a com.apple/x -f /etc/both");
    assert!(scene.mac.send(other).unwrap().is_allowed());
    assert!(scene.mac.receive("en0", other.reply()).unwrap().is_allowed());
    assert!(scene.ok("-k 203.0.113.7").starts_with("killed 1 states"));
    assert!(!scene.mac.receive("en0", other.reply()).unwrap().is_allowed());
}

#[test]
fn loading_the_main_ruleset_breaks_the_network_of_vms() {
    let scene = Scene::new();
    scene.mac.start_internet_sharing().unwrap();
    assert!(scene.mac.is_vm_nat_working().unwrap());
    let from_vm = Scene::tcp("192.168.64.5", "198.51.100.1", 443);
    let Delivery::Sent(interface, sent) = scene.mac.receive("bridge100", from_vm).unwrap() else { panic!() };
    assert_eq!((interface.as_str(), sent.source.to_string()), ("en0", "203.0.113.7".into()));
    let Delivery::Sent(interface, back) = scene.mac.receive("en0", sent.reply()).unwrap() else { panic!() };
    assert_eq!((interface.as_str(), back.destination.to_string()), ("bridge100", "192.168.64.5".into()));
    let output = scene.pfctl("-f /etc/pf.conf");
    assert!(output.code == 0 && output.stderr.contains("could result in flushing of rules"), "{output:?}");
    assert!(!scene.mac.is_vm_nat_working().unwrap());
}

#[test]
fn a_load_anchor_that_comes_twice_is_busy() {
    let scene = Scene::new();
    scene.file("/etc/pf.anchors/mine", "table <vm> { 192.168.64.0/22 }\nblock from <vm>\n");
    let load = "load anchor \"mine\" from \"/etc/pf.anchors/mine\"\n";
    scene.file("/etc/pf.conf", &format!("anchor \"mine\"\n{load}"));
    scene.ok("-f /etc/pf.conf");
    scene.file("/etc/pf.conf", &format!("anchor \"mine\"\n{load}{load}"));
    let busy = "/etc/pf.anchors/mine:1: cannot define table vm: Resource busy\n\
                pfctl: Syntax error in config file: pf rules not loaded\n";
    assert_eq!(scene.fails("-f /etc/pf.conf"), busy);
    // Only to check the file is no better: pfctl loads the anchor all the same.
    scene.file("/etc/pf.conf", load);
    assert_eq!(scene.fails("-n -f /etc/pf.conf"), busy);
    // A Mac that starts with such a file has no rules at all.
    scene.file("/etc/pf.conf", &format!("anchor \"com.apple/*\"\n{load}{load}"));
    scene.mac.reboot().unwrap();
    assert_eq!(scene.ok("-sr"), "");
}

#[test]
fn persistent_tables_outlive_a_flush_at_either_scope_and_are_busy_until_killed() {
    let scene = Scene::new();
    scene.file("/etc/persist", "table <vm> persist { 192.168.64.0/22 }\nblock from <vm>\n");
    scene.file("/etc/plain", "table <vm> { 192.168.64.0/22 }\nblock from <vm>\n");
    for scope in ["", "-a mine "] {
        scene.ok(&format!("{scope}-f /etc/persist"));
        assert_eq!(scene.fails(&format!("{scope}-t vm -T kill")), "pfctl: Resource busy.\n");
        assert!(scene.ok(&format!("{scope}-F all")).contains("\n0 tables deleted.\n"));
        assert_eq!(scene.ok(&format!("{scope}-s Tables")), "vm\n");
        assert!(scene.fails("-a mine -f /etc/plain").contains("cannot define table vm: Resource busy"));
        assert_eq!(scene.ok(&format!("{scope}-t vm -T kill")), "1 table deleted.\n");
        assert_eq!(scene.fails(&format!("{scope}-t vm -T kill")), "pfctl: Table does not exist.\n");
    }
    scene.ok("-a mine -f /etc/plain");
    assert!(scene.ok("-a mine -vsT").starts_with("--a-r--\tvm\tmine"));
}

#[test]
fn tables_are_filled_and_asked_in_pfctls_words() {
    let scene = Scene::new();
    assert_eq!(scene.ok("-t x -T add 10/8"), "1 table created.\n1/1 addresses added.\n");
    assert_eq!(scene.ok("-t x -T add 10/8 11.0.0.1"), "1/2 addresses added.\n");
    assert_eq!(scene.ok("-t x -T show"), "   10.0.0.0/8\n   11.0.0.1\n");
    assert_eq!(scene.ok("-t x -T test 10.1.2.3"), "1/1 addresses match.\n");
    let missed = scene.pfctl("-t x -T test 12.0.0.1");
    assert_eq!((missed.code, words(&missed).as_str()), (2, "0/1 addresses match.\n"));
    assert_eq!(scene.ok("-t x -T replace 10/8 11.0.0.1"), "no changes.\n");
    assert_eq!(scene.ok("-t x -T replace 10/8"), "1 addresses deleted.\n");
    assert_eq!(scene.ok("-t x -T delete 10/8"), "1/1 addresses deleted.\n");
    scene.file("/etc/const", "table <c> const { 10/8 }\nblock from <c>\n");
    scene.ok("-a com.apple/c -f /etc/const");
    assert_eq!(scene.fails("-a com.apple/c -t c -T add 11/8"), "pfctl: Operation not permitted.\n");
}

#[test]
fn two_loads_of_one_anchor_at_once_do_not_both_succeed() {
    let scene = Scene::new();
    scene.file("/etc/rules", "table <t> { 10/8 }\nblock from <t>\n");
    scene.mac.switch_on(Fault::HoldLoad).unwrap();
    let load = || scene.pfctl("-a com.apple/x -f /etc/rules").code;
    let codes = std::thread::scope(|scope| {
        let threads = [scope.spawn(load), scope.spawn(load)];
        while scene.mac.kernel().unwrap().loads("com.apple/x") < 2 {
            std::thread::yield_now();
        }
        scene.mac.switch_off(Fault::HoldLoad).unwrap();
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(codes.contains(&0) && codes.contains(&1), "{codes:?}");
}

#[test]
fn a_restart_leaves_nothing_that_was_loaded() {
    let scene = Scene::new();
    scene.file("/etc/rules", "block in on en0\n");
    scene.ok("-a com.apple/x -f /etc/rules");
    scene.ok("-E");
    scene.mac.reboot().unwrap();
    assert_eq!(scene.ok("-a com.apple/x -sr"), "");
    assert_eq!(scene.ok("-s References"), "No pf starter references held\n");
}

#[test]
fn faults_are_as_strict_as_the_rest() {
    let scene = Scene::new();
    scene.mac.switch_on(Fault::NotRoot).unwrap();
    assert!(scene.pfctl("-sr").stderr.ends_with("pfctl: /dev/pf: Permission denied\n"));
    scene.mac.switch_off(Fault::NotRoot).unwrap();
    fs::write(scene.root.path().join("host/pf/faults/typo"), "").unwrap();
    assert_eq!(scene.pfctl("-sr").code, 78);
}
