//! Wakes a Pod's worker when something changes in the Pod's directory, or in that of one of its VMs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tracing::warn;

/// Watches directories of VMs that are not over. Each directory, and on macOS each file in it, takes one of the files that the agent may
/// have open: Pods that have ended stay for days, and must take none.
#[derive(Debug, Default)]
pub(super) struct StateWatcher {
    changed: Arc<Notify>,
    paths: Vec<PathBuf>,
    /// Absent where a directory cannot be watched. The worker still looks now and then.
    watcher: Option<RecommendedWatcher>,
    has_warned: bool,
}

impl StateWatcher {
    /// Watches these directories from now on, and no others.
    pub(super) fn watch<'a>(&mut self, paths: impl Iterator<Item = &'a Path>) {
        let paths: Vec<PathBuf> = paths.map(Path::to_owned).collect();
        if paths == self.paths && (self.watcher.is_some() || paths.is_empty()) {
            return;
        }
        // A new watcher each time: the files that the old one has open are closed with it.
        self.watcher = match self.start(&paths) {
            Ok(watcher) => watcher,
            Err(error) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    warn!(%error, ?paths, "changes of a VM are seen late: its directory cannot be watched");
                }
                None
            }
        };
        self.paths = paths;
    }

    /// Waits for a change. Safe to cancel.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What wakes the worker as a change does.
    pub(super) fn waker(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    fn start(&self, paths: &[PathBuf]) -> notify::Result<Option<RecommendedWatcher>> {
        if paths.is_empty() {
            return Ok(None);
        }
        let changed = self.changed.clone();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| is_change(&event)) {
                changed.notify_one();
            }
        })?;
        for path in paths {
            watcher.watch(path, RecursiveMode::NonRecursive)?;
        }
        Ok(Some(watcher))
    }
}

/// Whether an event says that something has changed. To open a lock and probe it is an event too, and must not wake the worker, which
/// would probe it again. A file that is being written says nothing until it is renamed.
fn is_change(event: &notify::Event) -> bool {
    let is_settled = |path: &PathBuf| path.extension().is_none_or(|extension| extension != "tmp");
    event.need_rescan() || (!event.kind.is_access() && event.paths.iter().any(is_settled))
}

#[cfg(test)]
mod tests {
    use super::*;
    use notify::event::{AccessKind, CreateKind, EventKind};

    #[test]
    fn a_change_is_what_has_settled() {
        let event = |kind, path: &str| notify::Event::new(kind).add_path(path.into());
        let created = EventKind::Create(CreateKind::File);
        assert!(is_change(&event(created, "0/outcome.json")));
        assert!(is_change(&event(created, "0/cleaned")));
        assert!(!is_change(&event(created, "0/outcome.tmp")));
        assert!(!is_change(&event(EventKind::Access(AccessKind::Any), "0/shim.lock")));
        assert!(is_change(&event(created, "0/outcome.tmp").add_path("0/outcome.json".into())));
    }

    #[tokio::test]
    async fn it_wakes_for_watched_directories_and_tries_again_where_it_cannot_watch() {
        let dir = crate::testing::dir();
        let [old, new] = ["0", "1"].map(|name| dir.path().join(name));
        std::fs::create_dir(&old).unwrap();
        std::fs::create_dir(&new).unwrap();
        let mut watcher = StateWatcher::default();
        // What cannot be watched is no reason to end, and is tried again.
        watcher.watch([dir.path().join("absent").as_path()].into_iter());
        assert!(watcher.watcher.is_none() && watcher.has_warned);
        watcher.watch([old.as_path()].into_iter());
        std::fs::write(old.join("outcome.json"), "").unwrap();
        watcher.changed().await;
        watcher.watch([old.as_path(), new.as_path()].into_iter());
        std::fs::write(new.join("begun"), "").unwrap();
        watcher.changed().await;
        watcher.watch(std::iter::empty());
        assert!(watcher.watcher.is_none());
    }
}
