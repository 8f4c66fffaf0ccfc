//! A container that only boots: the guest is up, and it is what runs.

use std::net::IpAddr;

use tokio::time::{Instant, timeout};

use super::container::LEAST_AFTER_HOOK;
use super::limit::Limit;
use super::{Container, GuestEnd, Shim, hooks};
use crate::crash;
use crate::state::{Hook, Stage};

impl Shim {
    /// Sees a guest without a command through its hooks, until it is to be shut down.
    pub(super) async fn boot(&self, container: &mut Container, address: IpAddr) -> GuestEnd {
        self.enter(Stage::Up { address });
        let mut stop = self.stop.clone();
        if let Some(hook) = &self.spec.main.post_start {
            crash::point("shim.post-start.before");
            let done = tokio::select! {
                done = self.hook(hook, address) => done,
                _ = stop.requested() => Ok(None),
            };
            crash::point("shim.post-start.after");
            container.hook_failed = self.started_by(done).err();
        }
        let own = if container.hook_failed.is_none() {
            self.running(container, address, None);
            stop.requested().await;
            None
        } else {
            Some(Instant::now() + self.spec.grace)
        };
        let mut limit = Limit { own, ..Limit::asked(stop) };
        if let Some(hook) = self.spec.main.pre_stop.as_ref().filter(|_| !limit.is_over()) {
            crash::point("shim.pre-stop.before");
            let done = tokio::select! {
                done = self.hook(hook, address) => Some(done),
                () = limit.over() => None,
            };
            self.stopped_by(done);
            crash::point("shim.pre-stop.after");
            limit.grant(LEAST_AFTER_HOOK);
        }
        GuestEnd::Asked(limit)
    }

    async fn hook(&self, hook: &Hook, address: IpAddr) -> hooks::Done {
        let Hook::Exec(argv) = hook else { return hooks::run_outside(hook, address).await };
        // Only a command needs the guest agent, which the image may not have.
        let Ok((mut guest, _)) = timeout(self.spec.boot_limit, self.guest_agent()).await else {
            return Err(hooks::HookError::NoAgent);
        };
        hooks::run_command(argv, &mut guest, None).await
    }
}
