//! The agent's request to stop the VM.

use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{mpsc, watch};
use tokio::time::interval;

use crate::error_chain::chain;
use crate::state::{StopRequest, VmRun};

/// How often the file is read without a change notification.
const SAFETY_NET: Duration = Duration::from_secs(5);

/// Watches the stop request of one VM; the latest one counts.
#[derive(Debug, Clone)]
pub(in crate::shim) struct StopSignal {
    request: watch::Receiver<Option<StopRequest>>,
    looks: watch::Receiver<()>,
}

impl StopSignal {
    /// Starts to watch; it reads an existing request at once.
    pub(in crate::shim) fn watch(vm_run: &VmRun) -> Self {
        let (changed, mut changes) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // The shim's own reads are access events, and must not cause the next read.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                // A full channel already holds a notification.
                let _ = changed.try_send(());
            }
        })
        .and_then(|mut watcher: RecommendedWatcher| {
            watcher.watch(vm_run.path(), RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, "cannot watch for stop requests; reading every {} s", SAFETY_NET.as_secs());
        }
        let (sender, request) = watch::channel(None);
        let (looked, looks) = watch::channel(());
        let vm_run = vm_run.clone();
        tokio::spawn(async move {
            let _watcher = watcher;
            let mut tick = interval(SAFETY_NET);
            loop {
                tokio::select! { _ = tick.tick() => {}, Some(()) = changes.recv() => {} }
                match vm_run.stop_request() {
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

    pub(in crate::shim) async fn requested(&mut self) -> StopRequest {
        loop {
            if let Some(request) = *self.request.borrow_and_update() {
                return request;
            }
            self.changed().await;
        }
    }

    pub(in crate::shim) fn latest(&self) -> Option<StopRequest> {
        *self.request.borrow()
    }

    pub(in crate::shim) async fn changed(&mut self) {
        if self.request.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until a file of the directory may have changed.
    pub(in crate::shim) async fn looked(&mut self) {
        if self.looks.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
