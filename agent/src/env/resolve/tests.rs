use super::*;
use crate::env::expansion::lookup;
use crate::state::POD_IP;
use crate::testing::{from_json, merged};
use proptest::prelude::*;
use serde_json::{Value, json};

fn known() -> Snapshot {
    let config_map = json!({
        "data": {"A": "map-a", "B": "$(A)", "9.x-y": "digit"},
        "binaryData": {"BIN": "AAE="},
    });
    // `/w==` is no UTF-8, `AGE=` has a NUL byte.
    let secret = |name: &str, json| (name.to_owned(), Some(Arc::new(from_json(json))));
    Snapshot {
        config_maps: [("map".to_owned(), Some(Arc::new(from_json(config_map)))), ("gone".to_owned(), None)]
            .into(),
        secrets: [
            secret("secret", json!({"data": {"PASSWORD": "aHVudGVyMg==", "A": "c2VjcmV0LWE="}})),
            secret("broken", json!({"data": {"NUL": "AGE="}})),
            secret("raw", json!({"data": {"RAW": "/w=="}})),
            ("gone".to_owned(), None),
        ]
        .into(),
        services: pairs(&[("WEB_SERVICE_HOST", "10.0.0.1"), ("A", "service-a")]),
        host_ip: Some("192.0.2.1".parse().unwrap()),
        allocatable: Arc::default(),
    }
}

fn resolved(value: &Value) -> Result<Resolved, ConfigError> {
    let pod = json!({"metadata": {"namespace": "ci", "name": "job"}, "spec": {"containers": []}});
    resolve(&from_json(pod), &from_json(merged(&json!({"name": "main"}), value)), &known())
}

/// The variables without those for Services.
fn own(value: &Value) -> Vec<(String, String)> {
    let mut variables = resolved(value).unwrap().variables;
    variables.retain(|(_, value)| !["10.0.0.1", "service-a"].contains(&value.as_str()));
    variables
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn from(source: &str, body: &Value) -> Value {
    json!({"env": [{"name": "V", "valueFrom": {source: body}}]})
}

fn key(source: &str, object: &str, key: &str) -> Value {
    from(source, &json!({"name": object, "key": key}))
}

#[test]
fn services_give_way_to_objects_and_objects_to_the_containers_own() {
    let objects = json!({"envFrom": [{"configMapRef": {"name": "map"}}]});
    assert_eq!(own(&objects), pairs(&[("A", "map-a"), ("9.x-y", "digit"), ("B", "$(A)")]));
    let both = json!({"envFrom": [{"configMapRef": {"name": "map"}}, {"secretRef": {"name": "secret"}}]});
    let value = |value: &Value, name: &str| lookup(&resolved(value).unwrap().variables, name);
    assert_eq!(value(&both, "A").as_deref(), Some("secret-a"), "the later object counts");
    let all = json!({
        "envFrom": [{"configMapRef": {"name": "map"}}],
        "env": [{"name": "A", "value": "own of $(A)"}, {"name": "A", "value": "$(A)!"}],
    });
    assert_eq!(value(&all, "A").as_deref(), Some("own of map-a!"));
    let names = resolved(&all).unwrap().variables;
    assert_eq!(names.iter().filter(|(name, _)| name == "A").count(), 1);
}

#[test]
fn own_variables_use_what_was_set_before_them() {
    let container = json!({
        "envFrom": [{"secretRef": {"name": "secret"}, "prefix": "S_"}],
        "env": [
            {"name": "URL", "value": "http://me:$(S_PASSWORD)@$(WEB_SERVICE_HOST)/$(LATER)"},
            {"name": "LATER", "value": "$$(URL)"},
            {"name": "EMPTY"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "AT", "value": "$(IP):80"},
        ],
    });
    let variables = resolved(&container).unwrap().variables;
    let value = |name: &str| lookup(&variables, name).unwrap();
    assert_eq!(value("URL"), "http://me:hunter2@10.0.0.1/$(LATER)");
    assert_eq!((value("LATER"), value("EMPTY")), ("$(URL)".to_owned(), String::new()));
    assert_eq!(value("AT"), format!("{POD_IP}:80"));
}

#[test]
fn a_value_that_is_not_text_is_refused_and_not_shown() {
    let one = from("secretKeyRef", &json!({"name": "raw", "key": "RAW", "optional": true}));
    for container in [one, json!({"envFrom": [{"secretRef": {"name": "raw"}}]})] {
        let words = "key RAW in Secret ci/raw is not valid UTF-8: no environment variable can be made of it; \
                     mount the Secret as a volume";
        assert_eq!(resolved(&container).unwrap_err().to_string(), words, "{container}");
    }
}

#[test]
fn single_values_come_from_every_source() {
    let table = [
        (key("configMapKeyRef", "map", "A"), "map-a"),
        (key("secretKeyRef", "secret", "PASSWORD"), "hunter2"),
        (key("configMapKeyRef", "map", "B"), "$(A)"),
        (from("fieldRef", &json!({"fieldPath": "metadata.namespace"})), "ci"),
        (from("fieldRef", &json!({"fieldPath": "status.hostIP"})), "192.0.2.1"),
        (from("resourceFieldRef", &json!({"resource": "requests.memory"})), "0"),
    ];
    for (container, expected) in table {
        assert_eq!(own(&container), pairs(&[("V", expected)]), "{container}");
    }
}

#[test]
fn a_missing_object_or_key_has_the_kubelets_words() {
    let whole = |source: &str, name: &str| json!({"envFrom": [{source: {"name": name}}]});
    let table = [
        (whole("configMapRef", "gone"), "configmap \"gone\" not found"),
        (whole("secretRef", "gone"), "secret \"gone\" not found"),
        (key("configMapKeyRef", "gone", "k"), "configmap \"gone\" not found"),
        (key("secretKeyRef", "gone", "k"), "secret \"gone\" not found"),
        (key("configMapKeyRef", "map", "k"), "couldn't find key k in ConfigMap ci/map"),
        // Bytes are for files.
        (key("configMapKeyRef", "map", "BIN"), "couldn't find key BIN in ConfigMap ci/map"),
        (key("secretKeyRef", "secret", "k"), "couldn't find key k in Secret ci/secret"),
        (from("fieldRef", &json!({"fieldPath": "status.phase"})), "unsupported fieldPath: status.phase"),
        (key("secretKeyRef", "broken", "NUL"), "the value of environment variable V has a NUL byte"),
        (whole("secretRef", "broken"), "the value of environment variable NUL has a NUL byte"),
        (
            json!({"env": [{"name": "V", "value": "a\0pod-ip\0"}]}),
            "the value of environment variable V has a NUL byte",
        ),
        (
            from("fileKeyRef", &json!({"volumeName": "v", "path": "p", "key": "k"})),
            "environment variable V: fileKeyRef is not supported by this node",
        ),
    ];
    for (container, expected) in table {
        assert_eq!(resolved(&container).unwrap_err().to_string(), expected, "{container}");
    }
}

#[test]
fn an_optional_object_or_key_may_be_missing() {
    for (source, name, key) in [
        ("configMapKeyRef", "gone", "k"),
        ("configMapKeyRef", "map", "k"),
        ("secretKeyRef", "gone", "k"),
        ("secretKeyRef", "secret", "k"),
    ] {
        let container = json!({"env": [
            {"name": "V", "value": "before"},
            {"name": "V", "valueFrom": {source: {"name": name, "key": key, "optional": true}}},
            {"name": "W", "valueFrom": {source: {"name": name, "key": key, "optional": true}}},
        ]});
        assert_eq!(own(&container), pairs(&[("V", "before")]), "{source} {name}");
    }
    for source in ["configMapRef", "secretRef"] {
        assert_eq!(own(&json!({"envFrom": [{source: {"name": "gone", "optional": true}}]})), pairs(&[]));
    }
}

#[test]
fn values_are_never_shown() {
    let container = json!({"envFrom": [{"secretRef": {"name": "secret"}}]});
    let shown = format!("{:?}", resolved(&container).unwrap());
    assert!(shown.contains("PASSWORD") && !shown.contains("hunter2"), "{shown}");
}

proptest! {
    #[test]
    fn each_name_is_there_once_and_the_last_value_counts(
        variables in proptest::collection::vec(("[A-D]", "[a-z]{1,3}"), 0..12),
    ) {
        let env: Vec<_> = variables.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        let resolved = resolved(&json!({"env": env})).unwrap().variables;
        for (name, value) in &resolved {
            prop_assert_eq!(resolved.iter().filter(|(other, _)| other == name).count(), 1);
            let last = variables.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value);
            prop_assert!(last.is_none_or(|last| last == value));
        }
        prop_assert!(variables.iter().all(|(name, _)| lookup(&resolved, name).is_some()));
    }
}
