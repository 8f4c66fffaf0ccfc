//! The files of a configMap, secret, downwardAPI or projected volume.

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

/// The mode of files whose volume has no `defaultMode`; the API server sets one.
const DEFAULT_MODE: i32 = 0o644;

/// The files of one volume, which change with the objects that they are made of.
#[derive(Debug)]
pub(crate) struct Content {
    sources: Vec<Source>,
    mode: FileMode,
    pod: watch::Receiver<Arc<Pod>>,
    allocatable: Arc<ResourceList>,
}

#[derive(Debug)]
enum Source {
    ConfigMap { object: WatchedObject<ConfigMap>, name: String, items: Vec<KeyToPath>, optional: bool },
    Secret { object: WatchedObject<Secret>, name: String, items: Vec<KeyToPath>, optional: bool },
    Downward { items: Vec<DownwardAPIVolumeFile>, last: Option<Payload> },
    Token { token: Box<Token>, path: String },
    Unsupported(&'static str),
}

/// A volume whose files are not known, or not yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeContentError {
    #[error("configmap \"{0}\" not found")]
    ConfigMapMissing(String),
    #[error("secret \"{0}\" not found")]
    SecretMissing(String),
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Files(#[from] BadFiles),
    #[error("projected source {0} is not supported by this node")]
    Unsupported(&'static str),
}

impl Content {
    /// The content of a volume; `None` for another kind of volume. Must be called inside a runtime.
    ///
    /// The agent watches the objects until this is dropped.
    pub(crate) fn of(volume: &Volume, pod: watch::Receiver<Arc<Pod>>, inputs: &InputSources) -> Option<Self> {
        let now = pod.borrow().clone();
        let (sources, mode) = if let Some(volume) = &volume.config_map {
            let source = config_map(inputs, &now, &volume.name, volume.items.clone(), volume.optional);
            (vec![source], volume.default_mode)
        } else if let Some(volume) = &volume.secret {
            let name = volume.secret_name.as_deref().unwrap_or_default();
            let source = secret(inputs, &now, name, volume.items.clone(), volume.optional);
            (vec![source], volume.default_mode)
        } else if let Some(volume) = &volume.downward_api {
            (vec![downward(volume.items.clone())], volume.default_mode)
        } else if let Some(volume) = &volume.projected {
            let sources = volume.sources.iter().flatten();
            (sources.filter_map(|source| projected(inputs, &now, source)).collect(), volume.default_mode)
        } else {
            return None;
        };
        let mode = FileMode::of(mode.unwrap_or(DEFAULT_MODE));
        Some(Self { sources, mode, pod, allocatable: inputs.allocatable.clone() })
    }

    /// The current files. Requests a token if one is due, and waits some seconds for objects at most.
    pub(crate) async fn payload(&mut self) -> Result<Payload, VolumeContentError> {
        let pod = self.pod.borrow_and_update().clone();
        let mut parts = Vec::new();
        // All of them, even if one fails: `changed` compares with the last result of each.
        for source in &mut self.sources {
            parts.push(source.files(&pod, self.mode, &self.allocatable).await);
        }
        Ok(merge(parts.into_iter().collect::<Result<Vec<_>, _>>()?)?)
    }

    /// Waits until `payload` would return other files than it last did. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        let waits = self.sources.iter_mut().map(|source| -> BoxFuture<'_, ()> {
            match source {
                Source::ConfigMap { object, .. } => Box::pin(object.changed()),
                Source::Secret { object, .. } => Box::pin(object.changed()),
                Source::Token { token, .. } => Box::pin(token.due()),
                Source::Downward { items, last } => {
                    let pod = self.pod.clone();
                    Box::pin(downward_changed(items, last.as_ref(), pod, self.mode, &self.allocatable))
                }
                Source::Unsupported(_) => Box::pin(std::future::pending()),
            }
        });
        first_of(waits.collect()).await;
    }
}

fn config_map(
    inputs: &InputSources,
    pod: &Pod,
    name: &str,
    items: Option<Vec<KeyToPath>>,
    optional: Option<bool>,
) -> Source {
    Source::ConfigMap {
        object: inputs.objects.config_map(&pod.namespace().unwrap_or_default(), name),
        name: name.to_owned(),
        items: items.unwrap_or_default(),
        optional: optional.unwrap_or(false),
    }
}

fn secret(
    inputs: &InputSources,
    pod: &Pod,
    name: &str,
    items: Option<Vec<KeyToPath>>,
    optional: Option<bool>,
) -> Source {
    Source::Secret {
        object: inputs.objects.secret(&pod.namespace().unwrap_or_default(), name),
        name: name.to_owned(),
        items: items.unwrap_or_default(),
        optional: optional.unwrap_or(false),
    }
}

fn downward(items: Option<Vec<DownwardAPIVolumeFile>>) -> Source {
    Source::Downward { items: items.unwrap_or_default(), last: None }
}

/// A source of a projected volume; an empty one is left out.
fn projected(inputs: &InputSources, pod: &Pod, source: &VolumeProjection) -> Option<Source> {
    Some(if let Some(source) = &source.config_map {
        config_map(inputs, pod, &source.name, source.items.clone(), source.optional)
    } else if let Some(source) = &source.secret {
        secret(inputs, pod, &source.name, source.items.clone(), source.optional)
    } else if let Some(source) = &source.downward_api {
        downward(source.items.clone())
    } else if let Some(source) = &source.service_account_token {
        Source::Token { token: Box::new(inputs.tokens.token(pod, source)), path: source.path.clone() }
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
    ) -> Result<Payload, VolumeContentError> {
        match self {
            Self::ConfigMap { object, name, items, optional } => match object.get().await? {
                Some(object) => Ok(config_map_files(&object, items, mode, *optional)?),
                None if *optional => Ok(Payload::default()),
                None => Err(VolumeContentError::ConfigMapMissing(name.clone())),
            },
            Self::Secret { object, name, items, optional } => match object.get().await? {
                Some(object) => Ok(secret_files(&object, items, mode, *optional)?),
                None if *optional => Ok(Payload::default()),
                None => Err(VolumeContentError::SecretMissing(name.clone())),
            },
            Self::Downward { items, last } => {
                let files = downward_files(items, pod, mode, allocatable);
                *last = files.as_ref().ok().cloned();
                Ok(files?)
            }
            Self::Token { token, path } => {
                let file = PayloadFile { bytes: token.get().await?.into_bytes(), mode: mode.0 };
                Ok(Payload([(PathBuf::from(&*path), file)].into()))
            }
            Self::Unsupported(source) => Err(VolumeContentError::Unsupported(source)),
        }
    }
}

/// Waits until the files of the downward API change. Most changes of a Pod are in its status, which is in no file.
async fn downward_changed(
    items: &[DownwardAPIVolumeFile],
    last: Option<&Payload>,
    mut pod: watch::Receiver<Arc<Pod>>,
    mode: FileMode,
    allocatable: &ResourceList,
) {
    loop {
        let files = downward_files(items, &pod.borrow_and_update().clone(), mode, allocatable);
        if files.ok().as_ref() != last {
            return;
        }
        if pod.changed().await.is_err() {
            // The sender is gone, so that the Pod never changes again.
            std::future::pending::<()>().await;
        }
    }
}
