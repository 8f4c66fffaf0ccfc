//! The image of a Pod: found on this host or pulled, with Events about it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Secret};
use kube::ResourceExt;
use kube::api::Api;

use crate::apiserver::call::{CallError, DEADLINE, call};
use crate::apiserver::events::{EventReason, Events};
use crate::error_chain::chain;
use crate::image::access::{ImageAccess, SecretUid};
use crate::image::credentials::{self, BadSecret, Login};
use crate::image::gc::SpaceRequest;
use crate::image::manager::ImageManager;
use crate::image::pins::Pin;
use crate::image::{ImageError, PullPolicy, Pulled};
use crate::names::image::check_name;
use crate::names::{BaseName, ImageDigest};
use crate::pod::admission::VmPlan;
use crate::tart::Credential;

/// Events about progress come no more often than this, and no finer than in steps of so many percent.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);
const PROGRESS_STEP: u8 = 10;

/// The last Event about a pull's progress.
#[derive(Debug, Clone, Copy)]
struct Progress {
    percent: u8,
    at: Instant,
}

impl Progress {
    fn is_due(self, percent: u8, now: Instant) -> bool {
        let further = percent.saturating_sub(self.percent) >= PROGRESS_STEP && percent < 100;
        further && now.duration_since(self.at) >= PROGRESS_INTERVAL
    }
}

/// What it takes to fetch the image of one Pod.
#[derive(Debug)]
pub(crate) struct ImagePull {
    pub(crate) manager: ImageManager,
    pub(crate) events: Events,
    /// The Secrets of the Pod's namespace; the API server shows a Node only those that its Pods name.
    pub(crate) secrets: Api<Secret>,
    pub(crate) pod: Arc<Pod>,
    /// The Pod's container that is the first to need the image, for Events.
    pub(crate) container: ObjectReference,
    /// The image that the Pod's last VM was made from. The Pod has shown its right to that one.
    pub(crate) had: Option<ImageDigest>,
}

/// An image that VMs can be made from.
#[derive(Debug)]
pub(crate) struct ReadyImage {
    pub(crate) digest: ImageDigest,
    pub(crate) base: BaseName,
    /// Whether it did not have to be pulled.
    pub(crate) was_here: bool,
    /// Keeps the image from deletion until the plan that names it is written.
    pub(crate) _pin: Pin,
}

/// An image that is on this host.
#[derive(Debug)]
struct Found {
    digest: ImageDigest,
    was_here: bool,
}

/// A pull secret that cannot be used.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("it is not a pull secret")]
    Bad(#[from] BadSecret),
}

impl ImagePull {
    /// Has the image ready for cloning. When there is no space for it, other images are deleted, and it is tried once more.
    pub(crate) async fn ensure(&self, plan: &VmPlan) -> Result<ReadyImage, ImageError> {
        // A Pod's image can change after its admission.
        check_name(&plan.image)?;
        let mut pin = self.manager.images.pin(&plan.image).await;
        let ready = match self.ready(plan, &mut pin).await {
            Err(error) if error.is_for_want_of_space() && self.free_space(plan, &error).await => {
                self.ready(plan, &mut pin).await
            }
            result => result,
        };
        if ready.is_ok() {
            self.manager.disk_space.image_is_ready(&plan.image);
        }
        ready.map(|(Found { digest, was_here }, base)| ReadyImage { digest, base, was_here, _pin: pin })
    }

    async fn ready(&self, plan: &VmPlan, pin: &mut Pin) -> Result<(Found, BaseName), ImageError> {
        let found = loop {
            let found = self.find(plan).await?;
            // An image that was being deleted until now has to be found again.
            if pin.hold(&BaseName::of(&found.digest).to_string()).await {
                break found;
            }
        };
        let base = self.manager.images.base(&plan.image, &found.digest).await?;
        Ok((found, base))
    }

    /// Frees disk space for the image; whether there is more than before.
    async fn free_space(&self, plan: &VmPlan, error: &ImageError) -> bool {
        let freed = self.manager.disk_space.free(SpaceRequest::Image { name: &plan.image, error }).await;
        let Some(why) = freed.why_not() else { return true };
        let note = format!(
            "there is no space for image `{}`, and {why}; free some disk space on the host",
            plan.image
        );
        self.events.about(self.container.clone(), true, EventReason::FreeDiskSpaceFailed, &note);
        false
    }

    async fn find(&self, plan: &VmPlan) -> Result<Found, ImageError> {
        let present = self.manager.images.present(&plan.image, plan.pull).await?;
        if let Some(digest) = present.as_ref().filter(|digest| self.may_have(digest)) {
            return Ok(Found { digest: digest.clone(), was_here: true });
        }
        let keys = credentials::fitting(&plan.image, self.logins(plan).await);
        if let Some(digest) = present {
            if self.manager.images.access(&digest).is_for(keys.iter().map(|(_, secret)| secret)) {
                return Ok(Found { digest, was_here: true });
            }
            // The Pod must not learn that the image is here.
            if plan.pull == PullPolicy::Never {
                return Err(ImageError::NeverPull(plan.image.clone()));
            }
        }
        self.pull(plan, &keys).await
    }

    /// Whether the Pod may use an image that is here, whatever its pull secrets are.
    fn may_have(&self, digest: &ImageDigest) -> bool {
        self.had.as_ref() == Some(digest) || self.manager.images.access(digest) == ImageAccess::Everyone
    }

    async fn pull(&self, plan: &VmPlan, keys: &[(Credential, SecretUid)]) -> Result<Found, ImageError> {
        self.reports(EventReason::Pulling, &format!("pulling image `{}`", plan.image));
        let start = Instant::now();
        let mut last = Progress { percent: 0, at: start };
        let arrived = |percent| {
            if last.is_due(percent, Instant::now()) {
                last = Progress { percent, at: Instant::now() };
                let note = format!("pulling image `{}`: {percent} % are here", plan.image);
                self.reports(EventReason::Pulling, &note);
            }
        };
        let credentials = keys.iter().map(|(credential, _)| credential.clone()).collect();
        let Pulled { digest, by } = self.manager.images.pull(&plan.image, credentials, arrived).await?;
        if let Some((_, secret)) = by.and_then(|by| keys.get(by)) {
            self.manager.images.grant(&digest, Some(secret));
        }
        let took = start.elapsed().as_secs_f64();
        let note = format!("image `{}` is {digest}, after {took:.1} s", plan.image);
        self.reports(EventReason::Pulled, &note);
        Ok(Found { digest, was_here: false })
    }

    fn reports(&self, reason: EventReason, note: &str) {
        self.events.about(self.container.clone(), false, reason, note);
    }

    /// The credentials in the Pod's pull secrets, each with its Secret. A Secret that is missing is reported, and the pull is tried without
    /// it: the image may be public.
    async fn logins(&self, plan: &VmPlan) -> Vec<(Login, SecretUid)> {
        let mut found = Vec::new();
        for name in &plan.pull_secrets {
            match self.read(name).await {
                Ok(logins) => found.extend(logins),
                Err(error) => {
                    let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
                    let note = format!(
                        "cannot use pull secret `{name}`, and pulls without it: {}; make it with `kubectl create secret \
                         docker-registry {name} --namespace {namespace}`, or take it out of spec.imagePullSecrets",
                        chain(&error)
                    );
                    self.events.warning(&self.pod, EventReason::FailedToRetrieveImagePullSecret, &note);
                }
            }
        }
        found
    }

    async fn read(&self, name: &str) -> Result<Vec<(Login, SecretUid)>, SecretError> {
        let secret = call(DEADLINE, self.secrets.get(name)).await?;
        let uid = SecretUid(secret.uid().unwrap_or_default());
        Ok(credentials::read(&secret)?.into_iter().map(|login| (login, uid.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_about_progress_are_rare() {
        let start = Instant::now();
        let last = Progress { percent: 20, at: start };
        for (percent, seconds, due) in [
            (25, 60, false),
            (30, 29, false),
            (30, 30, true),
            (99, 31, true),
            (100, 60, false),
            (10, 60, false),
        ] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(last.is_due(percent, now), due, "{percent} {seconds}");
        }
    }
}
