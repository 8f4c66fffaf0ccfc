//! The paths of the kubelet API, and the Pods and containers that they name.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::names::PodUid;
use crate::pod::registry::PodRegistry;

/// A Pod in a path: `{namespace}/{pod}`, or `{namespace}/{pod}/{uid}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodPath {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: Option<String>,
}

/// A container in a path: a Pod, and the container's name after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerPath {
    pub(crate) pod: PodPath,
    pub(crate) container: String,
}

/// What a path asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) enum Route {
    Healthz,
    Configz,
    Pods,
    RunningPods,
    StatsSummary,
    Metrics,
    ResourceMetrics,
    CadvisorMetrics,
    ProbeMetrics,
    ContainerLogs(ContainerPath),
    Exec(ContainerPath),
    Attach(ContainerPath),
    Run(ContainerPath),
    PortForward(PodPath),
}

impl Route {
    /// `None` for a path that the agent does not serve.
    pub(in crate::api) fn parse(path: &str) -> Option<Self> {
        // Names of the API need no escape, so a path with one names nothing.
        if path.contains('%') {
            return None;
        }
        let words: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        match words.as_slice() {
            ["healthz"] => Some(Self::Healthz),
            ["configz"] => Some(Self::Configz),
            ["pods"] => Some(Self::Pods),
            ["runningpods"] | ["runningpods", ""] => Some(Self::RunningPods),
            ["stats", "summary"] => Some(Self::StatsSummary),
            ["metrics"] => Some(Self::Metrics),
            ["metrics", "resource"] => Some(Self::ResourceMetrics),
            ["metrics", "cadvisor"] => Some(Self::CadvisorMetrics),
            ["metrics", "probes"] => Some(Self::ProbeMetrics),
            // The kubelet's path has no UID.
            ["containerLogs", container @ ..] if container.len() == 3 => {
                ContainerPath::parse(container).map(Self::ContainerLogs)
            }
            ["exec", container @ ..] => ContainerPath::parse(container).map(Self::Exec),
            ["attach", container @ ..] => ContainerPath::parse(container).map(Self::Attach),
            ["run", container @ ..] => ContainerPath::parse(container).map(Self::Run),
            ["portForward", pod @ ..] => PodPath::parse(pod).map(Self::PortForward),
            _ => None,
        }
    }
}

impl PodPath {
    fn parse(words: &[&str]) -> Option<Self> {
        let (namespace, name, uid) = match words {
            [namespace, name] => (namespace, name, None),
            [namespace, name, uid] => (namespace, name, Some(uid)),
            _ => return None,
        };
        let are_set = words.iter().all(|word| !word.is_empty());
        are_set.then(|| Self {
            namespace: (*namespace).to_owned(),
            name: (*name).to_owned(),
            uid: uid.map(|uid| (*uid).to_owned()),
        })
    }

    /// The Pod of this Node; `None` when the Node has none of this name, or of this UID.
    ///
    /// A Pod that was deleted may still be cleaned up when its successor is here: the newest one counts.
    pub(crate) fn find(&self, pods: &PodRegistry) -> Option<(PodUid, Arc<Pod>)> {
        let is_meant = |pod: &Pod| {
            pod.namespace().as_deref() == Some(&self.namespace)
                && pod.metadata.name.as_deref() == Some(&self.name)
                && (self.uid.is_none() || pod.metadata.uid == self.uid)
        };
        let found = pods.pods().into_iter().filter(|(_, pod)| is_meant(pod));
        found.max_by_key(|(_, pod)| pod.creation_timestamp().map(|time| time.0))
    }
}

impl ContainerPath {
    fn parse(words: &[&str]) -> Option<Self> {
        let (container, pod) = words.split_last()?;
        let pod = PodPath::parse(pod)?;
        (!container.is_empty()).then(|| Self { pod, container: (*container).to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: Option<&str>) -> PodPath {
        PodPath { namespace: "n".to_owned(), name: "p".to_owned(), uid: uid.map(str::to_owned) }
    }

    fn container(uid: Option<&str>) -> ContainerPath {
        ContainerPath { pod: pod(uid), container: "c".to_owned() }
    }

    #[test]
    fn a_path_names_a_pod_or_a_container_with_or_without_the_uid() {
        for (path, expected) in [
            ("/healthz", Some(Route::Healthz)),
            ("/runningpods/", Some(Route::RunningPods)),
            ("/stats/summary", Some(Route::StatsSummary)),
            ("/metrics", Some(Route::Metrics)),
            ("/metrics/resource", Some(Route::ResourceMetrics)),
            ("/metrics/", None),
            ("/containerLogs/n/p/c", Some(Route::ContainerLogs(container(None)))),
            ("/containerLogs/n/p/u/c", None),
            ("/exec/n/p/c", Some(Route::Exec(container(None)))),
            ("/exec/n/p/u/c", Some(Route::Exec(container(Some("u"))))),
            ("/attach/n/p/c", Some(Route::Attach(container(None)))),
            ("/run/n/p/u/c", Some(Route::Run(container(Some("u"))))),
            ("/portForward/n/p", Some(Route::PortForward(pod(None)))),
            ("/portForward/n/p/u", Some(Route::PortForward(pod(Some("u"))))),
            ("/exec/n/p", None),
            ("/exec/n/p/u/c/d", None),
            ("/exec/n//c", None),
            ("/exec/n/p/", None),
            ("/exec/n/p%2F/c", None),
            ("/portForward/n", None),
            ("/portforward/n/p", None),
            ("healthz", None),
            ("/", None),
        ] {
            assert_eq!(Route::parse(path), expected, "{path}");
        }
    }
}
