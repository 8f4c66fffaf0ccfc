use super::*;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"key": value}})).unwrap()
}

fn value(object: ConfigMap) -> String {
    object.data.unwrap_or_default().remove("key").unwrap_or_default()
}

/// A view that is fed by hand, and whether the last thing was news to whoever looks at it.
struct Fed {
    listing: BTreeMap<String, Arc<String>>,
    sender: watch::Sender<View<String>>,
    receiver: watch::Receiver<View<String>>,
}

impl Fed {
    fn new() -> Self {
        let (sender, receiver) = watch::channel(View::Unknown);
        Self { listing: BTreeMap::new(), sender, receiver }
    }

    fn take(&mut self, events: impl IntoIterator<Item = Event<ConfigMap>>) -> bool {
        for event in events {
            take(event, value, &mut self.listing, &self.sender);
        }
        self.is_news()
    }

    fn list(&mut self, objects: &[(&str, &str)]) -> bool {
        let objects = objects.iter().map(|(name, value)| Event::InitApply(config_map(name, value)));
        self.take([Event::Init].into_iter().chain(objects).chain([Event::InitDone]))
    }

    fn fail(&mut self, problem: &str) -> bool {
        let error = ObjectError::Unreadable { object: "x".to_owned(), problem: problem.to_owned() };
        fail(error, &self.sender);
        self.is_news()
    }

    fn is_news(&mut self) -> bool {
        let is_news = self.receiver.has_changed().unwrap();
        self.receiver.mark_unchanged();
        is_news
    }

    fn shown(&self) -> Option<Vec<String>> {
        match &*self.receiver.borrow() {
            View::Known(objects) => {
                Some(objects.iter().map(|(name, value)| format!("{name}={value}")).collect())
            }
            View::Unknown | View::Trouble(_) => None,
        }
    }
}

#[test]
fn a_view_follows_its_watch_and_tells_only_what_is_new() {
    let mut fed = Fed::new();
    assert!(!fed.take([Event::Init, Event::InitApply(config_map("a", "1"))]), "half a list is none");
    assert!(fed.take([Event::InitDone]));
    assert_eq!(fed.shown().unwrap(), ["a=1"]);
    assert!(!fed.take([Event::Apply(config_map("a", "1"))]), "something else of it has changed");
    assert!(fed.take([Event::Apply(config_map("a", "2"))]));
    assert!(fed.take([Event::Apply(config_map("b", "3"))]));
    assert_eq!(fed.shown().unwrap(), ["a=2", "b=3"]);
    assert!(fed.take([Event::Delete(config_map("a", "2"))]));
    assert!(!fed.take([Event::Delete(config_map("a", "2"))]));
    assert!(!fed.list(&[("b", "3")]), "the same list again");
    assert!(fed.list(&[]));
    assert_eq!(fed.shown().unwrap(), [""; 0]);
}

#[test]
fn trouble_is_told_until_something_is_known() {
    let mut fed = Fed::new();
    assert!(fed.fail("away"));
    assert!(!fed.fail("away"));
    assert!(fed.fail("forbidden"));
    assert_eq!(fed.shown(), None);
    assert!(fed.list(&[("a", "1")]));
    assert!(!fed.fail("away"), "what was seen counts");
    assert_eq!(fed.shown().unwrap(), ["a=1"]);
}

#[tokio::test]
async fn a_watch_is_shared_and_ends_with_the_last_who_needs_it() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let nowhere = kube::Config::new(http::Uri::from_static("https://127.0.0.1:1"));
    let shelf = SharedWatches::new(Client::try_from(nowhere).unwrap(), "configmap", value);
    let scope = |name: &str| Scope { namespace: "ns".to_owned(), name: Some(name.to_owned()) };
    let open = || lock(&shelf.feeds).len();
    let (first, second, other) = (shelf.watch(scope("a")), shelf.watch(scope("a")), shelf.watch(scope("b")));
    assert_eq!(open(), 2);
    assert!(Arc::ptr_eq(&first.feed, &second.feed));
    let mut task = first.feed.view.clone();
    drop((first, other));
    assert_eq!(open(), 1);
    drop(second);
    assert_eq!(open(), 0);
    // The sender is the task's.
    let ended = async { while task.changed().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("the watch goes on");
    assert_eq!(shelf.watch(scope("a")).feed.words, "configmap \"a\"");
}

#[test]
fn delays_grow() {
    let delays: Vec<_> = Delays::new().take(12).collect();
    for (delay, longest) in delays.iter().zip((0..).map(|n| FIRST_DELAY * 2u32.pow(n))) {
        let longest = longest.min(LONGEST_DELAY);
        assert!(*delay >= longest / 2 && *delay <= longest, "{delay:?}");
    }
}
