//! The grammar of every command.

use super::grammar::{Argument, Command, Count, Opt, Value};

/// The largest number of 16 bits, of a file descriptor, and of 64 bits.
const SMALL: u64 = 0xffff;
const DESCRIPTOR: u64 = 0x7fff_ffff;
const ANY: u64 = u64::MAX;

const NAME: Argument = Argument::one("name", "VM name");
const FORMAT: Opt =
    Opt::new("format", Value::OneOf("format", &["text", "json"]), "Output format: text or json")
        .default("text");
const INSECURE: Opt = Opt::flag("insecure", "Connect to the registry over plain HTTP");
const CONCURRENCY: Opt =
    Opt::new("concurrency", Value::Number("concurrency", ANY), "Network connections to use").default("4");
const DEDUPLICATE: Opt = Opt::flag("deduplicate", "Share blocks with the images in the cache").hidden();

/// All commands, in the order in which the help lists them.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        options: &[
            Opt::new(
                "from-ipsw",
                Value::Text("path"),
                "Create a macOS VM from this restore image: a path, a URL or latest",
            ),
            Opt::flag("linux", "Create a Linux VM"),
            Opt::new("disk-size", Value::Number("disk-size", SMALL), "Disk size in GB").default("50"),
            Opt::new("disk-format", Value::OneOf("disk-format", &["raw", "asif"]), "Disk image format")
                .default("raw")
                .since((2, 28, 0)),
        ],
        ..command("create", "Create a VM", &[NAME])
    },
    Command {
        options: &[
            INSECURE,
            CONCURRENCY,
            DEDUPLICATE,
            Opt::new(
                "prune-limit",
                Value::Number("n", ANY),
                "Free this many GB at most by pruning the cache",
            )
            .default("100")
            .since((2, 28, 5)),
        ],
        ..command(
            "clone",
            "Clone a VM",
            &[
                Argument::one("source-name", "Name of the VM to clone"),
                Argument::one("new-name", "Name of the new VM"),
            ],
        )
    },
    Command { options: RUN, ..command("run", "Run a VM", &[NAME]) },
    Command {
        options: &[
            Opt::new("cpu", Value::Number("cpu", SMALL), "Number of CPUs"),
            Opt::new("memory", Value::Number("memory", ANY), "Memory size in megabytes"),
            Opt::new(
                "display",
                Value::Text("display"),
                "Display resolution: <width>x<height>, optionally with pt or px",
            ),
            Opt::new("display-refit", Value::Inversion, "Whether the display follows the window's size"),
            Opt::flag("random-mac", "Generate a new MAC address"),
            Opt::flag("random-serial", "Generate a new serial number"),
            Opt::new("disk", Value::Text("path"), "Replace the VM's disk with a copy of this one"),
            Opt::new("disk-size", Value::Number("disk-size", SMALL), "Grow the disk to this size in GB"),
        ],
        ..command("set", "Modify a VM's configuration", &[NAME])
    },
    Command { options: &[FORMAT], ..command("get", "Get a VM's configuration", &[NAME]) },
    Command {
        options: &[
            Opt::new("source", Value::Text("source"), "Only VMs of this source: local or oci"),
            FORMAT,
            Opt::flag("quiet", "Only print the names").short('q'),
        ],
        ..command("list", "List created VMs", &[])
    },
    Command {
        options: &[
            Opt::new("username", Value::Text("username"), "User name"),
            Opt::flag("password-stdin", "Read the password from standard input"),
            INSECURE,
            Opt::flag("no-validate", "Store the credentials without trying them"),
        ],
        ..command("login", "Log in to a registry", &[Argument::one("host", "Registry host")])
    },
    command("logout", "Log out of a registry", &[Argument::one("host", "Registry host")]),
    Command {
        options: &[
            Opt::new("wait", Value::Number("wait", SMALL), "Seconds to wait for an address").default("0"),
            Opt::new("resolver", Value::Text("resolver"), "How to find the address: dhcp, arp or agent")
                .default("dhcp"),
        ],
        ..command("ip", "Get a VM's IP address", &[NAME])
    },
    Command {
        options: &[
            Opt::flag("interactive", "Attach standard input").only_short('i'),
            Opt::flag("tty", "Allocate a terminal").only_short('t'),
        ],
        since: (2, 27, 0),
        ..command(
            "exec",
            "Execute a command in a running VM",
            &[NAME, Argument { name: "command", count: Count::Rest, about: "Command to execute" }],
        )
    },
    Command {
        options: &[INSECURE, CONCURRENCY, DEDUPLICATE],
        ..command("pull", "Pull a VM from a registry", &[Argument::one("remote-name", "Remote VM name")])
    },
    Command {
        options: &[
            INSECURE,
            CONCURRENCY,
            Opt::new("chunk-size", Value::Number("chunk-size", ANY), "Upload in chunks of this many MB")
                .default("0"),
            Opt::new("label", Value::Text("label"), "Label of the image, as key=value").repeats(),
            Opt::flag("populate-cache", "Keep the image in the local cache as if it had been pulled"),
        ],
        ..command(
            "push",
            "Push a VM to a registry",
            &[
                Argument::one("local-name", "Local or remote VM name"),
                Argument { name: "remote-names", count: Count::Many, about: "Remote VM names" },
            ],
        )
    },
    command(
        "import",
        "Import a VM from a file",
        &[Argument::one("path", "File that export wrote"), Argument::one("name", "Name of the new VM")],
    ),
    command(
        "export",
        "Export a VM to a file",
        &[NAME, Argument { name: "path", count: Count::Optional, about: "File to write" }],
    ),
    Command {
        options: &[
            Opt::new("entries", Value::OneOf("entries", &["caches", "vms"]), "What to remove: caches or vms")
                .default("caches"),
            Opt::new("older-than", Value::Number("n", ANY), "Remove what was not used for this many days"),
            Opt::new(
                "space-budget",
                Value::Number("n", ANY),
                "Remove the least recently used beyond this many GB",
            ),
            Opt::new("cache-budget", Value::Number("n", ANY), "The older name of --space-budget").hidden(),
            Opt::flag("gc", "Collect garbage").hidden(),
        ],
        ..command("prune", "Prune OCI and IPSW caches or local VMs", &[])
    },
    command(
        "rename",
        "Rename a local VM",
        &[Argument::one("name", "VM name"), Argument::one("new-name", "New VM name")],
    ),
    Command {
        options: &[Opt::new(
            "timeout",
            Value::Number("timeout", ANY),
            "Seconds to wait before the VM is killed",
        )
        .short('t')
        .default("30")],
        ..command("stop", "Stop a VM", &[NAME])
    },
    Command {
        ..command(
            "delete",
            "Delete a VM",
            &[Argument { name: "name", count: Count::Many, about: "VM names" }],
        )
    },
    command("suspend", "Suspend a VM", &[NAME]),
    Command { hidden: true, ..command("fqn", "Get a fully-qualified VM name", &[NAME]) },
];

const RUN: &[Opt] = &[
    Opt::flag("no-graphics", "Do not open a window"),
    Opt::flag("serial", "Open a serial console in a new pseudo-terminal"),
    Opt::new("serial-path", Value::Text("serial-path"), "Attach the serial console to this device"),
    Opt::flag("no-audio", "Without audio device"),
    Opt::flag("no-clipboard", "Do not share the clipboard"),
    Opt::flag("recovery", "Boot into recovery mode"),
    Opt::flag("vnc", "Show the screen with the guest's VNC server"),
    Opt::flag("vnc-experimental", "Show the screen with the framework's VNC server"),
    Opt::new("disk", Value::Text("path[:options]"), "Attach another disk").repeats(),
    Opt::new("rosetta", Value::Text("tag"), "Share Rosetta under this tag"),
    Opt::new("dir", Value::Text("[name:]path[:options]"), "Share a directory").repeats(),
    Opt::flag("nested", "Allow virtualization in the guest"),
    Opt::new(
        "net-bridged",
        Value::Text("interface name"),
        "Bridge to this interface, or list the interfaces",
    )
    .repeats(),
    Opt::flag("net-softnet", "Isolate the network with Softnet"),
    Opt::new("net-softnet-allow", Value::Text("comma-separated CIDRs"), "Networks that Softnet lets through"),
    Opt::new("net-softnet-block", Value::Text("comma-separated CIDRs"), "Networks that Softnet blocks")
        .since((2, 30, 0)),
    Opt::new(
        "net-softnet-expose",
        Value::Text("comma-separated port specifications"),
        "Ports that Softnet exposes, as external:internal",
    ),
    Opt::new(
        "net-softnet-control-fd",
        Value::Number("fd", DESCRIPTOR),
        "Descriptor over which Softnet takes new policies",
    )
    .since((2, 34, 0)),
    Opt::flag("net-host", "Only reach the host"),
    Opt::new("root-disk-opts", Value::Text("options"), "Options of the root disk"),
    Opt::flag("suspendable", "Only use devices that can be suspended"),
    Opt::flag("capture-system-keys", "Send system keys to the guest"),
    Opt::flag("no-trackpad", "Without trackpad"),
    Opt::flag("no-pointer", "Without pointing device"),
    Opt::flag("no-keyboard", "Without keyboard"),
    Opt::new("provisioning-opts", Value::Text("options"), "Provision the guest at its first boot")
        .since((2, 33, 0)),
];

const fn command(name: &'static str, about: &'static str, arguments: &'static [Argument]) -> Command {
    Command { name, about, arguments, options: &[], hidden: false, since: (0, 0, 0) }
}

#[cfg(test)]
mod tests {
    use tart_sim::fault;

    use super::*;

    #[test]
    fn faults_know_every_command_and_the_version() {
        let mut names: Vec<_> = COMMANDS.iter().map(|command| command.name).collect();
        names.push("--version");
        assert_eq!(names, fault::COMMANDS);
    }
}
