//! `tart clone`.

use std::io;

use tart_sim::Fault;

use crate::command::validation::{at_least_one_connection, local_name};
use crate::error::{Error, Result};
use crate::home::config::Config;
use crate::home::vm_dir::{State, VmDir};
use crate::home::{Home, identity, prunable};
use crate::host::faults;
use crate::oci::{self, Cache, RemoteName};
use crate::output::file_error;
use crate::{cli, interrupt};

/// Clones a VM, pulling it first if it is remote and not in the cache. A VM that has the new name already is
/// silently replaced, even while it runs.
pub(crate) fn clone(home: &Home, args: &cli::Clone) -> Result<()> {
    local_name("<new-name>", &args.new_name)?;
    at_least_one_connection(args.concurrency)?;
    if let Ok(remote) = RemoteName::parse(&args.source_name)
        && !Cache::new(home).exists(&remote)
    {
        oci::pull(home, &remote)?;
    }
    let source = home.open_vm(&args.source_name)?;
    let tmp = home.temporary()?;
    let lock = home.lock()?;
    let copied =
        interrupt::check().and_then(|()| copy(home, &source, tmp.vm())).and_then(|()| interrupt::check());
    tmp.discard_if_cancelled(copied)?;
    tmp.replace(home.vm_dir(&args.new_name).path()).map_err(Error::other)?;
    drop(lock);

    // The copy shares its blocks with the source. Make room for a part of what the guest is going to write.
    let size = |size: std::io::Result<u64>| size.map_err(Error::other);
    let unallocated = size(source.size())?.saturating_sub(size(source.allocated_size())?);
    let wanted = unallocated.min(args.prune_limit.saturating_mul(1 << 30));
    prunable::reclaim_if_needed(home, wanted, Some(source.path()))
}

/// Gives a new local VM another MAC address if a local VM has the same. Everything else stays, the machine identifier
/// included.
pub(crate) fn avoid_mac_collision(home: &Home, vm: &VmDir) -> Result<()> {
    let mut config = read_config(vm)?;
    for (name, other) in home.local_vms()? {
        if faults::is_on_for(Fault::ListRace, &name) {
            return Err(vanished(&other));
        }
        if read_config(&other)?.mac_address == config.mac_address {
            config.mac_address = identity::random_mac_address();
            return config.write(&vm.config_path());
        }
    }
    Ok(())
}

/// What Foundation says of a VM that is deleted between a look at all VMs and a look at its configuration.
pub(crate) fn vanished(vm: &VmDir) -> Error {
    Error::other(file_error::reading(&vm.config_path(), &io::ErrorKind::NotFound.into()))
}

/// Reads a VM's configuration, failing in the words of Foundation and of Swift's decoder.
pub(crate) fn read_config(vm: &VmDir) -> Result<Config> {
    vm.config().map_err(|error| Error::other(file_error::reading(&vm.config_path(), &error)))
}

fn copy(home: &Home, source: &VmDir, target: &VmDir) -> Result<()> {
    source.copy_to(target)?;
    // A suspended VM keeps its MAC address: the saved memory has it.
    if source.state() == State::Suspended { Ok(()) } else { avoid_mac_collision(home, target) }
}
