//! A running container: its hooks, and its end when the agent asks for it.

use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use tracing::warn;

use super::ContainerStart;
use super::exec_output::ExecResult;
use super::hooks::{self, HookPoint, HookResult};
use crate::crash_point;
use crate::error_chain::chain;
use crate::guest::Guest;
use crate::guest::script::ContainerScripts;
use crate::probe::reach::Reach;
use crate::shim::Shim;
use crate::shim::stop::grace_period::GracePeriod;
use crate::shim::stop::sigterm::terminate;
use crate::state::{Hook, Notice};

/// What a container gets after its preStop hook, even if the grace period is over: the kubelet's minimum.
pub(in crate::shim) const MIN_AFTER_PRE_STOP: Duration = Duration::from_secs(2);

impl Shim {
    /// What hooks may connect to.
    pub(in crate::shim) fn hook_reach(&self, guest: IpAddr) -> Reach {
        Reach { guest, local: self.spec.local_probe_hosts }
    }

    /// Follows a container through its postStart hook to its end, or to a stop request. `Ok(None)` when it did not end within its grace
    /// period, an error with the message when its postStart hook failed.
    pub(super) async fn supervise(
        &self,
        guest: &mut Guest,
        start: &ContainerStart<'_>,
        scripts: &ContainerScripts,
        mut follow: Pin<&mut impl Future<Output = ExecResult>>,
        started: impl FnOnce(),
    ) -> Result<Option<ExecResult>, String> {
        let mut stop = self.stop.clone();
        if let Some(hook) = &start.spec.post_start {
            crash_point::point("shim.post-start.before");
            let point = HookPoint { scripts, name: "post-start" };
            let result = tokio::select! {
                result = hooks::run(hook, guest, point, self.hook_reach(start.address)) => result,
                end = follow.as_mut() => return Ok(Some(end)),
                _ = stop.requested() => Ok(None),
            };
            crash_point::point("shim.post-start.after");
            if let Err(message) = self.report_post_start(result) {
                let grace = GracePeriod::of_stop(stop).or_within(self.spec.grace);
                self.stop_container(guest, start, scripts, follow, grace).await;
                return Err(message);
            }
        }
        started();
        tokio::select! {
            end = follow.as_mut() => return Ok(Some(end)),
            _ = stop.requested() => {}
        }
        Ok(self.stop_container(guest, start, scripts, follow, GracePeriod::of_stop(stop)).await)
    }

    /// Stops a container as the kubelet does: preStop hook, SIGTERM, and at last `None` when the grace period is over.
    async fn stop_container(
        &self,
        guest: &mut Guest,
        start: &ContainerStart<'_>,
        scripts: &ContainerScripts,
        mut follow: Pin<&mut impl Future<Output = ExecResult>>,
        mut grace: GracePeriod,
    ) -> Option<ExecResult> {
        if let Some(hook) = self.pre_stop_in_time(start.spec.pre_stop.as_ref(), &grace) {
            let mut hook_guest = guest.clone();
            crash_point::point("shim.pre-stop.before");
            let point = HookPoint { scripts, name: "pre-stop" };
            tokio::select! {
                end = follow.as_mut() => return Some(end),
                result = hooks::run(hook, &mut hook_guest, point, self.hook_reach(start.address)) => self.report_pre_stop(Some(result)),
                () = grace.over() => self.report_pre_stop(None),
            }
            crash_point::point("shim.pre-stop.after");
            grace.extend(MIN_AFTER_PRE_STOP);
        }
        let terminate = async {
            terminate(guest, scripts).await;
            std::future::pending().await
        };
        tokio::select! {
            end = follow => Some(end),
            end = terminate => end,
            () = grace.over() => None,
        }
    }

    /// Leaves the notice of a postStart hook; an error with the message of the container's status when it failed.
    pub(in crate::shim) fn report_post_start(&self, result: HookResult) -> Result<(), String> {
        match result {
            Ok(notice) => {
                if let Some(Notice { reason, message }) = notice {
                    self.notice(&reason, message);
                }
                Ok(())
            }
            Err(error) => {
                warn!(error = chain(&error), "the postStart hook failed");
                // The kubelet's words. The hook's output may be secret.
                self.notice("FailedPostStartHook", "PostStartHook failed".to_owned());
                Err(format!("PostStartHookError: {}", error.with_output()))
            }
        }
    }

    /// Leaves the notice of a preStop hook; `None` when it did not end within the grace period.
    pub(in crate::shim) fn report_pre_stop(&self, result: Option<HookResult>) {
        match result {
            Some(Ok(None)) => {}
            Some(Ok(Some(Notice { reason, message }))) => self.notice(&reason, message),
            Some(Err(error)) => {
                warn!(error = chain(&error), "the preStop hook failed");
                self.notice("FailedPreStopHook", "PreStopHook failed".to_owned());
            }
            None => {
                let message = "PreStopHook did not end within the grace period";
                self.notice("FailedPreStopHook", message.to_owned());
            }
        }
    }

    /// The preStop hook, if the grace period is not over. It leaves a notice if that has ended meanwhile.
    pub(in crate::shim) fn pre_stop_in_time<'a>(
        &self,
        hook: Option<&'a Hook>,
        grace: &GracePeriod,
    ) -> Option<&'a Hook> {
        let hook = hook?;
        if !grace.is_over() {
            return Some(hook);
        }
        if grace.is_graceful() {
            self.report_pre_stop(None);
        }
        None
    }
}
