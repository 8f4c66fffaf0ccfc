//! The firewall of VMs on a simulated Mac: packets are judged by the rules that the shipped script has loaded.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod mac;

use std::net::IpAddr;

use launchd::Host as _;
use mac::TestMac;
use pfctl_sim::{Delivery, Fault, Interface, Packet, Protocol};
use tart_provider::host::firewall::{self, ANCHOR, FirewallConfig, FirewallError, Leftover};

const VM: &str = "192.168.64.5";
const GATEWAY: &str = "192.168.64.1";
const INTERNET: &str = "198.51.100.9";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn packet(protocol: Protocol, from: &str, to: &str, port: u16) -> Packet {
    Packet::new(protocol, (address(from), source_port(to, port)), (address(to), port))
}

/// A port of its own for each destination, so that no packet belongs to the connection of another.
fn source_port(to: &str, port: u16) -> u16 {
    let sum: u16 = to.bytes().map(u16::from).fold(0, u16::wrapping_add);
    40000 + (sum.wrapping_mul(7).wrapping_add(port)) % 20000
}

/// What becomes of the first packet of a TCP connection from the VM.
fn from_vm(mac: &TestMac, to: &str, port: u16) -> Delivery {
    mac.pf.receive("bridge100", packet(Protocol::Tcp, VM, to, port)).unwrap()
}

async fn protected() -> TestMac {
    let mac = TestMac::new();
    mac.pf.start_internet_sharing().unwrap();
    firewall::apply(&mac, &FirewallConfig::default()).await.unwrap();
    mac
}

#[tokio::test]
async fn without_the_firewall_a_guest_reaches_everything() {
    let mac = TestMac::new();
    mac.pf.start_internet_sharing().unwrap();
    for to in ["10.0.0.1", "169.254.169.254", "203.0.113.7"] {
        assert!(from_vm(&mac, to, 80).is_allowed(), "{to}");
    }
}

#[tokio::test]
async fn a_guest_reaches_neither_private_networks_nor_metadata_nor_the_mac() {
    let mac = protected().await;
    for to in [
        "10.0.0.1",
        "10.255.255.254",
        "172.16.0.1",
        "172.31.9.9",
        "192.168.1.1",
        "192.168.65.7",
        "169.254.169.254",
        "169.254.1.1",
        "100.64.0.1",
        "100.127.255.254",
        "127.0.0.1",
        "224.0.0.251",
        "255.255.255.255",
    ] {
        assert!(!from_vm(&mac, to, 443).is_allowed(), "{to}");
    }
    // The agent's port, on every address of the Mac, and sshd.
    for host in [GATEWAY, "203.0.113.7"] {
        for port in [10250, 22, 10248] {
            assert!(!from_vm(&mac, host, port).is_allowed(), "{host}:{port}");
        }
    }
}

#[tokio::test]
async fn a_guest_reaches_the_internet_and_gets_names_and_its_address_from_the_mac() {
    let mac = protected().await;
    let sent = from_vm(&mac, INTERNET, 443);
    let Delivery::Sent(interface, sent) = sent else { panic!("{sent:?}") };
    assert_eq!((interface.as_str(), sent.source), ("en0", address("203.0.113.7")));
    let back = mac.pf.receive("en0", sent.reply()).unwrap();
    assert!(
        matches!(&back, Delivery::Sent(bridge, packet) if bridge == "bridge100" && packet.destination == address(VM)),
        "{back:?}"
    );
    for (protocol, from, to, ports) in [
        (Protocol::Udp, VM, GATEWAY, (50000, 53)),
        (Protocol::Tcp, VM, GATEWAY, (50001, 53)),
        (Protocol::Icmp, VM, GATEWAY, (0, 0)),
        (Protocol::Udp, "0.0.0.0", "255.255.255.255", (68, 67)),
        (Protocol::Udp, VM, GATEWAY, (68, 67)),
    ] {
        let packet = Packet::new(protocol, (address(from), ports.0), (address(to), ports.1));
        let delivery = mac.pf.receive("bridge100", packet).unwrap();
        assert!(matches!(delivery, Delivery::Host(_)), "{packet:?}: {delivery:?}");
    }
}

#[tokio::test]
async fn a_guest_is_not_heard_under_another_address_nor_by_ipv6() {
    let mac = protected().await;
    let spoofed = packet(Protocol::Tcp, "203.0.113.99", INTERNET, 443);
    assert!(!mac.pf.receive("bridge100", spoofed).unwrap().is_allowed());
    let ipv6 = packet(Protocol::Tcp, "fd00::5", "2001:db8::1", 443);
    assert!(!mac.pf.receive("bridge100", ipv6).unwrap().is_allowed());
    let dhcp_elsewhere = Packet::new(Protocol::Udp, (address(VM), 68), (address("10.0.0.1"), 67));
    assert!(!mac.pf.receive("bridge100", dhcp_elsewhere).unwrap().is_allowed());
}

#[tokio::test]
async fn the_mac_reaches_its_guests_and_hears_their_answers() {
    let mac = protected().await;
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let out = packet(protocol, GATEWAY, VM, 22);
        assert!(matches!(mac.pf.send(out).unwrap(), Delivery::Sent(bridge, _) if bridge == "bridge100"));
        let answer = mac.pf.receive("bridge100", out.reply()).unwrap();
        assert!(matches!(answer, Delivery::Host(_)), "{protocol:?}: {answer:?}");
    }
    let unasked = packet(Protocol::Tcp, GATEWAY, VM, 2222).reply();
    assert!(!mac.pf.receive("bridge100", unasked).unwrap().is_allowed());
}

#[tokio::test]
async fn what_is_allowed_is_allowed_and_no_more() {
    let mac = TestMac::new();
    mac.pf.start_internet_sharing().unwrap();
    let allowed = ["tcp 10.1.2.3 443", "udp 10.4.0.0/16 6000:6010"].map(|text| text.parse().unwrap());
    let config = FirewallConfig { allowed: allowed.into(), ..FirewallConfig::default() };
    firewall::apply(&mac, &config).await.unwrap();
    assert!(from_vm(&mac, "10.1.2.3", 443).is_allowed());
    assert!(!from_vm(&mac, "10.1.2.3", 444).is_allowed());
    assert!(!from_vm(&mac, "10.1.2.4", 443).is_allowed());
    let udp = |port| mac.pf.receive("bridge100", packet(Protocol::Udp, VM, "10.4.9.9", port)).unwrap();
    assert!(udp(6005).is_allowed() && !udp(6011).is_allowed());
}

#[tokio::test]
async fn the_network_of_running_vms_goes_on_and_the_main_ruleset_is_never_loaded() {
    let mac = TestMac::new();
    mac.pf.switch_on(Fault::Calls).unwrap();
    mac.pf.start_internet_sharing().unwrap();
    let before = mac.pf.kernel().unwrap().rules("");
    firewall::apply(&mac, &FirewallConfig::default()).await.unwrap();
    assert!(mac.pf.is_vm_nat_working().unwrap());
    assert_eq!(mac.pf.kernel().unwrap().rules(""), before);
    let calls = mac.pf.calls();
    assert!(calls.iter().any(|call| call.contains("-f ")), "{calls:?}");
    assert!(calls.iter().all(|call| !call.contains("-f ") || call.starts_with("-a com.apple/")), "{calls:?}");
}

#[tokio::test]
async fn a_second_run_changes_nothing_and_a_flush_is_healed() {
    let mac = protected().await;
    let applied = firewall::apply(&mac, &FirewallConfig::default()).await.unwrap();
    assert!(!applied.is_changed && applied.removed.is_empty(), "{applied:?}");
    mac.pf.pfctl(&["-a", ANCHOR, "-F", "all"]);
    assert!(from_vm(&mac, "10.0.0.1", 443).is_allowed());
    // What launchd does every minute.
    mac.run_loader();
    assert!(!from_vm(&mac, "10.0.0.2", 443).is_allowed());
}

#[tokio::test]
async fn one_reference_is_held_however_often_the_script_runs_and_a_new_one_after_a_boot() {
    let mac = TestMac::new();
    firewall::apply(&mac, &FirewallConfig::default()).await.unwrap();
    for _ in 0..3 {
        mac.run_loader();
    }
    assert_eq!(mac.pf.kernel().unwrap().references(), 1);
    mac.boot();
    let kernel = mac.pf.kernel().unwrap();
    assert_eq!((kernel.references(), kernel.is_enabled()), (1, true));
    // No VM has run yet: the bridge does not exist when the rules are loaded.
    assert!(!kernel.rules(ANCHOR).is_empty());
    mac.pf.start_internet_sharing().unwrap();
    assert!(!from_vm(&mac, GATEWAY, 10250).is_allowed());
    assert!(from_vm(&mac, INTERNET, 443).is_allowed());
}

#[tokio::test]
async fn a_new_address_of_the_mac_is_blocked_after_the_next_minute() {
    let mac = protected().await;
    mac.pf.set_interface(Interface::new("en1", &["198.51.100.77/24"])).unwrap();
    mac.run_loader();
    assert!(!from_vm(&mac, "198.51.100.77", 10250).is_allowed());
}

/// The file of an older provider.
const OLD_RULES: &str = "table <vm_sources> persist { 192.168.64.0/22 }\ntable <vm_dst> persist { 10.0.0.0/8 }\n\
    block drop out quick from <vm_sources> to <vm_dst>\n";
const OLD_LINES: &str =
    "anchor \"tuist.runners\"\nload anchor \"tuist.runners\" from \"/etc/pf.anchors/tuist.runners\"\n";

#[tokio::test]
async fn a_mac_with_stuck_tables_recovers_at_both_scopes() {
    for scope in [&[][..], &["-a", "tuist.runners"]] {
        let mac = TestMac::new();
        mac.write("/etc/pf.anchors/tuist.runners", OLD_RULES);
        let pfctl = |rest: &[&str]| mac.pf.pfctl(&[scope, rest].concat());
        assert_eq!(pfctl(&["-f", "/etc/pf.anchors/tuist.runners"]).code, 0);
        // The main ruleset comes back without the rules: the tables are left.
        assert_eq!(pfctl(&["-F", "rules"]).code, 0);
        if scope.is_empty() {
            assert_eq!(mac.pf.pfctl(&["-f", "/etc/pf.conf"]).code, 0);
        }
        let busy = mac.pf.pfctl(&["-a", "tuist.runners", "-f", "/etc/pf.anchors/tuist.runners"]);
        assert!(busy.stderr.contains("Resource busy"), "{busy:?}");
        mac.pf.start_internet_sharing().unwrap();
        let applied = firewall::apply(&mac, &FirewallConfig::default()).await.unwrap();
        assert_eq!(applied.removed, [Leftover::Table, Leftover::Table, Leftover::RulesFile]);
        assert_eq!(pfctl(&["-s", "Tables"]).stdout, "");
        assert!(!from_vm(&mac, "10.0.0.1", 443).is_allowed());
        assert!(mac.pf.is_vm_nat_working().unwrap());
        let again = firewall::apply(&mac, &FirewallConfig::default()).await.unwrap();
        assert_eq!(again, firewall::Applied::default());
    }
}

#[tokio::test]
async fn a_mac_with_an_older_providers_rules_in_force_is_taken_over_while_vms_run() {
    let mac = TestMac::new();
    let stock = mac.pf_conf();
    mac.write("/etc/pf.anchors/tuist.runners", OLD_RULES);
    mac.write("/etc/pf.conf", &format!("{stock}# BEGIN tuist.runners\n{OLD_LINES}# END tuist.runners\n"));
    mac.pf.reboot().unwrap();
    mac.load_job("dev.tuist.pfctl-runners");
    mac.pf.start_internet_sharing().unwrap();
    let applied = firewall::apply(&mac, &FirewallConfig::default()).await.unwrap();
    assert_eq!(
        applied.removed,
        [
            Leftover::Job,
            Leftover::PfConf,
            Leftover::Rules,
            Leftover::Table,
            Leftover::Table,
            Leftover::RulesFile
        ]
    );
    assert_eq!(mac.pf_conf(), stock);
    assert!(!mac.is_loaded("dev.tuist.pfctl-runners"));
    assert!(mac.pf.is_vm_nat_working().unwrap());
    assert!(!from_vm(&mac, "10.0.0.1", 443).is_allowed());
}

#[tokio::test]
async fn a_mac_whose_pf_conf_was_refused_at_boot_recovers_or_asks_for_a_restart() {
    for has_vms in [false, true] {
        let mac = TestMac::new();
        let stock = mac.pf_conf();
        mac.write("/etc/pf.anchors/tuist.runners", OLD_RULES);
        // Bare lines and a second copy of them: pfctl refuses the whole file.
        mac.write("/etc/pf.conf", &format!("{stock}{OLD_LINES}{OLD_LINES}"));
        mac.pf.reboot().unwrap();
        assert_eq!(mac.pf.kernel().unwrap().rules(""), [] as [&str; 0]);
        if has_vms {
            mac.pf.start_internet_sharing().unwrap();
            let error = firewall::apply(&mac, &FirewallConfig::default()).await.unwrap_err();
            assert!(matches!(error, FirewallError::NotEvaluated), "{error}");
            assert!(mac.pf.is_vm_nat_working().unwrap());
            mac.boot();
        }
        let applied = firewall::apply(&mac, &FirewallConfig::default()).await.unwrap();
        assert_eq!(applied.removed.contains(&Leftover::MainRuleset), !has_vms, "{applied:?}");
        mac.pf.start_internet_sharing().unwrap();
        assert!(!from_vm(&mac, "10.0.0.1", 443).is_allowed());
        assert!(from_vm(&mac, INTERNET, 443).is_allowed());
    }
}

#[tokio::test]
async fn a_script_that_cannot_load_the_rules_says_why() {
    let mac = TestMac::new();
    mac.set_loader_as_other_user(true);
    let error = firewall::apply(&mac, &FirewallConfig::default()).await.unwrap_err().to_string();
    assert!(error.contains("Permission denied"), "{error}");
    mac.set_loader_as_other_user(false);
    firewall::apply(&mac, &FirewallConfig::default()).await.unwrap();
    assert!(mac.read_file("/var/run/tart-kubelet-firewall/error").await.unwrap().is_none());
}
