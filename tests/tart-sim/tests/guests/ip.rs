//! `tart ip` and its three resolvers.

use std::fs;
use std::time::{Duration, Instant};

use tart_sim::Fault;

use crate::mac::{Mac, eventually};

#[test]
fn an_address_that_is_not_there_costs_a_second() {
    let mac = Mac::new();
    mac.tart(&["ip", "x"]).fails(2, "the specified VM \"x\" does not exist\n");
    mac.create("a");
    for (resolver, stderr) in [
        ("dhcp", "no IP address found, is your VM running?\n"),
        ("arp", "no IP address found, is your VM running?\n"),
        (
            "agent",
            "no IP address found, is your VM running? (also make sure that Guest agent for Tart is running inside of a VM)\n",
        ),
    ] {
        let begun = Instant::now();
        mac.tart(&["ip", "a", "--resolver", resolver]).fails(1, stderr);
        assert!(begun.elapsed() >= Duration::from_secs(1));
    }
}

#[test]
fn all_resolvers_agree_and_the_lease_outlives_the_vm() {
    let mac = Mac::new();
    let a = mac.boot("a");
    let address = mac.tart(&["ip", "a"]).ok();
    for resolver in ["dhcp", "arp", "agent"] {
        assert_eq!(mac.tart(&["ip", "a", "--resolver", resolver]).ok(), address);
    }
    a.kill();
    assert_eq!(mac.tart(&["ip", "a"]).ok(), address);
    assert_eq!(mac.tart(&["ip", "a", "--resolver", "arp"]).code(), 1);
    // The same hardware address gets the same address again.
    let _a = mac.run(&["a"]);
    mac.wait_for_agent("a");
    assert_eq!(mac.tart(&["ip", "a"]).ok(), address);
}

#[test]
fn a_wait_ends_when_the_guest_has_its_address() {
    let mac = Mac::new();
    mac.create("a");
    mac.switch_on(Fault::BootDelay, "500ms");
    let _a = mac.run(&["a"]);
    let begun = Instant::now();
    mac.tart(&["ip", "a", "--wait", "60"]).ok();
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_stale_lease_is_not_the_guests_address() {
    let mac = Mac::new();
    mac.switch_on(Fault::StaleLease, "");
    let first = mac.boot("a");
    let lease = mac.tart(&["ip", "a"]).ok();
    assert_eq!(mac.tart(&["ip", "a", "--resolver", "agent"]).ok(), lease, "it had none before");
    drop(first);
    let _again = mac.run(&["a"]);
    mac.wait_for_agent("a");
    assert_eq!(mac.tart(&["ip", "a"]).ok(), lease);
    let guest = mac.tart(&["ip", "a", "--resolver", "agent"]).ok();
    assert_ne!(lease, guest);
    assert_eq!(mac.sh("a", "echo $TART_SIM_ADDRESS").ok(), guest);
}

#[test]
fn without_leases_there_is_no_address() {
    let mac = Mac::new();
    mac.switch_on(Fault::DhcpExhausted, "");
    let _a = mac.boot("a");
    mac.tart(&["ip", "a"]).fails(1, "no IP address found\n");
    mac.tart(&["ip", "a", "--resolver", "agent"]).fails(
        1,
        "no IP address found (also make sure that Guest agent for Tart is running inside of a VM)\n",
    );
}

#[test]
fn expired_leases_do_not_count() {
    let mac = Mac::new();
    mac.switch_on(Fault::DhcpLeaseTime, "1s");
    let _a = mac.boot("a");
    eventually("the lease expires", || (mac.tart(&["ip", "a"]).code() == 1).then_some(()));
    assert!(fs::read_to_string(mac.host().join("dhcpd_leases")).unwrap().contains("\tlease=0x"));
}

#[test]
fn networks_differ_in_who_knows_the_address() {
    let mac = Mac::new();
    mac.create("bridged");
    mac.create("softnet");
    let _bridged = mac.run(&["bridged", "--net-bridged=en0"]);
    let _softnet = mac.run(&["softnet", "--net-softnet"]);
    mac.wait_for_agent("bridged");
    mac.wait_for_agent("softnet");
    mac.tart(&["ip", "bridged"]).fails(1, "no IP address found\n");
    mac.tart(&["ip", "bridged", "--resolver", "arp"]).ok();
    mac.tart(&["ip", "softnet"]).ok();
    mac.tart(&["ip", "softnet", "--resolver", "arp"]).fails(1, "no IP address found\n");
    mac.switch_on(Fault::ArpGarbage, "? (192.168.64.1) at");
    mac.tart(&["ip", "bridged", "--resolver", "arp"])
        .fails(1, "Error: arp command yielded invalid output: unparseable entry \"? (192.168.64.1) at\"\n");
}
