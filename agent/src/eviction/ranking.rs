//! Which Pod is evicted first, by the kubelet's rules: one that uses more than its request, then the one with the lower priority, then the
//! one that exceeds its request most.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Pod;

use crate::names::PodUid;
use crate::pod::admission::fit::ResourceRequests;

const RESOURCE: &str = "ephemeral-storage";
/// From this priority on a Pod is critical for the cluster, and is never evicted.
const CRITICAL: i32 = 2_000_000_000;

/// A Pod that uses disk space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EvictionCandidate {
    pub(crate) uid: PodUid,
    pub(crate) priority: i32,
    /// In bytes.
    pub(crate) requested: u64,
    /// In bytes; `None` when that is too much to be measured.
    pub(crate) used: Option<u64>,
}

impl EvictionCandidate {
    pub(crate) fn of(uid: PodUid, pod: &Pod, used: Option<u64>) -> Self {
        Self {
            uid,
            priority: pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0),
            requested: ResourceRequests::of(pod).storage,
            used,
        }
    }

    /// The kubelet's words about it in the Pod's status.
    pub(crate) fn words(&self) -> String {
        let used = self.used.map_or_else(|| "more than can be measured".to_owned(), |used| used.to_string());
        format!("The Pod was using {used} of {RESOURCE}, request is {}. ", self.requested)
    }

    fn used_or_all(&self) -> u64 {
        self.used.unwrap_or(u64::MAX)
    }
}

/// The Pod that is evicted first.
pub(crate) fn first(candidates: &[EvictionCandidate]) -> Option<&EvictionCandidate> {
    let key = |one: &&EvictionCandidate| {
        let exceeds = one.used_or_all() > one.requested;
        let beyond = i128::from(one.used_or_all()) - i128::from(one.requested);
        (Reverse(exceeds), one.priority, Reverse(beyond), one.uid.clone())
    };
    candidates.iter().filter(|one| one.priority < CRITICAL).min_by_key(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn candidate(uid: &str, priority: i32, requested: u64, used: u64) -> EvictionCandidate {
        EvictionCandidate { uid: uid.parse().unwrap(), priority, requested, used: Some(used) }
    }

    #[test]
    fn candidates_are_ranked_by_the_kubelets_rules() {
        let table = [
            (candidate("a", 9, 10, 11), candidate("b", 0, 100, 50), "a"),
            (candidate("a", 9, 10, 11), candidate("b", 0, 10, 11), "b"),
            (candidate("a", 0, 10, 30), candidate("b", 0, 30, 40), "a"),
            (candidate("a", 0, 100, 30), candidate("b", 0, 100, 40), "b"),
            (candidate("a", CRITICAL, 0, 30), candidate("b", 5, 100, 1), "b"),
        ];
        for (one, other, expected) in table {
            for pair in [[one.clone(), other.clone()], [other, one]] {
                assert_eq!(first(&pair).unwrap().uid.to_string(), expected, "{pair:?}");
            }
        }
        let vast = EvictionCandidate { used: None, ..candidate("b", 0, 0, 0) };
        assert_eq!(first(&[candidate("a", 0, 0, 1 << 40), vast.clone()]), Some(&vast));
        assert_eq!(first(&[candidate("a", CRITICAL, 0, 1)]), None);
    }

    #[test]
    fn the_request_of_a_candidate_is_that_of_its_admission() {
        let requests = |amount: &str| json!({"requests": {"ephemeral-storage": amount, "cpu": "4"}});
        for (init, overhead, expected) in [("1Ki", "0", 3), ("8Ki", "0", 8), ("8Ki", "1Ki", 9)] {
            let pod = json!({"metadata": {}, "spec": {
                "priority": 7,
                "initContainers": [{"name": "first", "resources": requests(init)}],
                "containers": [
                    {"name": "a", "resources": requests("1Ki")},
                    {"name": "b", "resources": requests("2Ki")},
                    {"name": "c"},
                ],
                "overhead": {"ephemeral-storage": overhead},
            }});
            let found =
                EvictionCandidate::of("a".parse().unwrap(), &serde_json::from_value(pod).unwrap(), Some(1));
            assert_eq!(found, candidate("a", 7, expected << 10, 1));
        }
    }

    proptest! {
        #[test]
        fn a_pod_within_its_request_is_evicted_after_one_beyond_its_request(
            all in proptest::collection::vec((0i32..4, 0u64..50, 0u64..50), 1..8)
        ) {
            let all: Vec<EvictionCandidate> = all.into_iter().enumerate()
                .map(|(uid, (priority, requested, used))| candidate(&format!("u{uid}"), priority, requested, used)).collect();
            let exceeds = |one: &EvictionCandidate| one.used_or_all() > one.requested;
            let chosen = first(&all).unwrap();
            prop_assert!(exceeds(chosen) || !all.iter().any(exceeds));
            prop_assert!(all.iter().filter(|one| exceeds(one) == exceeds(chosen)).all(|one| one.priority >= chosen.priority));
        }
    }
}
