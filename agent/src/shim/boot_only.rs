//! A container that only boots: the guest is up, and it is what runs.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::Shim;
use super::container::hooks;
use super::container::hooks::HookPoint;
use super::container::{LEAST_AFTER_HOOK, Run};
use super::outcome::messages::guest_agent_missing;
use super::outcome::run_result::{Container, GuestEnd};
use super::stop::grace_period::GracePeriod;
use crate::crash_point;
use crate::guest::script::{self, Ready};
use crate::state::{Ending, Hook, POD_IP, Stage};
use crate::volume::boot_share;

/// How soon something that has failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// What helps when the guest agent is missing.
const NO_COMMANDS: &str = "hooks and probes that are no commands";

impl Shim {
    /// Sees a guest without a command through its hooks, until it is to be shut down.
    pub(super) async fn boot(&self, container: &mut Container, address: IpAddr) -> GuestEnd {
        self.enter(Stage::Up { address });
        self.tell_address(address);
        let (mut stop, patience) = (self.stop.clone(), self.spec.boot_limit);
        let surrounded = tokio::select! {
            surrounded = timeout(patience, self.surround(address)) => surrounded,
            _ = stop.requested() => return GuestEnd::Asked(GracePeriod::asked(stop)),
        };
        let ready = match surrounded {
            Ok(Ok(ready)) => ready,
            Ok(Err(ending)) => return GuestEnd::Over(ending),
            Err(_) => return GuestEnd::Over(guest_agent_missing(patience, NO_COMMANDS)),
        };
        if let Some(hook) = &self.spec.main.post_start {
            crash_point::point("shim.post-start.before");
            let done = tokio::select! {
                done = self.hook(hook, address, ready.as_ref(), "post-start") => done,
                _ = stop.requested() => Ok(None),
            };
            crash_point::point("shim.post-start.after");
            container.hook_failed = self.started_by(done).err();
        }
        let own = if container.hook_failed.is_none() {
            self.running(container, address, ready.as_ref());
            stop.requested().await;
            None
        } else {
            Some(Instant::now() + self.spec.grace)
        };
        let mut limit = GracePeriod { own, ..GracePeriod::asked(stop) };
        if let Some(hook) = self.in_time(self.spec.main.pre_stop.as_ref(), &limit) {
            crash_point::point("shim.pre-stop.before");
            let done = tokio::select! {
                done = self.hook(hook, address, ready.as_ref(), "pre-stop") => Some(done),
                () = limit.over() => None,
            };
            self.stopped_by(done);
            crash_point::point("shim.pre-stop.after");
            limit.grant(LEAST_AFTER_HOOK);
        }
        GuestEnd::Asked(limit)
    }

    /// Gives the guest its variables once more, now with those that have its address in them.
    fn tell_address(&self, address: IpAddr) {
        let Some(given) = &self.spec.boot else { return };
        let with_address = given.surroundings.env.iter().filter(|(_, value)| value.contains(POD_IP));
        let names: Vec<&str> = with_address.map(|(name, _)| name.as_str()).collect();
        if names.is_empty() {
            return;
        }
        let variables = given.surroundings.at(&address.to_string()).env;
        if let Err(error) = boot_share::rewrite(&given.environment_file, &variables) {
            warn!(%error, "the guest's environment file cannot be written anew; trying until it works");
            let words = format!("Not yet in the guest's environment file: {}: {error}", names.join(", "));
            self.notice("FailedEnvironmentUpdate", words);
            let file = given.environment_file.clone();
            // The guest does not wait for it, and the disk may have room again.
            tokio::spawn(async move {
                while boot_share::rewrite(&file, &variables)
                    .is_err_and(|error| error.kind() != ErrorKind::NotFound)
                {
                    sleep(AGAIN).await;
                }
            });
        }
    }

    /// Has the container's variables in the guest for hooks and probes that are commands. Nothing else needs the guest agent, which the
    /// image may not have.
    async fn surround(&self, address: IpAddr) -> Result<Option<Ready>, Ending> {
        let Some(given) = self.spec.boot.as_ref().filter(|given| given.runs_commands) else {
            return Ok(None);
        };
        let command = given.surroundings.at(&address.to_string());
        loop {
            let (mut guest, _) = self.guest_agent().await;
            let made = self.make_ready(&mut guest, script::surroundings(&command), &command.user).await;
            match made {
                Ok(ready) => return Ok(Some(ready)),
                Err(Run::Over(ending)) => return Err(ending),
                // It may have been restarted. Whoever is to stop meanwhile does not wait for this.
                Err(Run::Lost | Run::Overdue | Run::NotBegun) => sleep(AGAIN).await,
            }
        }
    }

    async fn hook(
        &self,
        hook: &Hook,
        address: IpAddr,
        ready: Option<&Ready>,
        name: &'static str,
    ) -> hooks::Done {
        let Hook::Exec(argv) = hook else { return hooks::run_outside(hook, address).await };
        let Ok((mut guest, _)) = timeout(self.spec.boot_limit, self.guest_agent()).await else {
            return Err(hooks::HookError::NoAgent);
        };
        hooks::run_command(argv, &mut guest, ready.map(|ready| HookPoint { ready, name })).await
    }
}
