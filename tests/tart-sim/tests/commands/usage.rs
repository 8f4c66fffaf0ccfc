//! Command lines that are refused, and the ones that only print.

use tart_sim::Fault;

use crate::mac::Mac;

#[test]
fn tart_refuses_unknown_command_lines() {
    let mac = Mac::new();
    for (args, message, usage) in [
        (&["frobnicate"][..], "Unexpected argument 'frobnicate'", "tart"),
        (&["--frobnicate"], "Unknown option '--frobnicate'", "tart"),
        (&["list", "--frobnicate"], "Unknown option '--frobnicate'", "tart list"),
        (&["list", "-x"], "Unknown option '-x'", "tart list"),
        (&["list", "extra"], "Unexpected argument 'extra'", "tart list"),
        (&["get", "a", "b", "c"], "2 unexpected arguments: 'b', 'c'", "tart get"),
        (&["get", "--format", "json"], "Missing expected argument '<name>'", "tart get"),
        (&["clone", "a"], "Missing expected argument '<new-name>'", "tart clone"),
        (&["exec", "vm"], "Missing expected argument '<command> ...'", "tart exec"),
        (&["exec", "--interactive", "vm", "true"], "Unknown option '--interactive'", "tart exec"),
        (&["set", "vm", "--cpu"], "Missing value for '--cpu <cpu>'", "tart set"),
        (&["set", "vm", "--cpu", "--memory"], "Missing value for '--cpu <cpu>'", "tart set"),
        (&["set", "vm", "--cpu", "many"], "The value 'many' is invalid for '--cpu <cpu>'", "tart set"),
        (&["set", "vm", "--cpu=65536"], "The value '65536' is invalid for '--cpu <cpu>'", "tart set"),
        (&["stop", "vm", "-t", "soon"], "The value 'soon' is invalid for '--timeout <timeout>'", "tart stop"),
        (
            &["set", "vm", "--display", "wide"],
            "The value 'wide' is invalid for '--display <display>'",
            "tart set",
        ),
        (
            &["list", "--format", "xml"],
            "The value 'xml' is invalid for '--format <format>'. Please provide one of 'text' or 'json'.",
            "tart list",
        ),
        (
            &["ip", "vm", "--resolver", "oracle"],
            "The value 'oracle' is invalid for '--resolver <resolver>'. Please provide one of 'dhcp', 'arp', or 'agent'.",
            "tart ip",
        ),
        (
            &["list", "--quiet=yes"],
            "The option '--quiet' does not take any value, but 'yes' was specified.",
            "tart list",
        ),
        (&["list", "--source", "OCI"], "'OCI' is not a valid <source>", "tart list"),
        (&["clone", "a", "b/c"], "<new-name> should be a local name", "tart clone"),
        (&["rename", "a", "b/c"], "<new-name> should be a local name", "tart rename"),
        (&["import", "a.tvm", "b/c"], "<name> should be a local name", "tart import"),
        (
            &["clone", "a", "b", "--concurrency", "0"],
            "network concurrency cannot be less than 1",
            "tart clone",
        ),
        (&["pull", "a/b", "--concurrency=0"], "network concurrency cannot be less than 1", "tart pull"),
        (
            &["push", "a", "b/c", "--label", "x"],
            "The value 'x' is invalid for '--label <label>'",
            "tart push",
        ),
        (&["create", "a"], "Please specify either a --from-ipsw or --linux option!", "tart create"),
        (
            &["login", "h", "--username", "u"],
            "both --username and --password-stdin are required",
            "tart login",
        ),
        (&["prune", "--entries", "vms"], "at least one pruning criteria must be specified", "tart prune"),
        (&["rename", "a", "b"], "failed to rename a non-existent local VM: a", "tart rename"),
    ] {
        let ended = mac.tart(args);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(64), ""), "{args:?}: {ended:?}");
        let lines: Vec<_> = ended.stderr.lines().collect();
        assert_eq!(lines.len(), 3, "{args:?}: {ended:?}");
        assert_eq!(lines[0], format!("Error: {message}"), "{args:?}");
        let see = if usage == "tart" { "tart --help".into() } else { format!("{usage} --help") };
        assert!(lines[1].starts_with(&format!("Usage: {usage} ")), "{args:?}: {}", lines[1]);
        assert_eq!(lines[2], format!("  See '{see}' for more information."), "{args:?}");
    }
}

#[test]
fn a_command_without_arguments_prints_its_help() {
    let ended = Mac::new().tart(&["get"]);
    assert_eq!(ended.code, Some(64));
    assert!(ended.stderr.starts_with("Error: Missing expected argument '<name>'\n\nOVERVIEW: "), "{ended:?}");
    assert!(ended.stderr.contains("\nUSAGE: tart get <name> [--format <format>]\n"), "{ended:?}");
}

#[test]
fn help_and_version_succeed() {
    let mac = Mac::new();
    for args in [&["--help"][..], &["-h"], &["help"], &[]] {
        let help = mac.ok(args);
        assert!(help.starts_with("USAGE: tart <subcommand>\n"), "{help}");
        assert!(help.contains("\n  clone "), "{help}");
        assert!(!help.contains("fqn"), "hidden: {help}");
    }
    for args in [&["clone", "--help"][..], &["help", "clone"], &["clone", "a", "-h"]] {
        let help = mac.ok(args);
        assert!(help.contains("USAGE: tart clone <source-name> <new-name> [--insecure]"), "{help}");
        assert!(!help.contains("deduplicate"), "hidden: {help}");
    }
    assert!(mac.ok(&["clone", "--help-hidden"]).contains("--deduplicate"));
    assert_eq!(mac.ok(&["--version"]), "2.35.0\n");
    assert!(!mac.home().exists(), "none of these touches anything");
}

#[test]
fn the_simulated_release_decides_which_flags_exist() {
    let mac = Mac::with_image("{}");
    mac.ok(&["clone", "registry.example/team/mac:v1", "vm"]);
    let row = || mac.tart(&["list", "--source=local", "--format=json"]).json()[0].clone();
    mac.switch_on(Fault::Version, "2.30.0\n");
    assert_eq!(mac.ok(&["--version"]), "2.30.0\n");
    assert!(row()["SizeOnDisk"].is_u64() && row()["Accessed"].is_null(), "{}", row());
    assert!(mac.ok(&["list"]).starts_with("Source Name"));
    mac.switch_on(Fault::Version, "2.31.0");
    assert!(row()["SizeOnDisk"].is_null() && row()["Accessed"].is_string(), "{}", row());
    mac.switch_on(Fault::Version, "2.27.0");
    assert!(mac.tart(&["get", "vm", "--format=json"]).json()["DiskFormat"].is_null());
    assert_eq!(mac.tart(&["clone", "a", "b", "--prune-limit=1"]).code, Some(64));
    let resolver = mac.tart(&["ip", "vm", "--resolver=agent"]);
    assert!(resolver.stderr.contains("Please provide one of 'dhcp' or 'arp'."), "{resolver:?}");
    mac.switch_on(Fault::Version, "2.26.0");
    assert_eq!(mac.tart(&["exec", "vm", "true"]).code, Some(64));
}
