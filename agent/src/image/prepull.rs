//! Pulls images before a Pod needs them. An annotation of the Node names them, with commas between them.
//!
//! The agent pulls each image once while the annotation names it. If it collects the image later, it does not pull it again: two images
//! that do not fit on the disk together would be pulled in turn for ever.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::info;

use super::ImageError;
use super::manager::ImageManager;
use crate::apiserver::events::{EventReason, Events};
use crate::backoff::{Delays, IMAGE_PULL};
use crate::error_chain::chain;
use crate::names::ImageDigest;
use crate::names::image::{BadImageName, check_name};

pub(crate) const ANNOTATION: &str = "tart-kubelet.tuist.dev/prepull";
/// More than fit on any host.
const MOST: usize = 20;

/// The images that the annotation names. A misspelt one is among them, so that an Event tells of it.
pub(crate) fn wanted(node: &Node) -> BTreeSet<String> {
    let names = node.annotations().get(ANNOTATION).map_or("", String::as_str).split(',').map(str::trim);
    let is_remote = |name: &&str| check_name(name) != Err(BadImageName::NotRemote);
    names.filter(is_remote).take(MOST).map(str::to_owned).collect()
}

#[derive(Debug)]
pub(crate) struct PrePull {
    pub(crate) manager: ImageManager,
    pub(crate) events: Events,
    /// The Node as the API server shows it.
    pub(crate) node: watch::Receiver<Option<Arc<Node>>>,
}

impl PrePull {
    /// Pulls the images that the annotation names, until it is dropped.
    pub(crate) async fn follow(self) {
        let mut node = self.node.clone();
        let mut done = HashSet::new();
        // When each pull that has failed is tried again, and the delays after that.
        let mut failed: HashMap<String, (Instant, Delays)> = HashMap::new();
        loop {
            let shown = node.borrow_and_update().clone();
            let names = shown.as_deref().map(wanted).unwrap_or_default();
            // While the API server does not show the Node, its annotation is not known.
            if shown.is_some() {
                done.retain(|name| names.contains(name));
                failed.retain(|name, _| names.contains(name));
            }
            let is_due =
                |name: &&String| failed.get(*name).is_none_or(|(retry_at, _)| *retry_at <= Instant::now());
            let next = names.iter().find(|name| !done.contains(*name) && is_due(name));
            let (Some(name), Some(shown)) = (next, &shown) else {
                let retry_at = failed.values().map(|(retry_at, _)| *retry_at).min();
                tokio::select! {
                    changed = node.changed() => if changed.is_err() { std::future::pending::<()>().await },
                    () = sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {}
                }
                continue;
            };
            let Some(result) = self.pull_while_wanted(name, &mut node).await else { continue };
            match result {
                Ok(digest) => {
                    info!(image = name, %digest, "pulled ahead of any Pod");
                    let note = format!("image `{name}` is {digest}, ready for Pods");
                    self.events.about(shown.object_ref(&()), false, EventReason::PrePulled, &note);
                    failed.remove(name);
                    done.insert(name.clone());
                }
                Err(error) => {
                    self.events.about(
                        shown.object_ref(&()),
                        true,
                        EventReason::FailedPrePull,
                        &chain(&error),
                    );
                    let first = || (Instant::now(), IMAGE_PULL.delays());
                    let (retry_at, delays) = failed.entry(name.clone()).or_insert_with(first);
                    *retry_at = Instant::now() + delays.next();
                }
            }
        }
    }

    /// Pulls an image; `None` when the annotation no longer names it.
    async fn pull_while_wanted(
        &self,
        name: &str,
        node: &mut watch::Receiver<Option<Arc<Node>>>,
    ) -> Option<Result<ImageDigest, ImageError>> {
        // A Node may read only Secrets that its Pods name, so that it has no credentials without a Pod.
        let pull = self.manager.ensure(name, &[], |_| ());
        tokio::pin!(pull);
        loop {
            tokio::select! {
                result = &mut pull => return Some(result),
                Ok(()) = node.changed() => {
                    let shown = node.borrow_and_update().clone();
                    if shown.is_some_and(|node| !wanted(&node).contains(name)) {
                        return None;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn only_names_of_images_in_a_registry_are_wanted() {
        let wanted = |text: &str| {
            let annotations = Some([(ANNOTATION.to_owned(), text.to_owned())].into());
            let metadata = ObjectMeta { annotations, ..ObjectMeta::default() };
            super::wanted(&Node { metadata, ..Node::default() }).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(wanted(""), Vec::<String>::new());
        assert_eq!(wanted("r.test/b:1, r.test/a ,,x,--a/b,r.test/a b"), ["r.test/a", "r.test/b:1"]);
        let many: Vec<String> = (0..100).map(|number| format!("r.test/{number}")).collect();
        assert_eq!(wanted(&many.join(",")).len(), MOST);
        assert_eq!(super::wanted(&Node::default()), BTreeSet::new());
    }
}
