//! Whether a VM could start here, looked at apart from the heartbeat.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::report::chain;
use crate::tart::{Tart, TartError};

const INTERVAL: Duration = Duration::from_secs(30);

/// What is known of the host's ability to run VMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The version of tart, once it was asked.
    pub tart_version: Option<String>,
    /// Why no VM can start here, when none can.
    pub problem: Option<Problem>,
}

/// Why no VM can start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// One word for the Node's condition.
    pub reason: &'static str,
    /// What a person can do about it.
    pub message: String,
}

impl Health {
    /// Looks at the host now.
    pub async fn check(tart: &Tart) -> Self {
        match tart.version().await {
            Ok(version) => Self { tart_version: Some(version), problem: None },
            Err(error) => {
                let reason = match &error {
                    TartError::Spawn { .. } => "TartMissing",
                    TartError::Hung { .. } => "TartHanging",
                    TartError::Garbage { .. } | TartError::Failed { .. } => "TartBroken",
                };
                Self { tart_version: None, problem: Some(Problem { reason, message: chain(&error) }) }
            }
        }
    }
}

/// Looks again and again, and tells whoever listens when something has changed.
pub async fn watch_health(tart: Tart, health: watch::Sender<Health>) {
    let mut tick = interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.tick().await;
    loop {
        tick.tick().await;
        let found = Health::check(&tart).await;
        if *health.borrow() != found {
            match &found.problem {
                Some(problem) => warn!(reason = problem.reason, "no VM can start: {}", problem.message),
                None => info!("VMs can start again"),
            }
            health.send_replace(found);
        }
    }
}
