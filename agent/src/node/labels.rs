//! Labels of the Node: which ones `--node-labels` may set, and which ones an earlier agent set that are no longer wanted.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;

pub(crate) type Labels = BTreeMap<String, String>;

/// The annotation that lists the labels that the agent has set, so that a later agent knows which to remove.
pub(super) const OWNED: &str = "tart-kubelet.tuist.dev/labels";

pub(super) const OS: &str = "kubernetes.io/os";
pub(super) const ARCH: &str = "kubernetes.io/arch";
pub(super) const HOSTNAME: &str = "kubernetes.io/hostname";
pub(super) const RUNTIME: &str = "tuist.dev/runtime";
pub(super) const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
pub(super) const MACOS_VERSION: &str = "tuist.dev/macos-version";

/// Labels that no flag can change.
const FIXED: [&str; 4] = [OS, ARCH, HOSTNAME, RUNTIME];

/// The labels under `kubernetes.io` that a Node may set on itself, besides those under the two prefixes below.
const ALLOWED: [&str; 11] = [
    HOSTNAME,
    OS,
    ARCH,
    INSTANCE_TYPE,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const ALLOWED_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// A label that cannot be set.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BadLabel {
    #[error("`{0}` is not `key=value`")]
    NotAPair(String),
    #[error(
        "`{0}` is not a label key: it is a name of at most 63 letters, digits, `-`, `_` and `.`, perhaps after a DNS name and a `/`"
    )]
    Key(String),
    #[error("`{value}` cannot be the value of label `{key}`: at most 63 letters, digits, `-`, `_` and `.`")]
    Value { key: String, value: String },
    /// The API server's `NodeRestriction` would refuse it.
    #[error(
        "the API server lets no Node set the label `{0}` on itself; of `kubernetes.io` and `k8s.io` only \
         `node.kubernetes.io/…`, `kubelet.kubernetes.io/…` and the well-known topology labels are allowed: set it with \
         `kubectl label`, or choose another prefix"
    )]
    Restricted(String),
    #[error("the label `{0}` is the agent's own and cannot be chosen")]
    Fixed(String),
}

/// Parses `key=value,key=value`.
pub(crate) fn parse(text: &str) -> Result<Labels, BadLabel> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or_else(|| BadLabel::NotAPair(pair.to_owned()))?;
            check_key(key)?;
            check_value(key, value)?;
            if FIXED.contains(&key) {
                return Err(BadLabel::Fixed(key.to_owned()));
            }
            if is_restricted(key) {
                return Err(BadLabel::Restricted(key.to_owned()));
            }
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}

/// The labels that an agent set on a Node and that are no longer wanted.
pub(super) fn stale(node: &Node, wanted: &Labels) -> Vec<String> {
    let (Some(annotations), Some(labels)) = (&node.metadata.annotations, &node.metadata.labels) else {
        return Vec::new();
    };
    let owned = annotations.get(OWNED).map_or("", String::as_str).split(',');
    owned
        // Any user can write the annotation. For one label that a Node may not touch, the API server would refuse the whole patch.
        .filter(|key| check_key(key).is_ok() && !is_restricted(key))
        .filter(|key| labels.contains_key(*key) && !wanted.contains_key(*key))
        .map(str::to_owned)
        .collect()
}

/// The value of the annotation [`OWNED`].
pub(super) fn owned(wanted: &Labels) -> String {
    wanted.keys().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// A text as the value of a label, or `None` if no valid character is left.
pub(super) fn value_of(text: &str) -> Option<String> {
    let fit = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let mapped: String = text.trim().chars().map(fit).take(63).collect();
    let value = mapped.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    (!value.is_empty()).then(|| value.to_owned())
}

/// Whether the API server's `NodeRestriction` lets no Node set a label.
fn is_restricted(key: &str) -> bool {
    let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
    let is_in = |parent: &str| {
        namespace.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    (is_in("kubernetes.io") || is_in("k8s.io"))
        && !ALLOWED.contains(&key)
        && !ALLOWED_PREFIXES.iter().any(|prefix| is_in(prefix))
}

pub(super) fn check_key(key: &str) -> Result<(), BadLabel> {
    let (namespace, name) =
        key.split_once('/').map_or((None, key), |(namespace, name)| (Some(namespace), name));
    let good_namespace =
        namespace.is_none_or(|namespace| namespace.parse::<crate::names::NodeName>().is_ok());
    if good_namespace && !name.is_empty() && is_qualified(name) {
        Ok(())
    } else {
        Err(BadLabel::Key(key.to_owned()))
    }
}

pub(super) fn check_value(key: &str, value: &str) -> Result<(), BadLabel> {
    if is_qualified(value) {
        Ok(())
    } else {
        Err(BadLabel::Value { key: key.to_owned(), value: value.to_owned() })
    }
}

fn is_qualified(text: &str) -> bool {
    let ends = |end: Option<&u8>| end.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && ends(bytes.first())
        && ends(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use proptest::prelude::*;

    #[test]
    fn labels_that_the_api_server_takes_are_parsed() {
        let parsed = parse(
            "team=ios, empty=,topology.kubernetes.io/zone=fr-par-3,node.kubernetes.io/instance-type=M4,\
             x.node.kubernetes.io/a=b,tuist.dev/pool=a,notkubernetes.io/a=b",
        )
        .unwrap();
        assert_eq!((parsed.len(), parsed["team"].as_str(), parsed["empty"].as_str()), (7, "ios", ""));
        assert_eq!(parse(""), Ok(Labels::new()));
    }

    #[test]
    fn a_bad_label_is_refused_with_its_fault() {
        let restricted = |key: &str| BadLabel::Restricted(key.to_owned());
        for (text, error) in [
            ("a", BadLabel::NotAPair("a".into())),
            ("=b", BadLabel::Key(String::new())),
            ("a b=c", BadLabel::Key("a b".into())),
            ("UPPER.example/x=c", BadLabel::Key("UPPER.example/x".into())),
            ("a/b/c=d", BadLabel::Key("a/b/c".into())),
            ("node-restriction.kubernetes.io/x=y", restricted("node-restriction.kubernetes.io/x")),
            ("node-role.kubernetes.io/mac=", restricted("node-role.kubernetes.io/mac")),
            ("k8s.io/x=y", restricted("k8s.io/x")),
            ("a.k8s.io/x=y", restricted("a.k8s.io/x")),
            ("kubernetes.io/os=linux", BadLabel::Fixed("kubernetes.io/os".into())),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
        assert!(matches!(parse("a=b c"), Err(BadLabel::Value { .. })));
    }

    fn node(labels: &[&str], annotation: &str) -> Node {
        let labels = labels.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect();
        let metadata = ObjectMeta {
            labels: Some(labels),
            annotations: Some(BTreeMap::from([(OWNED.to_owned(), annotation.to_owned())])),
            ..ObjectMeta::default()
        };
        Node { metadata, ..Node::default() }
    }

    #[test]
    fn only_labels_that_the_agent_set_and_no_longer_wants_are_stale() {
        let wanted = parse("team=ios").unwrap();
        let shown = node(&["team", "old", "theirs"], "team,old,gone");
        assert_eq!(stale(&shown, &wanted), ["old"]);
        let hostile = node(&["node-role.kubernetes.io/x", "a"], "node-role.kubernetes.io/x,,a b");
        assert_eq!(stale(&hostile, &wanted), Vec::<String>::new());
        assert_eq!(stale(&Node::default(), &wanted), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_value_or_nothing(text in "\\PC{0,80}") {
            if let Some(value) = value_of(&text) {
                prop_assert!(check_value("a", &value).is_ok(), "{}", value);
            }
        }

        #[test]
        fn a_label_that_is_owned_and_wanted_is_never_stale(keys in proptest::collection::btree_set("[a-z]{1,8}", 0..6)) {
            let wanted: Labels = keys.iter().map(|key| (key.clone(), String::new())).collect();
            let all: Vec<&str> = keys.iter().map(String::as_str).collect();
            prop_assert!(stale(&node(&all, &owned(&wanted)), &wanted).is_empty());
        }
    }
}
