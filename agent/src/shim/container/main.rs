//! The main container, and the containers before it.

use std::cell::OnceCell;
use std::net::IpAddr;

use jiff::Timestamp;
use tokio::time::timeout;

use super::{ContainerStart, exit_code, sync_shares};
use crate::crash_point;
use crate::guest::Guest;
use crate::guest::script::ContainerScripts;
use crate::shim::Shim;
use crate::shim::network::host_ports::HostPorts;
use crate::shim::outcome::messages::{guest_agent_missing, no_address, stopped_before_start};
use crate::shim::run_vm::GuestEnd;
use crate::shim::stop::grace_period::GracePeriod;
use crate::state::{Ending, Outcome, Stage};

/// What the shim knows of the main container while its VM runs.
#[derive(Debug, Default)]
pub(in crate::shim) struct MainContainer {
    /// Set when the guest has an address.
    pub(in crate::shim) guest_is_up: OnceCell<()>,
    pub(in crate::shim) command_started_at: OnceCell<Timestamp>,
    /// Set after the postStart hook.
    pub(in crate::shim) started_at: OnceCell<Timestamp>,
    /// The message of a failed postStart hook, in a guest that only boots.
    pub(in crate::shim) hook_failure: OnceCell<String>,
    /// Set as soon as the exit code is known: it counts, whatever happens to the VM then.
    pub(in crate::shim) exit: OnceCell<Outcome>,
    /// Set when the command's shell was killed, too.
    pub(in crate::shim) shell_killed: OnceCell<()>,
}

impl Shim {
    /// Waits for the guest's address, then runs its containers: init containers, and the main container where it is in this VM. A main
    /// container without a command ends only with a stop request or a failure.
    pub(in crate::shim) async fn run_guest(&self, ports: &HostPorts) -> GuestEnd {
        let mut stop = self.stop.clone();
        let limit = self.spec.boot_limit;
        let address = tokio::select! {
            address = timeout(limit, self.address()) => address,
            _ = stop.requested() => return GuestEnd::StopRequested(GracePeriod::of_stop(stop)),
        };
        let Ok(address) = address else { return no_address(limit).into() };
        let _ = self.main.guest_is_up.set(());
        if let Some(replaced) = self.shares_replaced().await {
            return replaced.into();
        }
        let _forwarding = ports.forward_to(address);
        let main = self.spec.main.as_ref();
        if let Some(main) = main.filter(|main| main.command.is_none()) {
            return self.run_boot_only(main, address).await;
        }
        self.enter(Stage::Up { address });
        crash_point::point("shim.up");
        let agent = tokio::select! {
            agent = timeout(limit, self.guest_agent()) => agent,
            _ = stop.requested() => return GuestEnd::StopRequested(GracePeriod::of_stop(stop)),
        };
        let Ok((mut guest, _)) = agent else {
            return guest_agent_missing(limit, "a Pod without `command` and `args`").into();
        };
        if let Err(ending) = self.run_init_containers(&mut guest, address).await {
            return GuestEnd::Ended(ending);
        }
        let Some((main, command)) = main.and_then(|main| Some((main, main.command.as_ref()?))) else {
            self.sync_shares(&mut guest).await;
            return GuestEnd::Ended(Ending::Initialized);
        };
        let is_first = self.spec.init.is_empty();
        let asks = main.asks_for_command && !is_first;
        let Some(command) = self.command_of(main, command, asks.then_some(0)).await else {
            return stopped_before_start().into();
        };
        let start = ContainerStart {
            spec: main,
            command: &command,
            address,
            identity: is_first.then_some(&self.spec.identity),
            is_main: true,
        };
        let started = |_, scripts: &ContainerScripts| self.main_started(address, Some(scripts));
        let ending = self.run_container(&mut guest, start, started).await;
        if ending != Ending::Lost {
            self.sync_shares(&mut guest).await;
        }
        GuestEnd::Ended(ending)
    }

    /// Has the guest write to the host what it has written to the Pod's volumes.
    async fn sync_shares(&self, guest: &mut Guest) {
        if self.spec.shares.iter().any(|share| !share.read_only) {
            sync_shares(guest).await;
        }
    }

    pub(in crate::shim) fn main_started(&self, address: IpAddr, scripts: Option<&ContainerScripts>) {
        let _ = self.main.started_at.set(Timestamp::now());
        self.reach(Stage::Running { address }, scripts);
        crash_point::point("shim.running");
    }

    pub(super) fn note_exit(&self, started_at: Timestamp, code: i32) {
        if code < 0 {
            let _ = self.main.shell_killed.set(());
        }
        let ending = Ending::Exited { code: exit_code(code), message: None };
        let outcome = Outcome { ending, started_at: Some(started_at), finished_at: Timestamp::now() };
        if self.main.exit.set(outcome).is_ok() {
            self.mark_ended_before_stop();
        }
    }

    pub(super) async fn persist_exit(&self) {
        if let Some(outcome) = self.main.exit.get() {
            self.persist_result(outcome).await;
        }
    }
}
