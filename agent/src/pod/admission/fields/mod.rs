//! Every field of a Pod in this version of the API, and what the agent does with it. The agent ignores no field that the table does not
//! list as ignored. Fields of a later API version are not seen, as in a kubelet of this version.

mod table;

use std::fmt::Write as _;

use serde_json::Value;

use table::FIELDS;
use table::Handling::{self, Elsewhere, Honoured, Like, Moot, Only, Parts, Refused};

/// The first field that the table refuses, with the reason.
pub(super) fn first_refused(spec: &Value) -> Option<(String, String)> {
    examine("spec", "spec", spec)
}

/// Looks at one value; `pattern` is its path in the table, `path` the one to show.
fn examine(pattern: &str, path: &str, value: &Value) -> Option<(String, String)> {
    if is_unset(value) {
        return None;
    }
    let refused = |why: &str| Some((path.to_owned(), why.to_owned()));
    match handling(pattern) {
        Some(Honoured(_) | Elsewhere(_) | Moot(_)) => None,
        Some(Refused(why)) => refused(why),
        Some(Only(values, why)) => {
            let fits = value.as_str().is_some_and(|value| values.contains(&value));
            if fits { None } else { refused(&format!("can only be {}: {why}", values.join(" or "))) }
        }
        Some(Parts) => parts(pattern, path, value),
        Some(Like(other)) => examine(other, path, value),
        None => refused("this agent does not know the field"),
    }
}

/// How a field is handled. A field that is like another one has that one's parts, except for rows of its own.
fn handling(pattern: &str) -> Option<Handling> {
    let find = |path: &str| FIELDS.iter().find(|(field, _)| *field == path).map(|(_, handling)| *handling);
    let as_another = |(field, handling): &(&str, Handling)| match handling {
        Like(other) => find(&format!("{other}{}", pattern.strip_prefix(field)?)),
        _ => None,
    };
    find(pattern).or_else(|| FIELDS.iter().find_map(as_another))
}

fn parts(pattern: &str, path: &str, value: &Value) -> Option<(String, String)> {
    let inside = |pattern: &str, path: &str, value: &Value| match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            examine(&format!("{pattern}.{name}"), &format!("{path}.{name}"), value)
        }),
        _ => None,
    };
    match value {
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| inside(&format!("{pattern}[]"), &format!("{path}[{index}]"), item))
        }
        value => inside(pattern, path, value),
    }
}

/// Whether a value is empty, and so asks for nothing.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_unset),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// The table as `docs/pods.md` has it.
#[cfg_attr(not(test), expect(dead_code, reason = "`make docs` writes docs/pods.md with it"))]
pub(crate) fn document() -> String {
    let mut text = String::from(
        "# Pods, field by field\n\n\
         The agent runs each Pod as one VM. This table says what it does with each field of the Pod's spec. `make docs` writes it \
         from\nthe table that the agent decides by.\n\n\
         - A Pod that sets a refused field fails at once. Its reason is `UnsupportedPod` (for `spec.os`, `PodOSNotSupported`), and an \
         Event\n  names the field.\n\
         - The agent does not see fields that are newer than Kubernetes 1.36, as a kubelet of that version.\n\
         - [boot.md](boot.md) says what a VM without a command finds in its guest.\n\
         - Volumes are shares of the Mac (virtiofs). Programs that map files, or set extended attributes of links, may fail there, such as \
         Xcode with its\n  DerivedData. Keep such data on the guest's own disk. A file of a share may also be absent for a moment: let a command try again.\n\
         - One thing differs from a kubelet on purpose. A VM that cannot be created or booted on this host fails a Pod with\n  \
         `restartPolicy: Never`, so that its Job can try another Node. A kubelet would let the Pod wait.\n\n| field | | |\n|---|---|---|\n",
    );
    for (path, handling) in FIELDS {
        let (verdict, why) = match handling {
            Parts => continue,
            Honoured(how) => ("honoured", (*how).to_owned()),
            Elsewhere(who) => ("not the node's", format!("{who} acts on it")),
            Moot(why) => ("no effect", (*why).to_owned()),
            Like(other) => ("honoured", format!("as `{other}`, field by field")),
            Only(values, why) => ("limited", format!("`{}`: {why}", values.join("` or `"))),
            Refused(why) => ("**refused**", (*why).to_owned()),
        };
        // Writing to a String does not fail.
        let _ = writeln!(text, "| `{path}` | {verdict} | {why} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_table_is_sorted_and_says_each_field_once() {
        let paths: Vec<String> = FIELDS.iter().map(|(path, _)| path.to_ascii_lowercase()).collect();
        for pair in paths.windows(2) {
            assert!(pair[0] < pair[1], "{} comes before {}", pair[1], pair[0]);
        }
    }

    #[test]
    fn the_first_refused_field_is_named() {
        let container = |fields: Value| json!({"containers": [fields]});
        let init = |field: &str| json!({"initContainers": [{"name": "a", field: {"x": 1}}]});
        let volume = |source: Value| json!({"volumes": [source]});
        let env = json!([{"name": "A"}, {"name": "B", "valueFrom": {"fileKeyRef": {"key": "x"}}}]);
        let options = json!([{"name": "ndots", "value": "2"}]);
        let bundle = json!({"sources": [{"clusterTrustBundle": {"path": "x"}}]});
        let table = [
            (json!({"restartPolicy": "Never", "containers": [{"name": "a", "stdin": false}]}), ""),
            (json!({"securityContext": {}, "hostNetwork": false, "volumes": []}), ""),
            (json!({"dnsPolicy": "ClusterFirst"}), ""),
            (json!({"dnsPolicy": "Default"}), ""),
            (json!({"dnsPolicy": "None"}), ""),
            (json!({"dnsPolicy": "ClusterFirstWithHostNet"}), "dnsPolicy"),
            (json!({"dnsPolicy": "None", "dnsConfig": {"options": options}}), "dnsConfig.options"),
            // A field that is like another is looked into, and named by its own name.
            (
                container(json!({"startupProbe": {"httpGet": {"port": 1, "new": 1}}})),
                "containers[0].startupProbe.httpGet.new",
            ),
            (init("command"), ""),
            (init("volumeDevices"), "initContainers[0].volumeDevices"),
            (init("readinessProbe"), "initContainers[0].readinessProbe.x"),
            (json!({"fromTheFuture": 1}), "fromTheFuture"),
            (volume(json!({"name": "v", "emptyDir": {}})), ""),
            (volume(json!({"name": "v", "emptyDir": {"medium": "Memory"}})), ""),
            (volume(json!({"name": "v", "hostPath": {"path": "/x", "type": ""}})), ""),
            (volume(json!({"emptyDir": {"medium": "HugePages-2Mi"}})), "volumes[0].emptyDir.medium"),
            (volume(json!({"hostPath": {"path": "/x", "type": "Socket"}})), "volumes[0].hostPath.type"),
            (volume(json!({"hostPath": {"path": "/x", "type": "File"}})), "volumes[0].hostPath.type"),
            (
                volume(json!({"persistentVolumeClaim": {"claimName": "x"}})),
                "volumes[0].persistentVolumeClaim",
            ),
            (volume(json!({"projected": bundle})), "volumes[0].projected.sources[0].clusterTrustBundle"),
            (volume(json!({"fromTheFuture": {"x": 1}})), "volumes[0].fromTheFuture"),
            (container(json!({"env": env})), "containers[0].env[1].valueFrom.fileKeyRef"),
        ];
        for (spec, expected) in table {
            let refused = first_refused(&spec).map(|(path, _)| path);
            let expected = (!expected.is_empty()).then(|| format!("spec.{expected}"));
            assert_eq!(refused, expected, "{spec}");
        }
    }

    #[test]
    fn the_documentation_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pods.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert!(written == document(), "docs/pods.md is not what the table says; run `make docs`");
    }
}
