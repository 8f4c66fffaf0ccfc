//! `tart-kubelet doctor`: whether this Mac has all that a Node needs. It observes, judges by a table, and mends what can be mended.

mod judge;
mod observation;
mod report;

pub(crate) use judge::{Finding, Fix, Level, judge};
pub(crate) use observation::observe;
pub(crate) use report::{Format, render};

use launchd::{AGENT_BINARY, Host};

use super::mac::{MacError, MacPrograms};

/// Mends one thing. Safe to repeat.
pub(crate) async fn mend<H: Host>(host: &H, fix: Fix) -> Result<(), MacError> {
    let mac = MacPrograms::of(host);
    match fix {
        Fix::NeverSleep => mac.never_sleep().await,
        Fix::ShortLeases => mac.shorten_leases().await,
        Fix::NetworkTime => mac.use_network_time().await,
        Fix::Sign => mac.sign(AGENT_BINARY).await,
    }
}
