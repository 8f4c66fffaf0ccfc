//! A bell that rings for a Pod's worker when something changes in the directory of one of its VMs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tracing::warn;

/// Hangs over VMs that are not over. Each directory, and on macOS each file in it, takes one of the files that the agent may have open:
/// Pods that have ended stay for days, and must take none.
#[derive(Debug)]
pub(super) struct StateWatcher {
    rings: Arc<Notify>,
    over: Vec<PathBuf>,
    /// Without one the worker still looks now and then.
    watcher: Option<RecommendedWatcher>,
    has_complained: bool,
}

impl StateWatcher {
    /// A bell that hangs over nothing yet.
    pub(super) fn new(rings: Arc<Notify>) -> Self {
        Self { rings, over: Vec::new(), watcher: None, has_complained: false }
    }

    /// Rings for these directories from now on, and for no others.
    pub(super) fn hang_over<'a>(&mut self, paths: impl Iterator<Item = &'a Path>) {
        let paths: Vec<PathBuf> = paths.map(Path::to_owned).collect();
        if paths == self.over && (self.watcher.is_some() || paths.is_empty()) {
            return;
        }
        // A new one each time: what an old one has open goes with it, down to the last file.
        self.watcher = match self.watch(&paths) {
            Ok(watcher) => watcher,
            Err(error) => {
                if !std::mem::replace(&mut self.has_complained, true) {
                    warn!(%error, ?paths, "changes of a VM are seen late: its directory cannot be watched");
                }
                None
            }
        };
        self.over = paths;
    }

    fn watch(&self, paths: &[PathBuf]) -> notify::Result<Option<RecommendedWatcher>> {
        if paths.is_empty() {
            return Ok(None);
        }
        let rings = self.rings.clone();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| is_news(&event)) {
                rings.notify_one();
            }
        })?;
        for path in paths {
            watcher.watch(path, RecursiveMode::NonRecursive)?;
        }
        Ok(Some(watcher))
    }
}

/// Whether an event says that something has changed. Opening a lock to probe it is an event too, and must not ring the bell that made us
/// probe; a file that is being written says nothing until it is renamed.
fn is_news(event: &notify::Event) -> bool {
    let is_settled = |path: &PathBuf| path.extension().is_none_or(|extension| extension != "tmp");
    event.need_rescan() || (!event.kind.is_access() && event.paths.iter().any(is_settled))
}

#[cfg(test)]
mod tests {
    use super::*;
    use notify::event::{AccessKind, CreateKind, EventKind};

    #[test]
    fn news_is_what_has_settled() {
        let event = |kind, path: &str| notify::Event::new(kind).add_path(path.into());
        let created = EventKind::Create(CreateKind::File);
        assert!(is_news(&event(created, "0/outcome.json")));
        assert!(is_news(&event(created, "0/cleaned")));
        assert!(!is_news(&event(created, "0/outcome.tmp")));
        assert!(!is_news(&event(EventKind::Access(AccessKind::Any), "0/shim.lock")));
        assert!(is_news(&event(created, "0/outcome.tmp").add_path("0/outcome.json".into())));
    }

    #[tokio::test]
    async fn it_rings_for_what_it_hangs_over_and_goes_without_where_it_cannot() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let [old, new] = ["0", "1"].map(|name| dir.path().join(name));
        std::fs::create_dir(&old).unwrap();
        std::fs::create_dir(&new).unwrap();
        let rings = Arc::new(Notify::new());
        let mut bell = StateWatcher::new(rings.clone());
        // What cannot be watched is no reason to end, and is tried again.
        bell.hang_over([dir.path().join("absent").as_path()].into_iter());
        assert!(bell.watcher.is_none() && bell.has_complained);
        bell.hang_over([old.as_path()].into_iter());
        std::fs::write(old.join("outcome.json"), "").unwrap();
        rings.notified().await;
        bell.hang_over([old.as_path(), new.as_path()].into_iter());
        std::fs::write(new.join("begun"), "").unwrap();
        rings.notified().await;
        bell.hang_over(std::iter::empty());
        assert!(bell.watcher.is_none());
    }
}
