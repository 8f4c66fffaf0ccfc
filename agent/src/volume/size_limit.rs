//! `emptyDir.sizeLimit` and `limits.ephemeral-storage`: a Pod that uses more is evicted.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, PodSpec};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::boot_share;
use super::pod_usage::used_without_volumes;
use crate::error_chain::chain;
use crate::fs::blocking_io::BlockingIo;
use crate::fs::dir::Dir;
use crate::fs::disk_usage::{Measurement, Usage};
use crate::quantity;
use crate::state::PodDir;
use crate::state::container_spec::all_containers;
use crate::tart::Tart;

/// How often volumes are measured, as the kubelet does.
const INTERVAL: Duration = Duration::from_secs(10);
/// The pause in multiples of the time that a measurement takes: measuring costs a tenth of a core at most.
const PAUSE_FACTOR: u32 = 9;
/// The number of entries of one step.
const STEP: u64 = 5000;
/// How often in a row a volume must be unmeasurable to count as too large: some programs lock a directory for a moment.
const MAX_UNMEASURABLE: u32 = 3;
/// A disk that does not answer is measured again later.
const READ_LIMIT: Duration = Duration::from_secs(30);

const STORAGE: &str = "ephemeral-storage";
/// A boot-only guest writes a few words about its end.
const BOOT_STATUS_BYTES: u64 = 1 << 20;

/// The maximum size of a directory that guests write to.
#[derive(Debug, Clone)]
pub(super) struct SizeLimit {
    scope: LimitScope,
    volume: String,
    bytes: u64,
    /// As the Pod has it.
    text: String,
    /// What counts in addition to the directory.
    other_usage: Option<OtherUsage>,
}

/// The directory that a limit is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitScope {
    Volume,
    /// The status share of the Pod's latest VM, which is boot-only.
    BootStatus,
    /// All volumes of the Pod.
    Pod,
}

/// The disk usage of a Pod without its volumes.
#[derive(Debug, Clone)]
struct OtherUsage {
    dir: PodDir,
    tart: Tart,
}

impl SizeLimit {
    /// The limit of the share in which a boot-only guest writes its exit status.
    pub(super) fn of_boot_status() -> Self {
        let (scope, volume) = (LimitScope::BootStatus, boot_share::STATUS.to_owned());
        Self { scope, volume, bytes: BOOT_STATUS_BYTES, text: "1Mi".to_owned(), other_usage: None }
    }

    /// The limit of a Pod's disk usage, if it has one: the largest of its containers', which run one after the other.
    pub(super) fn of_pod(dir: &PodDir, tart: &Tart, spec: &PodSpec) -> Option<Self> {
        let limits =
            all_containers(spec).filter_map(|one| one.resources.as_ref()?.limits.as_ref()?.get(STORAGE));
        // A quantity beyond `u64` is more than any disk has.
        let counted = limits.map(|limit| (quantity::whole(limit).unwrap_or(u64::MAX), limit));
        let (bytes, limit) = counted.max_by_key(|(bytes, _)| *bytes)?;
        let other_usage = Some(OtherUsage { dir: dir.clone(), tart: tart.clone() });
        let (scope, volume) = (LimitScope::Pod, dir.uid().to_string());
        Some(Self { scope, volume, bytes, text: limit.0.clone(), other_usage })
    }

    /// The limit of a volume, if it has one.
    pub(super) fn of(volume: &str, source: &EmptyDirVolumeSource) -> Option<Self> {
        let limit = source.size_limit.as_ref()?;
        // As for the kubelet, zero is no limit.
        let bytes = quantity::whole(limit).filter(|bytes| *bytes > 0)?;
        let (scope, volume) = (LimitScope::Volume, volume.to_owned());
        Some(Self { scope, volume, bytes, text: limit.0.clone(), other_usage: None })
    }

    /// The usage that counts; `None` when it cannot be measured now.
    async fn usage(&self, volumes: &Path, io: &mut BlockingIo) -> Option<Usage> {
        let other = match &self.other_usage {
            Some(other) => other.measure(io).await?,
            None => 0,
        };
        let Some(left) = self.bytes.checked_sub(other) else { return Some(Usage::Bytes(other)) };
        match measure(volumes.to_owned(), Self { bytes: left, ..self.clone() }).await? {
            Usage::Bytes(bytes) => Some(Usage::Bytes(bytes.saturating_add(other))),
            unmeasurable @ Usage::Unmeasurable(_) => Some(unmeasurable),
        }
    }
}

impl OtherUsage {
    async fn measure(&self, io: &mut BlockingIo) -> Option<u64> {
        let Self { dir, tart } = self.clone();
        match io.run(READ_LIMIT, move || used_without_volumes(&dir, &tart)).await {
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => {
                warn!(error = chain(&error), "cannot measure the disk usage of a Pod; trying again later");
                None
            }
            None => {
                warn!("the disk does not answer, so that a Pod's usage is not known; trying again later");
                None
            }
        }
    }
}

/// A limit that is exceeded, or that cannot be measured; the Pod is to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exceeded {
    scope: LimitScope,
    volume: String,
    /// As the Pod has it.
    limit: String,
    usage: Usage,
}

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { scope, volume, limit, usage } = self;
        let (used, limit) = match scope {
            LimitScope::Volume => {
                (format!("Usage of EmptyDir volume {volume:?}"), format!("the limit {limit:?}"))
            }
            LimitScope::Pod => (
                "Pod ephemeral local storage usage".to_owned(),
                format!("the total limit of containers {limit}"),
            ),
            LimitScope::BootStatus => {
                return match usage {
                    Usage::Unmeasurable(why) => {
                        write!(
                            f,
                            "What the guest has written to its share {volume} cannot be measured: {why}"
                        )
                    }
                    Usage::Bytes(_) => write!(
                        f,
                        "The guest has written more than {limit} to its share {volume}, which is for its exit code and a few words; have it \
                         write to an emptyDir volume instead"
                    ),
                };
            }
        };
        // The kubelet's words where it has some, with the space at their end.
        match usage {
            Usage::Bytes(_) => write!(f, "{used} exceeds {limit}. "),
            Usage::Unmeasurable(why) => write!(f, "{used} with {limit} cannot be measured: {why}. "),
        }
    }
}

/// Measures again and again, with the volumes below `volumes`, until a limit is exceeded.
pub(super) async fn watch(volumes: PathBuf, limits: Vec<SizeLimit>) -> Exceeded {
    let mut unmeasurable = vec![0; limits.len()];
    let mut io = BlockingIo::default();
    loop {
        let began = Instant::now();
        for (limit, unmeasurable) in limits.iter().zip(&mut unmeasurable) {
            let usage = limit.usage(&volumes, &mut io).await;
            debug!(volume = limit.volume, ?usage, "measured");
            *unmeasurable = if matches!(usage, Some(Usage::Unmeasurable(_))) { *unmeasurable + 1 } else { 0 };
            if let Some(usage) = usage.filter(|usage| is_too_large(*usage, limit.bytes, *unmeasurable)) {
                let SizeLimit { scope, volume, text, .. } = limit.clone();
                return Exceeded { scope, volume, limit: text, usage };
            }
        }
        sleep(INTERVAL.max(began.elapsed() * PAUSE_FACTOR)).await;
    }
}

fn is_too_large(usage: Usage, limit: u64, unmeasurable: u32) -> bool {
    match usage {
        Usage::Bytes(used) => used > limit,
        Usage::Unmeasurable(_) => unmeasurable >= MAX_UNMEASURABLE,
    }
}

/// The usage of a directory; `None` when it does not exist, or changes too fast to be measured.
async fn measure(volumes: PathBuf, limit: SizeLimit) -> Option<Usage> {
    let SizeLimit { scope, volume, bytes, .. } = limit;
    let begin = move || {
        let parent = match scope {
            LimitScope::Volume => volumes,
            LimitScope::BootStatus => boot_share::latest(&volumes)?,
            LimitScope::Pod => volumes.parent().ok_or(io::ErrorKind::NotFound)?.to_owned(),
        };
        Measurement::begin(&Dir::trusted(&parent)?, volume.as_ref())
    };
    let mut measurement = match spawn_blocking(begin).await.ok()?.ok()? {
        Ok(measurement) => measurement,
        Err(obstacle) => return Some(Usage::Unmeasurable(obstacle)),
    };
    loop {
        let step = spawn_blocking(move || measurement.advance(STEP, bytes).map(|usage| (measurement, usage)));
        match step.await.ok()? {
            Ok((_, Some(usage))) => return Some(usage),
            Ok((rest, None)) => measurement = rest,
            Err(error) => {
                warn!(%error, "cannot measure a volume; trying again later");
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::disk_usage::Obstacle;
    use crate::fs::hostile;
    use crate::state::StateDir;
    use crate::testing;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::{Value, json};
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn source(limit: &str) -> EmptyDirVolumeSource {
        EmptyDirVolumeSource { medium: None, size_limit: Some(Quantity(limit.to_owned())) }
    }

    #[test]
    fn the_message_is_the_kubelets_where_it_has_one() {
        let words =
            |scope, usage| Exceeded { scope, volume: "cache".into(), limit: "1Mi".into(), usage }.to_string();
        assert_eq!(
            words(LimitScope::Volume, Usage::Bytes(2 << 20)),
            "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". "
        );
        assert_eq!(
            words(LimitScope::Pod, Usage::Bytes(2 << 20)),
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "
        );
        assert_eq!(
            words(LimitScope::Pod, Usage::Unmeasurable(Obstacle::Locked)),
            "Pod ephemeral local storage usage with the total limit of containers 1Mi cannot be measured: one of its \
             directories cannot be read by the agent's user. "
        );
        assert_eq!(
            words(LimitScope::Volume, Usage::Unmeasurable(Obstacle::TooDeep)),
            "Usage of EmptyDir volume \"cache\" with the limit \"1Mi\" cannot be measured: more than 64 of its \
             directories are inside each other. "
        );
    }

    #[test]
    fn zero_is_no_limit() {
        assert!(SizeLimit::of("v", &source("0")).is_none());
        assert!(SizeLimit::of("v", &EmptyDirVolumeSource::default()).is_none());
        assert_eq!(SizeLimit::of("v", &source("1Ki")).unwrap().bytes, 1024);
    }

    #[test]
    fn a_directory_that_is_unmeasurable_for_a_moment_is_not_too_large() {
        let table = [
            (Usage::Bytes(11), 0, true),
            (Usage::Bytes(10), 0, false),
            (Usage::Unmeasurable(Obstacle::Locked), MAX_UNMEASURABLE - 1, false),
            (Usage::Unmeasurable(Obstacle::Locked), MAX_UNMEASURABLE, true),
        ];
        for (usage, unmeasurable, expected) in table {
            assert_eq!(is_too_large(usage, 10, unmeasurable), expected, "{usage:?} {unmeasurable}");
        }
    }

    #[tokio::test]
    async fn the_volume_that_is_too_large_is_named() {
        let temp = testing::dir();
        for name in ["small", "large"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        fs::write(temp.path().join("large/file"), vec![1; 2 << 20]).unwrap();
        let limits = ["absent", "small", "large"].map(|name| SizeLimit::of(name, &source("1Mi")).unwrap());
        let exceeded = watch(temp.path().to_owned(), limits.to_vec()).await;
        assert_eq!(exceeded.volume, "large");
        assert!(matches!(exceeded.usage, Usage::Bytes(used) if used > 1 << 20));
    }

    /// A Pod with these limits of its init containers and its container.
    fn limited(limits: &[Value]) -> (tempfile::TempDir, PodDir, Option<SizeLimit>) {
        let temp = testing::dir();
        let dir = StateDir::open(&temp.path().join("state")).unwrap().pod("0b1c".parse().unwrap());
        let container = |limits: &Value| json!({"name": "c", "resources": {"limits": limits}});
        let mut containers: Vec<Value> = limits.iter().map(container).collect();
        let main = containers.split_off(containers.len() - 1);
        let spec = json!({"initContainers": containers, "containers": main});
        let tart = Tart::in_home("tart".as_ref(), temp.path());
        let limit = SizeLimit::of_pod(&dir, &tart, &serde_json::from_value(spec).unwrap());
        (temp, dir, limit)
    }

    #[test]
    fn the_limit_of_a_pod_is_the_largest_of_its_containers() {
        let storage = |amount: &str| json!({"ephemeral-storage": amount});
        let table = [
            (vec![json!({})], None),
            (vec![json!({"memory": "1Gi"})], None),
            (vec![storage("1Ki")], Some((1 << 10, "1Ki"))),
            (vec![storage("0")], Some((0, "0"))),
            (vec![storage("2Ki"), storage("1Ki")], Some((2 << 10, "2Ki"))),
            (vec![storage("1Ki"), storage("2Ki")], Some((2 << 10, "2Ki"))),
            (vec![storage("1Ki"), json!({})], Some((1 << 10, "1Ki"))),
            (vec![storage("99Ei"), storage("1Ki")], Some((u64::MAX, "99Ei"))),
        ];
        for (limits, expected) in table {
            let (_temp, _dir, limit) = limited(&limits);
            let found = limit.as_ref().map(|limit| (limit.bytes, limit.text.as_str()));
            assert_eq!(found, expected, "{limits:?}");
        }
    }

    #[tokio::test]
    async fn volumes_and_logs_together_count_for_the_limit_of_their_pod() {
        let (_temp, dir, limit) = limited(&[json!({"ephemeral-storage": "3Mi"})]);
        let (limit, volumes) = (limit.unwrap(), dir.volumes_path());
        let is_exceeded = async || {
            let usage = limit.usage(&volumes, &mut BlockingIo::default()).await;
            usage.is_some_and(|usage| is_too_large(usage, limit.bytes, 0))
        };
        assert!(!is_exceeded().await, "there is nothing yet");
        fs::create_dir_all(volumes.join("cache")).unwrap();
        fs::create_dir_all(dir.logs_path()).unwrap();
        fs::write(volumes.join("cache/file"), vec![1; 2 << 20]).unwrap();
        assert!(!is_exceeded().await);
        fs::write(dir.logs_path().join("log"), vec![1; 2 << 20]).unwrap();
        assert!(is_exceeded().await);
        fs::remove_file(volumes.join("cache/file")).unwrap();
        assert!(!is_exceeded().await);
        fs::write(dir.logs_path().join("log"), vec![1; 4 << 20]).unwrap();
        let words = watch(volumes.clone(), vec![limit.clone()]).await.to_string();
        assert_eq!(words, "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ");
    }

    #[test]
    fn a_locked_volume_still_has_its_limit() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().on_thread_start(hostile::be_nobody).build().unwrap();
        for (locked, mode) in [("v", 0), ("v", 0o600), ("v/d", 0o600)] {
            let temp = hostile::world_writable_dir();
            hostile::as_nobody(|| {
                fs::create_dir_all(temp.path().join("v/d")).unwrap();
                fs::write(temp.path().join("v/d/file"), "").unwrap();
                fs::set_permissions(temp.path().join(locked), fs::Permissions::from_mode(mode)).unwrap();
            });
            let limit = SizeLimit::of("v", &source("1Mi")).unwrap();
            let usage = runtime.block_on(measure(temp.path().to_owned(), limit));
            assert_eq!(usage, Some(Usage::Unmeasurable(Obstacle::Locked)), "{locked} {mode:o}");
        }
    }

    #[tokio::test]
    async fn a_boot_only_guest_cannot_fill_the_disk() {
        let temp = testing::dir();
        for name in [".boot-9/pod_status", ".boot-10/pod_status", ".boot-x", "v"] {
            fs::create_dir_all(temp.path().join(name)).unwrap();
        }
        let measured = || measure(temp.path().to_owned(), SizeLimit::of_boot_status());
        let is_full = |usage| matches!(usage, Some(Usage::Bytes(used)) if used > BOOT_STATUS_BYTES);
        fs::write(temp.path().join(".boot-9/pod_status/old"), vec![1; 2 << 20]).unwrap();
        assert!(!is_full(measured().await), "the share of an earlier VM does not count");
        fs::write(temp.path().join(".boot-10/pod_status/file"), vec![1; 2 << 20]).unwrap();
        assert!(is_full(measured().await));
        let exceeded = watch(temp.path().to_owned(), vec![SizeLimit::of_boot_status()]).await;
        let words = exceeded.to_string();
        assert!(words.starts_with("The guest has written more than 1Mi to its share pod_status"), "{words}");
    }
}
