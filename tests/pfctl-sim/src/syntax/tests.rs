//! Tests of the language.

use super::*;

fn interfaces() -> Vec<Interface> {
    vec![Interface::new("lo0", &["127.0.0.1"]), Interface::new("en0", &["203.0.113.7", "fd00::7"])]
}

/// The rules of a text, as `pfctl -s rules` prints them.
fn printed(text: &str) -> Vec<String> {
    parse(text, &interfaces()).unwrap().rules.iter().map(ToString::to_string).collect()
}

fn errors(text: &str) -> Vec<(usize, String)> {
    let errors = parse(text, &interfaces()).unwrap_err();
    errors.into_iter().map(|error| (error.line, error.messages.join("; "))).collect()
}

#[test]
fn rules_are_printed_as_pfctl_prints_them() {
    for (text, expected) in [
        ("pass all", "pass all flags S/SA keep state"),
        ("block in on en0", "block drop in on en0 all"),
        (
            "pass in quick on bridge100 inet proto udp from any port 68 to any port 67",
            "pass in quick on bridge100 inet proto udp from any port = bootpc to any port = bootps keep state",
        ),
        (
            "pass out proto tcp to 10/8 port 8000:8010",
            "pass out inet proto tcp from any to 10.0.0.0/8 port 8000:8010 flags S/SA keep state",
        ),
        ("block return in inet6 all", "block return in inet6 all"),
        (
            "block in from ! 192.168.64.0/22 to <blocked>",
            "block drop in inet from ! 192.168.64.0/22 to <blocked>",
        ),
        (
            "nat on en0 inet from 192.168.64.0/24 to any -> (en0:0) extfilter ei",
            "nat on en0 inet from 192.168.64.0/24 to any -> (en0)",
        ),
        ("anchor \"com.apple/*\"", "anchor \"com.apple/*\" all"),
        ("scrub in all fragment reassemble", "scrub in all fragment reassemble"),
    ] {
        assert_eq!(printed(text), [expected], "{text}");
    }
}

#[test]
fn lists_and_macros_are_expanded() {
    let text = "vm_if = \"{ bridge100, bridge101 }\"\ngw = 192.168.64.1\n\
                pass in on $vm_if inet proto { tcp udp } to { $gw } port 53 # DNS\n";
    let rules = printed(text);
    assert_eq!(rules.len(), 4, "{rules:#?}");
    assert_eq!(
        rules[0],
        "pass in on bridge100 inet proto tcp from any to 192.168.64.1 port = domain flags S/SA keep state"
    );
    assert_eq!(
        rules[3],
        "pass in on bridge101 inet proto udp from any to 192.168.64.1 port = domain keep state"
    );
}

#[test]
fn self_stands_for_the_addresses_of_the_moment_in_the_rules_family() {
    assert_eq!(
        printed("block in inet to self"),
        ["block drop in inet from any to 127.0.0.1", "block drop in inet from any to 203.0.113.7"]
    );
    assert_eq!(printed("block in to self").len(), 3);
    assert_eq!(errors("block in to bridge100"), [(1, "no IP address found for bridge100".into())]);
}

#[test]
fn errors_are_told_in_pfctls_words_with_their_lines() {
    assert_eq!(errors("pass all\n\nnonsense here\n"), [(3, "syntax error".into())]);
    assert_eq!(errors("pass in on $vm_if\n"), [(1, "macro 'vm_if' not defined; syntax error".into())]);
    assert_eq!(
        errors("pass to any port 53"),
        [(
            1,
            format!(
                "port only applies to tcp/udp; skipping rule due to errors; {}",
                "rule expands to no valid combination"
            )
        )]
    );
    assert_eq!(errors("pass inet6 to 10.0.0.1"), [(1, "rule expands to no valid combination".into())]);
    assert_eq!(errors("pass all\nnat on en0 from any to any -> (en0)\n").len(), 1);
    assert_eq!(errors("pass quick in all"), [(1, "syntax error".into())]);
    assert!(errors("antispoof for en0")[0].1.contains("does not simulate"));
}

#[test]
fn tables_and_anchors_to_load_are_read() {
    let file =
        parse("table <vm> persist { 10/8,\n  192.168.0.0/16 }\nload anchor \"a\" from \"/etc/a\"\n", &[])
            .unwrap();
    assert_eq!(file.tables[0].name, "vm");
    assert!(file.tables[0].is_persistent && !file.tables[0].is_constant);
    assert_eq!(file.tables[0].addresses.len(), 2);
    assert_eq!(file.anchors, [LoadAnchor { name: "a".into(), file: "/etc/a".into() }]);
}
