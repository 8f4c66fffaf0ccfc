//! What `run` refuses before it does anything.

use tart_sim::Fault;

use crate::cli;
use crate::command::clone::read_config;
use crate::error::{Error, Result};
use crate::home::Home;
use crate::home::config::Os;
use crate::home::vm_dir::{State, VmDir};
use crate::host::faults;

/// Checks the command line and that the VM is there. Switches on the flags that others imply.
pub(super) fn validate(args: &mut cli::Run, home: &Home) -> Result<VmDir> {
    if args.vnc && args.vnc_experimental {
        return Err(Error::usage("--vnc and --vnc-experimental are mutually exclusive"));
    }
    args.net_softnet |= args.net_softnet_allow.is_some()
        || args.net_softnet_block.is_some()
        || args.net_softnet_expose.is_some()
        || args.net_softnet_control_fd.is_some();
    let networks = [!args.net_bridged.is_empty(), args.net_softnet, args.net_host];
    if networks.iter().filter(|&&given| given).count() > 1 {
        return Err(Error::usage("--net-bridged, --net-softnet and --net-host are mutually exclusive"));
    }
    if (args.no_graphics || args.vnc || args.vnc_experimental) && args.capture_system_keys {
        return Err(Error::usage("--captures-system-keys can only be used with the default VM view"));
    }
    if args.nested && faults::is_on(Fault::NestedUnsupported) {
        return Err(Error::usage("Nested virtualization is available for Mac with the M3 chip, and later."));
    }

    let vm = home.open_local(&args.name).map_err(Error::while_validating)?;
    args.suspendable |= vm.state() == State::Suspended;
    let os = read_config(&vm)?.os;
    if args.suspendable {
        refuse_what_cannot_be_suspended(args, os)?;
    }
    if args.no_trackpad && os != Os::Darwin {
        return Err(Error::usage("--no-trackpad can only be used with macOS VMs"));
    }
    if args.disk.iter().any(|disk| disk.ends_with("-amd64.iso")) {
        return Err(Error::usage(
            "Seems you have a disk targeting x86 architecture (hence amd64 in the name). \
             Please use an 'arm64' version of the disk.",
        ));
    }
    Ok(vm)
}

fn refuse_what_cannot_be_suspended(args: &cli::Run, os: Os) -> Result<()> {
    if os != Os::Darwin {
        return Err(Error::usage("You can only suspend macOS VMs"));
    }
    for (given, flag) in [
        (args.no_trackpad, "--no-trackpad"),
        (args.no_keyboard, "--no-keyboard"),
        (args.no_pointer, "--no-pointer"),
    ] {
        if given {
            return Err(Error::usage(format!("{flag} cannot be used with --suspendable")));
        }
    }
    Ok(())
}
