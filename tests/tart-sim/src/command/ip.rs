//! `tart ip`.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use tart_sim::Fault;

use crate::cli::{self, Resolver};
use crate::command::clone::read_config;
use crate::error::{Error, Result};
use crate::guest_agent::client::Client;
use crate::home::Home;
use crate::home::config::Os;
use crate::home::vm_dir::VmDir;
use crate::host::dhcp_leases::{Leases, MacAddress};
use crate::host::{faults, running_vms};
use crate::output::stdout;

/// The pause after each look that finds no address.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the guest agent has for its answer.
const AGENT_DEADLINE: Duration = Duration::from_secs(1);

/// Prints a VM's address.
pub(crate) fn ip(args: &cli::Ip) -> Result<ExitCode> {
    let vm = Home::open()?.open_local(&args.name)?;
    let config = read_config(&vm)?;
    let mac = MacAddress::parse(&config.mac_address).ok_or_else(|| Error::other("invalid MAC address"))?;
    let deadline = Instant::now() + Duration::from_secs(args.wait);
    loop {
        if let Some(address) = resolve(args.resolver, &vm, mac)? {
            stdout::line(address.to_string());
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(PAUSE);
        if Instant::now() >= deadline {
            return Err(not_found(args.resolver, &vm, config.os));
        }
    }
}

fn resolve(resolver: Resolver, vm: &VmDir, mac: MacAddress) -> Result<Option<Ipv4Addr>> {
    match resolver {
        Resolver::Dhcp => Ok(Leases::read_strictly().map_err(Error::other)?.find(mac)),
        Resolver::Arp => ask_arp(mac),
        Resolver::Agent => ask_agent(vm),
    }
}

fn ask_arp(mac: MacAddress) -> Result<Option<Ipv4Addr>> {
    if let Some(line) = faults::parameter(Fault::ArpGarbage) {
        return Err(Error::other(format!(
            "arp command yielded invalid output: unparseable entry \"{line}\""
        )));
    }
    let table = running_vms::arp_table().map_err(Error::other)?;
    Ok(table.into_iter().find(|(theirs, _)| *theirs == mac).map(|(_, address)| address))
}

fn ask_agent(vm: &VmDir) -> Result<Option<Ipv4Addr>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::other)?;
    // The path of a socket is limited in length.
    vm.enter();
    Ok(runtime.block_on(async {
        let answer = async {
            let mut client = Client::connect(Path::new("control.sock"), AGENT_DEADLINE).await?;
            client.resolve_ip().await.ok()
        };
        tokio::time::timeout(AGENT_DEADLINE, answer).await.ok().flatten()
    }))
}

fn not_found(resolver: Resolver, vm: &VmDir, os: Os) -> Error {
    let mut message = "no IP address found".to_owned();
    if !vm.is_running() {
        message.push_str(", is your VM running?");
    }
    match (resolver, os) {
        (Resolver::Agent, _) => {
            message.push_str(" (also make sure that Guest agent for Tart is running inside of a VM)");
        }
        (Resolver::Arp, Os::Linux) => {
            message.push_str(" (not all Linux distributions are compatible with the ARP resolver)");
        }
        _ => {}
    }
    Error::runtime(message)
}
