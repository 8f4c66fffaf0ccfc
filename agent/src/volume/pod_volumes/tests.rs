use super::*;
use crate::names::Restart;
use crate::state::{POD_IP, Progress, ShimSpec, Stage, StateDir};
use crate::testing;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// One Pod on a Node without an API server: the content of its volumes comes from the Pod itself.
struct Scene {
    temp: tempfile::TempDir,
    dir: PodDir,
    pod: watch::Sender<Arc<Pod>>,
    sources: InputSources,
}

impl Scene {
    fn new(spec: &Value) -> Self {
        Self::on_host(|_| spec.clone())
    }

    /// A Pod that may use the host's directory that its spec is made with.
    fn on_host(spec: impl Fn(&Path) -> Value) -> Self {
        let temp = testing::dir();
        let spec = spec(&temp.path().canonicalize().unwrap().join("host"));
        let dir = StateDir::open(&temp.path().join("state")).unwrap().pod("0b1c".parse().unwrap());
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "0b1c"}, "spec": spec});
        let (pod, _) = watch::channel(Arc::new(serde_json::from_value(pod).unwrap()));
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(nowhere).unwrap();
        let (_, health) = watch::channel(None);
        Self { temp, dir, pod, sources: InputSources::new(&client, client.clone(), Arc::default(), health) }
    }

    /// A Pod whose only container has these mounts of these volumes.
    fn with(volumes: &Value, mounts: &Value) -> Self {
        Self::new(&with_volumes(volumes, mounts))
    }

    /// A Pod with its labels in a volume.
    fn with_labels() -> Self {
        Self::with(&json!([labels()]), &json!([{"name": "info", "mountPath": "/info"}]))
    }

    fn volumes(&self) -> PodVolumes {
        let allowed = vec![self.temp.path().join("host").display().to_string().parse().unwrap()];
        let at = |inside: &str| self.temp.path().join(inside);
        let host_paths = HostPaths::new(allowed, &at("state"), &at("tart"));
        let (sources, tart) = (self.sources.clone(), Tart::in_home("tart".as_ref(), &at("tart")));
        PodVolumes::new(&self.dir, self.pod.subscribe(), sources, Arc::new(host_paths), &tart)
    }

    async fn prepare(&self) -> Result<Prepared, PrepareError> {
        self.volumes().prepare(|_| true, |_, name| (name == "NAME").then(|| "value".to_owned())).await
    }

    fn label(&self, value: &str) {
        let labels = Some([("l".to_owned(), value.to_owned())].into());
        self.pod.send_modify(|pod| Arc::make_mut(pod).metadata.labels = labels);
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.dir.volumes_path().join(inside)
    }

    async fn reads(&self, inside: &str, text: &str) {
        let path = self.path(inside);
        while fs::read_to_string(&path).ok().as_deref() != Some(text) {
            tokio::task::yield_now().await;
        }
    }
}

/// Waits until the updaters have found their volumes removed.
async fn updaters_end(volumes: &PodVolumes) {
    while volumes.updaters.values().any(|updater| !updater.is_finished()) {
        tokio::task::yield_now().await;
    }
}

fn with_volumes(volumes: &Value, mounts: &Value) -> Value {
    json!({"volumes": volumes, "containers": [{"name": "main", "volumeMounts": mounts}]})
}

fn labels() -> Value {
    let items = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    json!({"name": "info", "downwardAPI": {"defaultMode": 256, "items": items}})
}

fn mount(share: &str, sub_path: &str, path: &str) -> Mount {
    let missing = Missing::Awaited;
    Mount { share: share.into(), sub_path: sub_path.into(), path: path.into(), missing, ..Mount::default() }
}

/// A subPath that the guest can create by that share.
fn part(share: &str, mode: u32, mount: Mount) -> Mount {
    Mount { missing: Missing::Made { share: share.into(), mode }, ..mount }
}

#[tokio::test]
async fn a_pod_gets_its_volumes_as_shares() {
    let volumes = json!([labels(), {"name": "cache", "emptyDir": {}}, {"name": "unused", "emptyDir": {}}]);
    let mounts = json!([
        {"name": "info", "mountPath": "/etc/podinfo"},
        {"name": "info", "mountPath": "labels", "subPath": "labels"},
        {"name": "cache", "mountPath": "/cache/"},
        {"name": "cache", "mountPath": "/old", "readOnly": true, "subPathExpr": "$(NAME)/deep"},
    ]);
    let scene = Scene::with(&volumes, &mounts);
    let prepared = scene.prepare().await.unwrap();
    let share = |name: &str, volume: &str, read_only| Share {
        name: name.into(),
        path: scene.path(volume),
        read_only,
        // No guest can replace a directory of the agent.
        identity: None,
    };
    let shares =
        [share("cache", "cache", false), share("cache.ro", "cache", true), share("info", "info", true)];
    assert_eq!(prepared.shares, shares);
    let mounts = [
        mount("info", "", "/etc/podinfo"),
        Mount { missing: Missing::Empty, ..mount("info", "labels", "/labels") },
        mount("cache", "", "/cache"),
        part("cache", 0o777, mount("cache.ro", "value/deep", "/old")),
    ];
    assert_eq!(prepared.mounts["main"], mounts);
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(scene.path("")), 0o700);
    assert_eq!(mode(scene.path("cache")), 0o777);
    assert_eq!(mode(scene.path("info/labels")), 0o400);
    assert!(scene.path("cache/value/deep").is_dir());
    assert!(!scene.path("unused").exists());
}

#[tokio::test]
async fn a_sub_path_that_an_earlier_container_may_create_is_left_to_the_guest() {
    let mounts = |sub_path: &str| json!([{"name": "work", "mountPath": "/work", "subPath": sub_path}]);
    let mut spec =
        with_volumes(&json!([{"name": "work", "emptyDir": {}}]), &mounts("made/by-init/config.yaml"));
    spec["initContainers"] = json!([{"name": "init", "volumeMounts": mounts("made/by-host")}]);
    let scene = Scene::new(&spec);
    // The agent does not follow the link that an earlier guest has left.
    fs::create_dir_all(scene.path("work/made")).unwrap();
    fs::set_permissions(scene.path("work"), fs::Permissions::from_mode(0o770)).unwrap();
    symlink(scene.temp.path(), scene.path("work/made/by-init")).unwrap();
    let prepared = scene.prepare().await.unwrap();
    let made = |sub_path| part("work", 0o770, mount("work", sub_path, "/work"));
    assert_eq!(prepared.mounts["main"], [made("made/by-init/config.yaml")]);
    assert_eq!(prepared.mounts["init"], [made("made/by-host")]);
    assert!(scene.path("work/made/by-host").is_dir());
    assert!(!scene.temp.path().join("config.yaml").exists());
}

#[tokio::test]
async fn a_sub_path_with_the_guests_address_is_created_by_the_guest_or_refused() {
    let named = |read_only: bool| {
        let part = json!({"name": "v", "mountPath": "/v", "subPathExpr": "at-$(IP)", "readOnly": read_only});
        Scene::with(&json!([{"name": "v", "emptyDir": {}}]), &json!([part]))
    };
    let address = |_: &str, _: &str| Some(POD_IP.to_owned());
    let prepared = named(false).volumes().prepare(|_| true, address).await.unwrap();
    let [part] = &prepared.mounts["main"][..] else { panic!("{prepared:?}") };
    assert_eq!(part.at("192.168.64.2").sub_path, "at-192.168.64.2");
    assert!(matches!(part.missing, Missing::Made { .. }), "{part:?}");
    let refused = named(true).volumes().prepare(|_| true, address).await.unwrap_err();
    assert_eq!(refused, PrepareError::SubPath(SubPathError::Address));
}

#[tokio::test]
async fn files_follow_their_source_also_under_a_later_agent() {
    let scene = Scene::with_labels();
    let mut volumes = scene.volumes();
    scene.label("one");
    volumes.prepare(|_| true, |_, _| None).await.unwrap();
    assert_eq!(fs::read_to_string(scene.path("info/labels")).unwrap(), "l=\"one\"");
    scene.label("two");
    scene.reads("info/labels", "l=\"two\"").await;
    drop(volumes);
    // No agent runs while this changes.
    scene.label("three");
    let mut volumes = scene.volumes();
    volumes.follow();
    scene.reads("info/labels", "l=\"three\"").await;
    scene.label("four");
    scene.reads("info/labels", "l=\"four\"").await;
    assert_eq!(volumes.problems(), []);
}

#[tokio::test]
async fn removed_volumes_do_not_come_back() {
    let scene = Scene::with_labels();
    let mut volumes = scene.volumes();
    volumes.prepare(|_| true, |_, _| None).await.unwrap();
    for number in 0..50 {
        scene.label(&number.to_string());
        tokio::task::yield_now().await;
    }
    scene.dir.wipe_volumes().unwrap();
    scene.label("new");
    updaters_end(&volumes).await;
    assert!(!scene.path("").exists());
    volumes.follow();
    updaters_end(&volumes).await;
    assert!(!scene.path("").exists());
}

#[tokio::test]
async fn the_updater_of_a_removed_volume_is_not_restarted() {
    let scene = Scene::with_labels();
    let mut volumes = scene.volumes();
    volumes.prepare(|_| true, |_, _| None).await.unwrap();
    scene.dir.wipe_volumes().unwrap();
    scene.label("new");
    updaters_end(&volumes).await;
    volumes.seen.borrow_and_update();
    volumes.follow();
    assert!(!volumes.seen.has_changed().unwrap(), "the worker is not woken up for nothing");
    assert!(volumes.updaters.values().all(AbortHandle::is_finished), "no updater runs");
    volumes.prepare(|_| true, |_, _| None).await.unwrap();
    scene.reads("info/labels", "l=\"new\"").await;
}

#[tokio::test]
async fn an_empty_dir_is_kept_from_one_vm_to_the_next() {
    let mounts = json!([{"name": "cache", "mountPath": "/c", "subPath": "a"}]);
    let scene = Scene::with(&json!([{"name": "cache", "emptyDir": {}}]), &mounts);
    scene.prepare().await.unwrap();
    fs::write(scene.path("cache/a/file"), "kept").unwrap();
    fs::set_permissions(scene.path("cache"), fs::Permissions::from_mode(0o700)).unwrap();
    scene.prepare().await.unwrap();
    assert_eq!(fs::read_to_string(scene.path("cache/a/file")).unwrap(), "kept");
}

#[tokio::test]
async fn a_volume_that_cannot_be_set_up_is_reported_in_the_kubelets_words() {
    let host = |path: &str| json!({"name": "host", "hostPath": {"path": path}});
    let info = json!({"name": "info", "downwardAPI": {"items": [
        {"path": "x", "fieldRef": {"fieldPath": "metadata.nonsense"}}]}});
    let mounts = json!([{"name": "host", "mountPath": "/host"}, {"name": "info", "mountPath": "/info"}]);
    let scene = Scene::with(&json!([host("/etc"), info]), &mounts);
    let error = scene.prepare().await.unwrap_err();
    assert_eq!(error.reasons(), (EventReason::FailedMount, None));
    let words = "MountVolume.SetUp failed for volume \"host\" : hostPath /etc is not allowed on this Node";
    assert!(error.to_string().starts_with(words), "{error}");
    let scene = Scene::with(&json!([info]), &json!([{"name": "info", "mountPath": "/info"}]));
    let error = scene.prepare().await.unwrap_err().to_string();
    assert!(error.starts_with("MountVolume.SetUp failed for volume \"info\" : "), "{error}");
}

#[tokio::test]
async fn a_sub_path_that_a_guest_has_replaced_by_a_link_is_not_used() {
    let volumes = json!([{"name": "cache", "emptyDir": {}}]);
    let mounts = json!([{"name": "cache", "mountPath": "/c", "subPath": "bent/inner"}]);
    let scene = Scene::with(&volumes, &mounts);
    scene.prepare().await.unwrap();
    let outside = scene.temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::remove_dir_all(scene.path("cache/bent")).unwrap();
    symlink(&outside, scene.path("cache/bent")).unwrap();
    let error = scene.prepare().await.unwrap_err();
    assert_eq!(error.reasons(), (EventReason::Failed, Some("CreateContainerConfigError")));
    let words = "failed to prepare subPath for volumeMount \"cache\" of container \"main\"";
    assert_eq!(error.to_string(), words);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[tokio::test]
async fn host_directories_are_shared_where_they_are() {
    let here = Scene::on_host(|host| {
        let volumes = json!([{"name": "host", "hostPath": {"path": host.join("data")}}]);
        with_volumes(&volumes, &json!([{"name": "host", "mountPath": "/h", "subPath": "new"}]))
    });
    let host = here.temp.path().join("host/data");
    let prepared = here.prepare().await.unwrap();
    let path = host.canonicalize().unwrap();
    let [share] = prepared.shares.as_slice() else { panic!("{prepared:?}") };
    assert_eq!((share.name.as_str(), &share.path, share.read_only), ("host", &path, false));
    assert!(share.identity.unwrap().is_at(&path).unwrap());
    let mode = fs::metadata(&host).unwrap().permissions().mode() & 0o777;
    assert_eq!(prepared.mounts["main"], [part("host", mode, mount("host", "new", "/h"))]);
    assert!(host.join("new").is_dir());
}

#[tokio::test]
async fn a_host_path_that_another_pod_could_replace_has_to_wait() {
    let here = Scene::on_host(|host| {
        let volumes = json!([{"name": "host", "hostPath": {"path": host.join("data")}}]);
        with_volumes(&volumes, &json!([{"name": "host", "mountPath": "/h"}]))
    });
    let path = here.temp.path().canonicalize().unwrap().join("host");
    let other = StateDir::at(&here.temp.path().join("state")).pod("2d3e".parse().unwrap()).run(Restart(0));
    let shares = vec![Share { path: path.clone(), ..Share::default() }];
    other.plan(&ShimSpec { shares, ..ShimSpec::example(other.vm()) }).unwrap();
    let refused = here.prepare().await.unwrap_err();
    assert_eq!(refused.reasons(), (EventReason::FailedMount, None));
    let words = format!("data is inside {}, which Pod 2d3e can write to", path.display());
    assert!(refused.to_string().contains(&words), "{refused}");
    assert!(!path.exists(), "the agent creates nothing there");
    other.mark_cleaned().unwrap();
    assert!(here.prepare().await.is_ok());
}

#[tokio::test]
async fn a_host_path_around_one_that_another_pod_is_about_to_get_has_to_wait() {
    let mut here = Scene::new(&json!({"containers": []}));
    let path = here.temp.path().canonicalize().unwrap().join("host");
    let volumes = json!([{"name": "host", "hostPath": {"path": path}}]);
    let pod = |read_only: bool| {
        let mounts = json!([{"name": "host", "mountPath": "/h", "readOnly": read_only}]);
        Scene::with(&volumes, &mounts).pod
    };
    let other = StateDir::at(&here.temp.path().join("state")).pod("2d3e".parse().unwrap()).run(Restart(0));
    let identity = Some(serde_json::from_value(json!({"inode": 2})).unwrap());
    let shares = vec![Share { path: path.join("data"), identity, ..Share::default() }];
    other.plan(&ShimSpec { shares, ..ShimSpec::example(other.vm()) }).unwrap();
    here.pod = pod(true);
    assert!(here.prepare().await.is_ok(), "a guest that only reads replaces nothing");
    here.pod = pod(false);
    let refused = here.prepare().await.unwrap_err();
    assert_eq!(refused.reasons(), (EventReason::FailedMount, None));
    let (outer, inner) = (path.display(), path.join("data").display().to_string());
    let words = format!("hostPath {outer} has {inner} in it, which Pod 2d3e is about to get");
    assert!(refused.to_string().contains(&words), "{refused}");
    let stage = Stage::Up { address: [192, 168, 64, 2].into() };
    other.record_progress(&Progress::example(stage)).unwrap();
    assert!(here.prepare().await.is_ok());
}

#[tokio::test]
async fn a_vm_has_the_shares_of_its_own_containers() {
    let volumes = json!([{"name": "both", "emptyDir": {}}, {"name": "mains", "emptyDir": {}}]);
    let mount = |name: &str, fields: &serde_json::Value| {
        crate::testing::merged(&json!({"name": name, "mountPath": format!("/{name}")}), fields)
    };
    let mains = json!([mount("both", &json!({"subPath": "made"})), mount("mains", &json!({}))]);
    let mut spec = with_volumes(&volumes, &mains);
    spec["initContainers"] =
        json!([{"name": "init", "volumeMounts": [mount("both", &json!({"readOnly": true}))]}]);
    let scene = Scene::new(&spec);
    let mut volumes = scene.volumes();
    let of_init = volumes.prepare(|name| name == "init", |_, _| None).await.unwrap();
    let shares = |prepared: &Prepared| -> Vec<_> {
        prepared.shares.iter().map(|share| (share.name.clone(), share.read_only)).collect()
    };
    assert_eq!(shares(&of_init), [("both".to_owned(), true)]);
    assert!(of_init.mounts.contains_key("init") && of_init.mounts.len() == 1);
    // The init container is over, so the agent makes the subPath.
    let of_main = volumes.prepare(|name| name == "main", |_, _| None).await.unwrap();
    assert_eq!(shares(&of_main), [("both".to_owned(), false), ("mains".to_owned(), false)]);
    assert!(of_main.mounts.contains_key("main") && of_main.mounts.len() == 1);
    assert!(scene.path("both/made").is_dir());
}

#[tokio::test]
async fn a_volume_that_is_too_large_is_reported() {
    let volumes = json!([{"name": "cache", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let scene = Scene::with(&volumes, &json!([{"name": "cache", "mountPath": "/c"}]));
    let mut volumes = scene.volumes();
    volumes.create_roots(volumes.mounts.clone()).await.unwrap();
    fs::write(scene.path("cache/file"), vec![1; 2 << 20]).unwrap();
    volumes.prepare(|_| true, |_, _| None).await.unwrap();
    while volumes.exceeded().is_none() {
        volumes.changed().await;
    }
    let exceeded = volumes.exceeded().unwrap().to_string();
    assert_eq!(exceeded, "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". ");
}
