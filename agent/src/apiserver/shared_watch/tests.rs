use super::*;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"key": value}})).unwrap()
}

fn value(object: ConfigMap) -> String {
    object.data.unwrap_or_default().remove("key").unwrap_or_default()
}

/// A view that the test feeds.
struct TestView {
    listing: BTreeMap<String, Arc<String>>,
    sender: watch::Sender<View<String>>,
    receiver: watch::Receiver<View<String>>,
}

impl TestView {
    fn new() -> Self {
        let (sender, receiver) = watch::channel(View::Empty);
        Self { listing: BTreeMap::new(), sender, receiver }
    }

    fn apply(&mut self, events: impl IntoIterator<Item = Event<ConfigMap>>) -> bool {
        for event in events {
            apply(event, value, &mut self.listing, &self.sender);
        }
        self.is_changed()
    }

    fn list(&mut self, objects: &[(&str, &str)]) -> bool {
        let objects = objects.iter().map(|(name, value)| Event::InitApply(config_map(name, value)));
        self.apply([Event::Init].into_iter().chain(objects).chain([Event::InitDone]))
    }

    fn fail(&mut self, problem: &str) -> bool {
        let error = ObjectError::Unreadable { object: "x".to_owned(), problem: problem.to_owned() };
        fail(error, &self.sender);
        self.is_changed()
    }

    fn is_changed(&mut self) -> bool {
        let is_changed = self.receiver.has_changed().unwrap();
        self.receiver.mark_unchanged();
        is_changed
    }

    fn shown(&self) -> Option<Vec<String>> {
        match &*self.receiver.borrow() {
            View::Listed(objects) => {
                Some(objects.iter().map(|(name, value)| format!("{name}={value}")).collect())
            }
            View::Empty | View::Failed(_) => None,
        }
    }
}

#[test]
fn a_view_follows_its_watch_and_notifies_only_of_changes() {
    let mut view = TestView::new();
    assert!(!view.apply([Event::Init, Event::InitApply(config_map("a", "1"))]), "the list is not complete");
    assert!(view.apply([Event::InitDone]));
    assert_eq!(view.shown().unwrap(), ["a=1"]);
    assert!(!view.apply([Event::Apply(config_map("a", "1"))]), "what the view keeps is the same");
    assert!(view.apply([Event::Apply(config_map("a", "2"))]));
    assert!(view.apply([Event::Apply(config_map("b", "3"))]));
    assert_eq!(view.shown().unwrap(), ["a=2", "b=3"]);
    assert!(view.apply([Event::Delete(config_map("a", "2"))]));
    assert!(!view.apply([Event::Delete(config_map("a", "2"))]));
    assert!(!view.list(&[("b", "3")]), "the same list again");
    assert!(view.list(&[]));
    assert_eq!(view.shown().unwrap(), [""; 0]);
}

#[test]
fn an_error_is_shown_until_the_first_list() {
    let mut view = TestView::new();
    assert!(view.fail("away"));
    assert!(!view.fail("away"));
    assert!(view.fail("forbidden"));
    assert_eq!(view.shown(), None);
    assert!(view.list(&[("a", "1")]));
    assert!(!view.fail("away"), "the last list is still valid");
    assert_eq!(view.shown().unwrap(), ["a=1"]);
}

#[tokio::test]
async fn a_watch_is_shared_and_ends_with_its_last_handle() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let nowhere = kube::Config::new(http::Uri::from_static("https://127.0.0.1:1"));
    let watches =
        SharedWatches::new(Client::try_from(nowhere).unwrap(), "configmap", value, WatchSlots::new());
    let scope = |name: &str| Scope { namespace: "ns".to_owned(), name: Some(name.to_owned()) };
    let open = || lock(&watches.running).len();
    let (first, second, other) =
        (watches.watch(scope("a")), watches.watch(scope("a")), watches.watch(scope("b")));
    assert_eq!(open(), 2);
    assert!(Arc::ptr_eq(&first.watch, &second.watch));
    let mut task = first.watch.view.clone();
    drop((first, other));
    assert_eq!(open(), 1);
    drop(second);
    assert_eq!(open(), 0);
    // The sender is the task's.
    let ended = async { while task.changed().await.is_ok() {} };
    tokio::time::timeout(FIRST_LIST_LIMIT, ended).await.expect("the watch goes on");
    assert_eq!(watches.watch(scope("a")).watch.words, "configmap \"a\"");
}

#[test]
fn delays_grow() {
    let mut backoff = WatchBackoff { delays: WATCH.delays(), last_error: None };
    for failures in 1..=12 {
        let (delay, longest) = (backoff.next().unwrap(), WATCH.after(failures));
        assert!(delay >= longest / 2 && delay <= longest, "{delay:?}");
    }
}
