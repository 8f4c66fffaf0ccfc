//! The running VMs of all users, as the virtualization framework counts them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tart_sim::Fault;

use crate::home::config::Os;
use crate::home::file_lock::FileLock;
use crate::host::dhcp_leases::{Leases, MacAddress, Subnet};
use crate::host::{self, faults};

/// How many macOS guests a Mac runs at a time, unless the knob `vm-limit` says otherwise.
const DARWIN_LIMIT: usize = 2;

/// What the host knows of one running VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    os: Os,
    mac: String,
    /// `None` until the guest has one.
    address: Option<Ipv4Addr>,
    /// Whether the host's ARP table shows the guest.
    arp: bool,
}

/// How a VM is connected, as far as its address is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// The framework's NAT.
    Shared,
    /// A network with a DHCP server of its own.
    Bridged,
    /// Packets filtered by Softnet.
    Softnet,
}

/// A place among the running VMs: a file that is locked until the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Slot {
    path: PathBuf,
    file: File,
    record: Record,
    network: Network,
}

/// Taking a place failed.
#[derive(Debug)]
pub(crate) enum NoSlot {
    /// As many macOS guests run as the Mac allows.
    LimitExceeded,
    /// The host's directory cannot be used.
    Io(io::Error),
}

impl From<io::Error> for NoSlot {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Slot {
    /// Takes a place for a VM of this process.
    pub(crate) fn take(os: Os, mac: &str, network: Network) -> Result<Self, NoSlot> {
        let (dir, _lock) = lock_host()?;
        if os == Os::Darwin {
            let running = running_vms(&dir)?.iter().filter(|vm| vm.os == Os::Darwin).count();
            if running + stuck_slots() >= darwin_limit() {
                return Err(NoSlot::LimitExceeded);
            }
        }
        let path = dir.join(std::process::id().to_string());
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        file.lock()?;
        let record = Record { os, mac: mac.into(), address: None, arp: network != Network::Softnet };
        let mut slot = Self { path, file, record, network };
        slot.save()?;
        Ok(slot)
    }

    /// Gives the guest an address, unless the network has none left.
    pub(crate) fn connect(
        &mut self,
        subnet: Subnet,
        host_name: &str,
        stale_lease: bool,
    ) -> io::Result<Option<Ipv4Addr>> {
        let (dir, _lock) = lock_host()?;
        let own = self.record.address.take();
        self.save()?;
        let in_use: Vec<_> = running_vms(&dir)?.iter().filter_map(|vm| vm.address).collect();
        self.record.address = self.address(subnet, host_name, stale_lease, &in_use, own)?;
        self.save()?;
        Ok(self.record.address)
    }

    fn address(
        &self,
        subnet: Subnet,
        host_name: &str,
        stale_lease: bool,
        in_use: &[Ipv4Addr],
        own: Option<Ipv4Addr>,
    ) -> io::Result<Option<Ipv4Addr>> {
        let Some(mac) = MacAddress::parse(&self.record.mac) else { return Ok(None) };
        let mut leases = Leases::read()?;
        if self.network == Network::Bridged {
            // Another DHCP server lends it: the Mac has no lease.
            return Ok(own.or_else(|| leases.unused(subnet, in_use)));
        }
        // The Mac has lent it an address before.
        if stale_lease && leases.knows(mac) {
            return Ok(leases.unused(subnet, in_use));
        }
        let address = leases.lend(subnet, mac, host_name, in_use);
        leases.write()?;
        Ok(address)
    }

    fn save(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&serde_json::to_vec(&self.record)?)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The next process that counts would remove it too.
        let _ = fs::remove_file(&self.path);
    }
}

/// The host's ARP table: hardware address and address of every VM that shows up there.
pub(crate) fn arp_table() -> io::Result<Vec<(MacAddress, Ipv4Addr)>> {
    let (dir, _lock) = lock_host()?;
    let vms = running_vms(&dir)?.into_iter().filter(|vm| vm.arp);
    Ok(vms.filter_map(|vm| Some((MacAddress::parse(&vm.mac)?, vm.address?))).collect())
}

/// Takes the lock under which places are counted and addresses are lent.
fn lock_host() -> io::Result<(PathBuf, FileLock)> {
    let dir = host::dir().join("running");
    fs::create_dir_all(&dir)?;
    let lock = FileLock::wait(&dir)?;
    Ok((dir, lock))
}

/// Every place that a living process holds. Removes those of dead processes.
fn running_vms(dir: &Path) -> io::Result<Vec<Record>> {
    let mut vms = Vec::new();
    for entry in fs::read_dir(dir)? {
        match running_vm(&entry?.path()) {
            Ok(vm) => vms.extend(vm),
            // Its process just ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(vms)
}

fn running_vm(path: &Path) -> io::Result<Option<Record>> {
    if FileLock::attempt(path)?.is_some() {
        fs::remove_file(path)?;
        return Ok(None);
    }
    Ok(serde_json::from_slice(&fs::read(path)?).ok())
}

/// How many macOS guests run at a time.
fn darwin_limit() -> usize {
    faults::parameter(Fault::VmLimit).and_then(|number| number.parse().ok()).unwrap_or(DARWIN_LIMIT)
}

/// Places that the framework counts although their guests are gone.
fn stuck_slots() -> usize {
    faults::parameter(Fault::VmLimitStuck)
        .map_or(0, |number| number.parse().unwrap_or_else(|_| darwin_limit()))
}
