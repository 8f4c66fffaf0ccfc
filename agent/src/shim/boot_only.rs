//! A guest without a command: its boot is the container.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::warn;

use super::Shim;
use super::container::hooks::{self, HookError, HookPoint, HookResult};
use super::container::lifecycle::MIN_AFTER_PRE_STOP;
use super::outcome::messages::guest_agent_missing;
use super::run_vm::GuestEnd;
use super::stop::grace_period::GracePeriod;
use crate::crash_point;
use crate::guest::script::{self, ContainerScripts};
use crate::state::{ContainerSpec, Ending, Hook, NotStarted, NotStartedReason, POD_IP, Stage};
use crate::volume::boot_share;

/// How soon a failed step is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Shim {
    /// Runs the hooks of a guest without a command until it is to be shut down.
    pub(super) async fn run_boot_only(&self, main: &ContainerSpec, address: IpAddr) -> GuestEnd {
        self.enter(Stage::Up { address });
        self.write_address(address);
        let (mut stop, limit) = (self.stop.clone(), self.spec.boot_limit);
        let set_up = tokio::select! {
            set_up = timeout(limit, self.set_up_environment(address)) => set_up,
            _ = stop.requested() => return GuestEnd::StopRequested(GracePeriod::of_stop(stop)),
        };
        let scripts = match set_up {
            Ok(Ok(scripts)) => scripts,
            Ok(Err(ending)) => return GuestEnd::Ended(ending),
            Err(_) => return guest_agent_missing(limit, "hooks and probes that are no commands").into(),
        };
        if let Some(hook) = &main.post_start {
            crash_point::point("shim.post-start.before");
            let result = tokio::select! {
                result = self.run_hook(hook, address, scripts.as_ref(), "post-start") => result,
                _ = stop.requested() => Ok(None),
            };
            crash_point::point("shim.post-start.after");
            if let Err(message) = self.report_post_start(result) {
                let _ = self.main.hook_failure.set(message);
            }
        }
        let mut grace = if self.main.hook_failure.get().is_none() {
            self.main_started(address, scripts.as_ref());
            stop.requested().await;
            GracePeriod::of_stop(stop)
        } else {
            GracePeriod::of_stop(stop).or_within(self.spec.grace)
        };
        if let Some(hook) = self.pre_stop_in_time(main.pre_stop.as_ref(), &grace) {
            crash_point::point("shim.pre-stop.before");
            let result = tokio::select! {
                result = self.run_hook(hook, address, scripts.as_ref(), "pre-stop") => Some(result),
                () = grace.over() => None,
            };
            self.report_pre_stop(result);
            crash_point::point("shim.pre-stop.after");
            grace.extend(MIN_AFTER_PRE_STOP);
        }
        GuestEnd::StopRequested(grace)
    }

    /// Writes the guest's environment file again, now with its address.
    fn write_address(&self, address: IpAddr) {
        let Some(boot) = &self.spec.boot else { return };
        let with_address = boot.environment.env.iter().filter(|(_, value)| value.contains(POD_IP));
        let names: Vec<&str> = with_address.map(|(name, _)| name.as_str()).collect();
        if names.is_empty() {
            return;
        }
        let variables = boot.environment.at(&address.to_string()).env;
        if let Err(error) = boot_share::rewrite(&boot.environment_file, &variables) {
            warn!(%error, "cannot write the guest's environment file; trying until it works");
            let message = format!("Not yet in the guest's environment file: {}: {error}", names.join(", "));
            self.notice("FailedEnvironmentUpdate", message);
            let file = boot.environment_file.clone();
            // The guest does not wait for it.
            tokio::spawn(async move {
                while boot_share::rewrite(&file, &variables)
                    .is_err_and(|error| error.kind() != ErrorKind::NotFound)
                {
                    sleep(RETRY_INTERVAL).await;
                }
            });
        }
    }

    /// Sets up the container's variables for hooks and probes that are commands. Nothing else needs the guest agent, which the image may
    /// not have.
    async fn set_up_environment(&self, address: IpAddr) -> Result<Option<ContainerScripts>, Ending> {
        let Some(boot) = self.spec.boot.as_ref().filter(|boot| boot.runs_commands) else {
            return Ok(None);
        };
        let command = boot.environment.at(&address.to_string());
        loop {
            let (mut guest, _) = self.guest_agent().await;
            match self.run_set_up(&mut guest, script::set_up_boot_only(&command), &command.user).await {
                Ok(scripts) => return Ok(Some(scripts)),
                // The guest agent may restart. The caller sees a stop request, too.
                Err(
                    Ending::Lost | Ending::NotStarted(NotStarted { reason: NotStartedReason::Stopped, .. }),
                ) => sleep(RETRY_INTERVAL).await,
                Err(ending) => return Err(ending),
            }
        }
    }

    async fn run_hook(
        &self,
        hook: &Hook,
        address: IpAddr,
        scripts: Option<&ContainerScripts>,
        name: &'static str,
    ) -> HookResult {
        let Hook::Exec(argv) = hook else { return hooks::run_outside(hook, self.hook_reach(address)).await };
        let Ok((mut guest, _)) = timeout(self.spec.boot_limit, self.guest_agent()).await else {
            return Err(HookError::NoAgent);
        };
        hooks::run_command(argv, &mut guest, scripts.map(|scripts| HookPoint { scripts, name })).await
    }
}
