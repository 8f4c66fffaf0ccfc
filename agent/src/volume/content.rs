//! What files a configMap, secret, downwardAPI or projected volume is to hold.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, Volume, VolumeProjection,
};
use kube::ResourceExt;
use tokio::sync::watch;

use super::items::{BadFiles, FileMode, config_map_files, downward_files, merge, secret_files};
use super::{Payload, PayloadFile};
use crate::apiserver::tokens::{Token, TokenError};
use crate::apiserver::watched_objects::{ObjectError, WatchedObject, first_of};
use crate::env::sources::InputSources;
use crate::quantity::ResourceList;

/// The permission bits of files whose volume does not say; the API server fills them in.
const USUAL_MODE: i32 = 0o644;

/// The files of one volume, which follow the objects that they are made of.
#[derive(Debug)]
pub(crate) struct Content {
    sources: Vec<Source>,
    mode: FileMode,
    pod: watch::Receiver<Arc<Pod>>,
    allocatable: Arc<ResourceList>,
}

/// Where files come from.
#[derive(Debug)]
enum Source {
    ConfigMap { object: WatchedObject<ConfigMap>, name: String, items: Vec<KeyToPath>, optional: bool },
    Secret { object: WatchedObject<Secret>, name: String, items: Vec<KeyToPath>, optional: bool },
    Downward { items: Vec<DownwardAPIVolumeFile>, shown: Option<Payload> },
    Token { token: Box<Token>, path: String },
    Unsupported(&'static str),
}

/// A volume that cannot be filled, or not yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentError {
    /// There is no such `ConfigMap`.
    #[error("configmap \"{0}\" not found")]
    ConfigMapMissing(String),
    /// There is no such Secret.
    #[error("secret \"{0}\" not found")]
    SecretMissing(String),
    /// An object cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// There is no token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// What there is makes no volume.
    #[error(transparent)]
    Files(#[from] BadFiles),
    /// This agent has no such files.
    #[error("projected source {0} is not supported by this node")]
    Unsupported(&'static str),
}

impl Content {
    /// The content of a volume; nothing when it is a volume of another kind. Must be called inside a runtime.
    ///
    /// The objects are watched for as long as this lives.
    pub(crate) fn of(volume: &Volume, pod: watch::Receiver<Arc<Pod>>, world: &InputSources) -> Option<Self> {
        let now = pod.borrow().clone();
        let (sources, mode) = if let Some(volume) = &volume.config_map {
            let source = config_map(world, &now, &volume.name, volume.items.clone(), volume.optional);
            (vec![source], volume.default_mode)
        } else if let Some(volume) = &volume.secret {
            let name = volume.secret_name.as_deref().unwrap_or_default();
            let source = secret(world, &now, name, volume.items.clone(), volume.optional);
            (vec![source], volume.default_mode)
        } else if let Some(volume) = &volume.downward_api {
            (vec![downward(volume.items.clone())], volume.default_mode)
        } else if let Some(volume) = &volume.projected {
            let sources = volume.sources.iter().flatten();
            (sources.filter_map(|source| projected(world, &now, source)).collect(), volume.default_mode)
        } else {
            return None;
        };
        let mode = FileMode::of(mode.unwrap_or(USUAL_MODE));
        Some(Self { sources, mode, pod, allocatable: world.allocatable.clone() })
    }

    /// The files as they are to be now. Asks for a token if one is due, and waits some seconds for objects at most.
    pub(crate) async fn payload(&mut self) -> Result<Payload, ContentError> {
        let pod = self.pod.borrow_and_update().clone();
        let mut parts = Vec::new();
        // All of them, even if one fails: `changed` counts from what each has last said.
        for source in &mut self.sources {
            parts.push(source.files(&pod, self.mode, &self.allocatable).await);
        }
        Ok(merge(parts.into_iter().collect::<Result<Vec<_>, _>>()?)?)
    }

    /// Waits until `payload` would say something else than it last did. Safe to cancel.
    pub(crate) async fn changed(&mut self) {
        let waits = self.sources.iter_mut().map(|source| -> BoxFuture<'_, ()> {
            match source {
                Source::ConfigMap { object, .. } => Box::pin(object.changed()),
                Source::Secret { object, .. } => Box::pin(object.changed()),
                Source::Token { token, .. } => Box::pin(token.due()),
                Source::Downward { items, shown } => {
                    let pod = self.pod.clone();
                    Box::pin(downward_changed(items, shown.as_ref(), pod, self.mode, &self.allocatable))
                }
                Source::Unsupported(_) => Box::pin(std::future::pending()),
            }
        });
        first_of(waits.collect()).await;
    }
}

fn config_map(
    world: &InputSources,
    pod: &Pod,
    name: &str,
    items: Option<Vec<KeyToPath>>,
    optional: Option<bool>,
) -> Source {
    Source::ConfigMap {
        object: world.objects.config_map(&pod.namespace().unwrap_or_default(), name),
        name: name.to_owned(),
        items: items.unwrap_or_default(),
        optional: optional.unwrap_or(false),
    }
}

fn secret(
    world: &InputSources,
    pod: &Pod,
    name: &str,
    items: Option<Vec<KeyToPath>>,
    optional: Option<bool>,
) -> Source {
    Source::Secret {
        object: world.objects.secret(&pod.namespace().unwrap_or_default(), name),
        name: name.to_owned(),
        items: items.unwrap_or_default(),
        optional: optional.unwrap_or(false),
    }
}

fn downward(items: Option<Vec<DownwardAPIVolumeFile>>) -> Source {
    Source::Downward { items: items.unwrap_or_default(), shown: None }
}

/// A source of a projected volume. One that says nothing brings nothing.
fn projected(world: &InputSources, pod: &Pod, source: &VolumeProjection) -> Option<Source> {
    Some(if let Some(source) = &source.config_map {
        config_map(world, pod, &source.name, source.items.clone(), source.optional)
    } else if let Some(source) = &source.secret {
        secret(world, pod, &source.name, source.items.clone(), source.optional)
    } else if let Some(source) = &source.downward_api {
        downward(source.items.clone())
    } else if let Some(source) = &source.service_account_token {
        Source::Token { token: Box::new(world.tokens.token(pod, source)), path: source.path.clone() }
    } else if source.cluster_trust_bundle.is_some() {
        Source::Unsupported("clusterTrustBundle")
    } else if source.pod_certificate.is_some() {
        Source::Unsupported("podCertificate")
    } else {
        return None;
    })
}

impl Source {
    async fn files(
        &mut self,
        pod: &Pod,
        mode: FileMode,
        allocatable: &ResourceList,
    ) -> Result<Payload, ContentError> {
        match self {
            Self::ConfigMap { object, name, items, optional } => match object.get().await? {
                Some(object) => Ok(config_map_files(&object, items, mode, *optional)?),
                None if *optional => Ok(Payload::default()),
                None => Err(ContentError::ConfigMapMissing(name.clone())),
            },
            Self::Secret { object, name, items, optional } => match object.get().await? {
                Some(object) => Ok(secret_files(&object, items, mode, *optional)?),
                None if *optional => Ok(Payload::default()),
                None => Err(ContentError::SecretMissing(name.clone())),
            },
            Self::Downward { items, shown } => {
                let files = downward_files(items, pod, mode, allocatable);
                *shown = files.as_ref().ok().cloned();
                Ok(files?)
            }
            Self::Token { token, path } => {
                let file = PayloadFile { bytes: token.get().await?.into_bytes(), mode: mode.bits() };
                Ok(Payload([(PathBuf::from(&*path), file)].into()))
            }
            Self::Unsupported(source) => Err(ContentError::Unsupported(source)),
        }
    }
}

/// Waits until a Pod has something else to tell. Most changes of a Pod are changes of its status, which no file shows.
async fn downward_changed(
    items: &[DownwardAPIVolumeFile],
    shown: Option<&Payload>,
    mut pod: watch::Receiver<Arc<Pod>>,
    mode: FileMode,
    allocatable: &ResourceList,
) {
    loop {
        let files = downward_files(items, &pod.borrow_and_update().clone(), mode, allocatable);
        if files.ok().as_ref() != shown {
            return;
        }
        if pod.changed().await.is_err() {
            // Nobody is left who could change it.
            std::future::pending::<()>().await;
        }
    }
}
