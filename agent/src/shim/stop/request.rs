//! The agent's wish to stop a VM, as the VM's directory tells it.

use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{mpsc, watch};
use tokio::time::interval;

use crate::error_chain::chain;
use crate::state::{StopRequest, VmRun};

/// How often the directory is read even though nothing was seen to change in it.
const SAFETY_NET: Duration = Duration::from_secs(5);

/// Follows the stop request of one VM; the latest one counts.
#[derive(Debug, Clone)]
pub(crate) struct StopSignal {
    request: watch::Receiver<Option<StopRequest>>,
    looks: watch::Receiver<()>,
}

impl StopSignal {
    /// Starts to follow; a request that is there already is seen at once.
    pub(crate) fn watch(attempt: &VmRun) -> Self {
        let (changed, mut changes) = mpsc::channel(1);
        // A full channel already holds the news that something changed.
        let watcher = notify::recommended_watcher(move |_| _ = changed.try_send(())).and_then(
            |mut watcher: RecommendedWatcher| {
                watcher.watch(attempt.path(), RecursiveMode::NonRecursive)?;
                Ok(watcher)
            },
        );
        if let Err(error) = &watcher {
            tracing::warn!(%error, "cannot watch for requests to stop; looking every {} s", SAFETY_NET.as_secs());
        }
        let (sender, request) = watch::channel(None);
        let (looked, looks) = watch::channel(());
        let attempt = attempt.clone();
        tokio::spawn(async move {
            let _watcher = watcher;
            let mut tick = interval(SAFETY_NET);
            loop {
                tokio::select! { _ = tick.tick() => {}, Some(()) = changes.recv() => {} }
                match attempt.stop_request() {
                    Ok(request) => {
                        sender.send_if_modified(|known| std::mem::replace(known, request) != request);
                    }
                    Err(error) => tracing::warn!(error = chain(&error), "cannot read the stop request"),
                }
                looked.send_replace(());
                if sender.is_closed() {
                    return;
                }
            }
        });
        Self { request, looks }
    }

    /// Waits until the VM is to be stopped.
    pub(crate) async fn requested(&mut self) -> StopRequest {
        loop {
            if let Some(request) = *self.request.borrow_and_update() {
                return request;
            }
            self.changed().await;
        }
    }

    /// The latest request, if there is one.
    pub(crate) fn latest(&self) -> Option<StopRequest> {
        *self.request.borrow()
    }

    /// Waits until the request changes.
    pub(crate) async fn changed(&mut self) {
        if self.request.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the directory may have something else in it than before.
    pub(crate) async fn stirred(&mut self) {
        if self.looks.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
