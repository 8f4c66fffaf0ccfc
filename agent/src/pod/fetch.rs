//! Having a Pod's image on this host, and telling about it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::Api;
use tokio::time::timeout;

use super::admission::VmPlan;
use super::events::Events;
use crate::image::credentials::{self, BadSecret, Credential};
use crate::image::{ImageError, Images};
use crate::report::chain;
use crate::tart::ImageDigest;

const LIMIT: Duration = Duration::from_secs(15);

/// What it takes to fetch the image of one Pod.
#[derive(Debug)]
pub(super) struct Fetcher {
    pub(super) images: Arc<Images>,
    pub(super) events: Events,
    /// The Secrets of the Pod's namespace; the API server shows a Node only those that its Pods name.
    pub(super) secrets: Api<Secret>,
    pub(super) pod: Arc<Pod>,
}

/// A pull secret that is of no use.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    #[error("the API server refused")]
    Api(#[from] kube::Error),
    #[error("the API server did not answer within {} s", LIMIT.as_secs())]
    Late(#[from] tokio::time::error::Elapsed),
    #[error("it is not a pull secret")]
    Bad(#[from] BadSecret),
}

impl Fetcher {
    /// Has the image ready for cloning.
    pub(super) async fn ensure(&self, plan: &VmPlan) -> Result<ImageDigest, ImageError> {
        if let Some(digest) = self.images.present(&plan.image, plan.pull).await? {
            return Ok(digest);
        }
        let credentials = credentials::fitting(&plan.image, self.credentials(plan).await);
        self.events.normal(&self.pod, "Pulling", &format!("pulling image `{}`", plan.image));
        let start = Instant::now();
        let digest = self.images.pull(&plan.image, credentials).await?;
        let took = start.elapsed().as_secs_f64();
        self.events.normal(
            &self.pod,
            "Pulled",
            &format!("image `{}` is {digest}, after {took:.1} s", plan.image),
        );
        Ok(digest)
    }

    /// The credentials in the Pod's pull secrets. One that is missing is told, and the pull is tried without it: the image
    /// may be public.
    async fn credentials(&self, plan: &VmPlan) -> Vec<Credential> {
        let mut found = Vec::new();
        for name in &plan.pull_secrets {
            match self.read(name).await {
                Ok(credentials) => found.extend(credentials),
                Err(error) => {
                    let note = format!("cannot use pull secret `{name}`: {}", chain(&error));
                    self.events.warning(&self.pod, "FailedToRetrieveImagePullSecret", &note);
                }
            }
        }
        found
    }

    async fn read(&self, name: &str) -> Result<Vec<Credential>, SecretError> {
        let secret = timeout(LIMIT, self.secrets.get(name)).await??;
        Ok(credentials::read(&secret)?)
    }
}
