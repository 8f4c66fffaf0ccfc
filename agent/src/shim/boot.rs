//! A container that only boots: the guest is up, and it is what runs.

use std::net::IpAddr;

use tokio::time::timeout;

use super::container::LEAST_AFTER_HOOK;
use super::limit::Limit;
use super::{Container, GuestEnd, Shim, hooks};
use crate::crash;
use crate::report::chain;
use crate::state::{Ending, Hook, Stage};

impl Shim {
    /// Sees a guest without a command through its hooks, until it is to be shut down.
    pub(super) async fn boot(&self, container: &mut Container, address: IpAddr) -> GuestEnd {
        self.enter(Stage::Up { address });
        let mut stop = self.stop.clone();
        if let Some(hook) = &self.spec.main.post_start {
            crash::point("shim.post-start.before");
            let failure = tokio::select! {
                result = self.hook(hook, address) => result.err(),
                _ = stop.requested() => return GuestEnd::Asked(Limit::asked(stop)),
            };
            if let Some(why) = failure {
                let message = format!("PostStartHookError: {why}");
                self.notice("FailedPostStartHook", message.clone());
                return GuestEnd::Over(Ending::Exited { code: 137, message: Some(message) });
            }
            crash::point("shim.post-start.after");
        }
        self.running(container, address, None);
        stop.requested().await;
        let mut limit = Limit::asked(stop);
        if let Some(hook) = self.spec.main.pre_stop.as_ref().filter(|_| !limit.is_over()) {
            crash::point("shim.pre-stop.before");
            let failure = tokio::select! {
                result = self.hook(hook, address) => result.err(),
                () = limit.over() => Some("it did not end within the grace period".to_owned()),
            };
            if let Some(why) = failure {
                self.notice("FailedPreStopHook", format!("PreStopHook failed: {why}"));
            }
            crash::point("shim.pre-stop.after");
            limit.grant(LEAST_AFTER_HOOK);
        }
        GuestEnd::Asked(limit)
    }

    async fn hook(&self, hook: &Hook, address: IpAddr) -> Result<(), String> {
        let Hook::Exec(argv) = hook else {
            return hooks::run_outside(hook, address).await.map_err(|error| chain(&error));
        };
        // Only a command needs the guest agent, which the image may not have.
        let Ok((mut guest, _)) = timeout(self.spec.boot_limit, self.guest_agent()).await else {
            return Err("the guest agent does not answer".to_owned());
        };
        hooks::run_command(argv, &mut guest, None).await.map_err(|error| chain(&error))
    }
}
