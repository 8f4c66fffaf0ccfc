//! `emptyDir.sizeLimit`: who uses more than that is evicted.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::boot;
use super::dir::Dir;
use super::measure::{Measurement, Usage};
use crate::quantity;

/// How often volumes are measured, as the kubelet does.
const INTERVAL: Duration = Duration::from_secs(10);
/// Of the time that it takes: measuring costs a tenth of a core at most.
const REST: u32 = 9;
/// How many entries are looked at in one go.
const STEP: u64 = 5000;
/// How often in a row a volume must be unmeasurable to count as too large: some programs lock a directory for a moment.
const STRIKES: u32 = 3;

/// What a guest that only boots may say of how it ended: a few words.
const BOOT_STATUS_BYTES: u64 = 1 << 20;

/// A directory that guests write to, and that may not grow beyond a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limit {
    place: Place,
    volume: String,
    bytes: u64,
    /// As the Pod has it.
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The volume itself.
    Volume,
    /// A share of the Pod's last VM, which only boots.
    BootStatus,
}

impl Limit {
    /// The limit of the share in which a guest that only boots says how it ended.
    pub(super) fn of_boot_status() -> Self {
        let (place, volume) = (Place::BootStatus, boot::STATUS.to_owned());
        Self { place, volume, bytes: BOOT_STATUS_BYTES, text: "1Mi".to_owned() }
    }

    /// The limit of a volume, if it has one.
    pub(super) fn of(volume: &str, source: &EmptyDirVolumeSource) -> Option<Self> {
        let limit = source.size_limit.as_ref()?;
        // As for the kubelet, zero is no limit.
        let bytes = quantity::whole(limit).filter(|bytes| *bytes > 0)?;
        Some(Self { place: Place::Volume, volume: volume.to_owned(), bytes, text: limit.0.clone() })
    }
}

/// A volume that is larger than it may be, or may be; its Pod is to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceeded {
    place: Place,
    volume: String,
    /// As the Pod has it.
    limit: String,
    usage: Usage,
}

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { place, volume, limit, usage } = self;
        match (place, usage) {
            // The kubelet's words, with the space at their end.
            (Place::Volume, Usage::Bytes(_)) => {
                write!(f, "Usage of EmptyDir volume {volume:?} exceeds the limit {limit:?}. ")
            }
            (Place::Volume, Usage::Unmeasurable(why)) => {
                write!(
                    f,
                    "Usage of EmptyDir volume {volume:?} with the limit {limit:?} cannot be measured: {why}. "
                )
            }
            (Place::BootStatus, Usage::Unmeasurable(why)) => {
                write!(f, "What the guest has written to its share {volume} cannot be measured: {why}")
            }
            (Place::BootStatus, Usage::Bytes(_)) => write!(
                f,
                "The guest has written more than {limit} to its share {volume}, which is for its exit code and a few words; have it write to \
                 an emptyDir volume instead"
            ),
        }
    }
}

/// Measures volumes below `volumes` again and again, until one is too large.
pub(super) async fn watch(volumes: PathBuf, limits: Vec<Limit>) -> Exceeded {
    let mut strikes = vec![0; limits.len()];
    loop {
        let began = Instant::now();
        for (limit, strikes) in limits.iter().zip(&mut strikes) {
            let usage = measure(volumes.clone(), limit.clone()).await;
            debug!(volume = limit.volume, ?usage, "measured");
            *strikes = if matches!(usage, Some(Usage::Unmeasurable(_))) { *strikes + 1 } else { 0 };
            if let Some(usage) = usage.filter(|usage| is_too_large(*usage, limit.bytes, *strikes)) {
                let Limit { place, volume, text, .. } = limit.clone();
                return Exceeded { place, volume, limit: text, usage };
            }
        }
        sleep(INTERVAL.max(began.elapsed() * REST)).await;
    }
}

fn is_too_large(usage: Usage, limit: u64, strikes: u32) -> bool {
    match usage {
        Usage::Bytes(used) => used > limit,
        Usage::Unmeasurable(_) => strikes >= STRIKES,
    }
}

/// What a volume takes; nothing when it is not there, or changed too much to be measured.
async fn measure(volumes: PathBuf, limit: Limit) -> Option<Usage> {
    let Limit { place, volume, bytes, .. } = limit;
    let begin = move || {
        let parent = match place {
            Place::Volume => volumes,
            Place::BootStatus => boot::latest(&volumes)?,
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
    use super::super::measure::Obstacle;
    use super::*;
    use crate::volume::hostile;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn source(limit: &str) -> EmptyDirVolumeSource {
        EmptyDirVolumeSource { medium: None, size_limit: Some(Quantity(limit.to_owned())) }
    }

    #[test]
    fn the_words_are_the_kubelets_where_it_has_any() {
        let words = |usage| {
            Exceeded { place: Place::Volume, volume: "cache".into(), limit: "1Mi".into(), usage }.to_string()
        };
        assert_eq!(
            words(Usage::Bytes(2 << 20)),
            "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". "
        );
        assert_eq!(
            words(Usage::Unmeasurable(Obstacle::TooDeep)),
            "Usage of EmptyDir volume \"cache\" with the limit \"1Mi\" cannot be measured: more than 64 of its \
             directories are inside each other. "
        );
    }

    #[test]
    fn zero_is_no_limit() {
        assert_eq!(Limit::of("v", &source("0")), None);
        assert_eq!(Limit::of("v", &EmptyDirVolumeSource::default()), None);
        assert_eq!(Limit::of("v", &source("1Ki")).unwrap().bytes, 1024);
    }

    #[test]
    fn a_moment_of_being_unmeasurable_is_forgiven() {
        let table = [
            (Usage::Bytes(11), 0, true),
            (Usage::Bytes(10), 0, false),
            (Usage::Unmeasurable(Obstacle::Locked), STRIKES - 1, false),
            (Usage::Unmeasurable(Obstacle::Locked), STRIKES, true),
        ];
        for (usage, strikes, expected) in table {
            assert_eq!(is_too_large(usage, 10, strikes), expected, "{usage:?} {strikes}");
        }
    }

    #[tokio::test]
    async fn the_volume_that_is_too_large_is_named() {
        let temp =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        for name in ["small", "large"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        fs::write(temp.path().join("large/file"), vec![1; 2 << 20]).unwrap();
        let limits = ["absent", "small", "large"].map(|name| Limit::of(name, &source("1Mi")).unwrap());
        let exceeded = watch(temp.path().to_owned(), limits.to_vec()).await;
        assert_eq!(exceeded.volume, "large");
        assert!(matches!(exceeded.usage, Usage::Bytes(used) if used > 1 << 20));
    }

    #[test]
    fn who_locks_a_volume_does_not_switch_its_limit_off() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().on_thread_start(hostile::be_nobody).build().unwrap();
        for (locked, mode) in [("v", 0), ("v", 0o600), ("v/d", 0o600)] {
            let temp = hostile::place_for_all();
            hostile::as_nobody(|| {
                fs::create_dir_all(temp.path().join("v/d")).unwrap();
                fs::write(temp.path().join("v/d/file"), "").unwrap();
                fs::set_permissions(temp.path().join(locked), fs::Permissions::from_mode(mode)).unwrap();
            });
            let limit = Limit::of("v", &source("1Mi")).unwrap();
            let usage = runtime.block_on(measure(temp.path().to_owned(), limit));
            assert_eq!(usage, Some(Usage::Unmeasurable(Obstacle::Locked)), "{locked} {mode:o}");
        }
    }

    #[tokio::test]
    async fn a_guest_that_only_boots_cannot_fill_the_disk() {
        let temp =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        for name in [".boot-9/pod_status", ".boot-10/pod_status", ".boot-x", "v"] {
            fs::create_dir_all(temp.path().join(name)).unwrap();
        }
        let measured = || measure(temp.path().to_owned(), Limit::of_boot_status());
        let is_full = |usage| matches!(usage, Some(Usage::Bytes(used)) if used > BOOT_STATUS_BYTES);
        fs::write(temp.path().join(".boot-9/pod_status/old"), vec![1; 2 << 20]).unwrap();
        assert!(!is_full(measured().await), "a VM before is no reason to evict this one");
        fs::write(temp.path().join(".boot-10/pod_status/file"), vec![1; 2 << 20]).unwrap();
        assert!(is_full(measured().await));
        let exceeded = watch(temp.path().to_owned(), vec![Limit::of_boot_status()]).await;
        let words = exceeded.to_string();
        assert!(words.starts_with("The guest has written more than 1Mi to its share pod_status"), "{words}");
    }
}
