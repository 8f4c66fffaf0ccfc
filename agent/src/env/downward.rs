//! The downward API: `fieldRef` and `resourceFieldRef`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::{self, ResourceList};
use crate::state::POD_IP;
use crate::state::container_spec::all_containers;

/// Why a downward API field has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DownwardError {
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    #[error("unsupported container resource: {0}")]
    Resource(String),
    #[error("container {0} not found")]
    Container(String),
    #[error("{0}: `{1}` is not an amount that can be told")]
    Amount(String, String),
    #[error("{0}: this node has no address yet")]
    NoAddress(String),
}

/// A field of a Pod for an environment variable. The Pod's own address is [`POD_IP`].
pub(crate) fn field(path: &str, pod: &Pod, host_ip: Option<IpAddr>) -> Result<String, DownwardError> {
    let spec = pod.spec.as_ref();
    match path {
        "spec.nodeName" | "spec.host" => Ok(spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default()),
        "spec.serviceAccountName" => {
            Ok(spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default())
        }
        "status.hostIP" | "status.hostIPs" => host_ip
            .map(|address| address.to_string())
            .ok_or_else(|| DownwardError::NoAddress(path.to_owned())),
        "status.podIP" | "status.podIPs" => Ok(POD_IP.to_owned()),
        _ => metadata(path, pod),
    }
}

/// A field of a Pod's metadata. Volumes support only these.
pub(crate) fn metadata(path: &str, pod: &Pod) -> Result<String, DownwardError> {
    let metadata = &pod.metadata;
    let (labels, annotations) = (metadata.labels.as_ref(), metadata.annotations.as_ref());
    let one = |map: Option<&BTreeMap<String, String>>, key| {
        map.and_then(|map| map.get(key)).cloned().unwrap_or_default()
    };
    match (path, subscript(path)) {
        (_, Some(("metadata.labels", key))) => Ok(one(labels, key)),
        (_, Some(("metadata.annotations", key))) => Ok(one(annotations, key)),
        ("metadata.labels", _) => Ok(listed(labels)),
        ("metadata.annotations", _) => Ok(listed(annotations)),
        ("metadata.name", _) => Ok(metadata.name.clone().unwrap_or_default()),
        ("metadata.namespace", _) => Ok(metadata.namespace.clone().unwrap_or_default()),
        ("metadata.uid", _) => Ok(metadata.uid.clone().unwrap_or_default()),
        _ => Err(DownwardError::Field(path.to_owned())),
    }
}

/// `metadata.labels` and `key` out of `metadata.labels['key']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['").filter(|(map, _)| !map.is_empty())
}

/// One line for each pair, sorted, with the value in quotes.
fn listed(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Text in quotes as Go writes it, which is what readers of these files expect.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|char| match (char, u32::from(char)) {
        ('"' | '\\', _) => format!("\\{char}"),
        ('\x07', _) => "\\a".to_owned(),
        ('\x08', _) => "\\b".to_owned(),
        ('\x0c', _) => "\\f".to_owned(),
        ('\n', _) => "\\n".to_owned(),
        ('\r', _) => "\\r".to_owned(),
        ('\t', _) => "\\t".to_owned(),
        ('\x0b', _) => "\\v".to_owned(),
        _ if is_printable(char) => char.to_string(),
        (_, code @ ..0x80) => format!("\\x{code:02x}"),
        (_, code @ 0x80..0x1_0000) => format!("\\u{code:04x}"),
        (_, code) => format!("\\U{code:08x}"),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

fn is_printable(char: char) -> bool {
    // After a letter, so that a combining accent counts as part of it.
    char == '\'' || format!("a{char}").escape_debug().count() == 2
}

/// A container's limit or request of a resource, in units of the divisor, rounded up.
///
/// The container is the one that the selector names, else `own`. A missing limit is the Node's allocatable amount.
pub(crate) fn resource(
    selector: &ResourceFieldSelector,
    pod: &Pod,
    own: Option<&Container>,
    allocatable: &ResourceList,
) -> Result<String, DownwardError> {
    let unsupported = || DownwardError::Resource(selector.resource.clone());
    let (side, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let is_huge = name.starts_with("hugepages-");
    if !(is_huge || matches!(name, "cpu" | "memory" | "ephemeral-storage")) {
        return Err(unsupported());
    }
    let resources = container(selector.container_name.as_deref(), pod, own)?.resources.as_ref();
    let stated = |amounts: Option<&BTreeMap<String, Quantity>>| {
        amounts
            .and_then(|amounts| amounts.get(name))
            .filter(|amount| quantity::milli(amount) != Some(0))
            .cloned()
    };
    let amount = match side {
        "requests" => stated(resources.and_then(|resources| resources.requests.as_ref())),
        // Huge pages are never overcommitted: without a limit there are none.
        "limits" => stated(resources.and_then(|resources| resources.limits.as_ref()))
            .or_else(|| allocatable.get(name).filter(|_| !is_huge).cloned()),
        _ => return Err(unsupported()),
    };
    let parts = |amount: &Quantity| {
        // Only cores are counted in thousandths.
        let parts = if name == "cpu" { quantity::milli(amount) } else { quantity::whole(amount) };
        parts.ok_or_else(|| DownwardError::Amount(selector.resource.clone(), amount.0.clone()))
    };
    let one = Quantity("1".to_owned());
    let divisor = match selector.divisor.as_ref().map(parts).transpose()? {
        Some(divisor) if divisor > 0 => divisor,
        _ => parts(&one)?,
    };
    let amount = amount.as_ref().map(parts).transpose()?.unwrap_or(0);
    Ok(amount.div_ceil(divisor).to_string())
}

fn container<'a>(
    name: Option<&str>,
    pod: &'a Pod,
    own: Option<&'a Container>,
) -> Result<&'a Container, DownwardError> {
    let name = name.unwrap_or_default();
    if name.is_empty()
        && let Some(own) = own
    {
        return Ok(own);
    }
    let mut all = pod.spec.iter().flat_map(all_containers);
    all.find(|container| container.name == name).ok_or_else(|| DownwardError::Container(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "job", "namespace": "ci", "uid": "u-1",
                "labels": {"app": "x", "tier": "a\"b"},
                "annotations": {"example.org/note": "one\ntwo", "odd['key']": "v"},
            },
            "spec": {
                "nodeName": "mac-1",
                "serviceAccountName": "builder",
                "containers": [
                    {"name": "main", "resources": {
                        "limits": {"cpu": "1500m", "hugepages-2Mi": "4Mi"},
                        "requests": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1Gi"},
                    }},
                ],
                "initContainers": [{"name": "first", "resources": {"limits": {"memory": "1Gi"}}}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn fields_have_the_kubelets_values() {
        let host = Some("192.0.2.7".parse().unwrap());
        let table = [
            ("metadata.name", "job"),
            ("metadata.namespace", "ci"),
            ("metadata.uid", "u-1"),
            ("metadata.labels['app']", "x"),
            ("metadata.labels['absent']", ""),
            ("metadata.annotations['example.org/note']", "one\ntwo"),
            ("metadata.annotations['odd['key']']", "v"),
            ("metadata.labels", "app=\"x\"\ntier=\"a\\\"b\""),
            ("metadata.annotations", "example.org/note=\"one\\ntwo\"\nodd['key']=\"v\""),
            ("spec.nodeName", "mac-1"),
            ("spec.serviceAccountName", "builder"),
            ("status.hostIP", "192.0.2.7"),
            ("status.hostIPs", "192.0.2.7"),
            ("status.podIP", POD_IP),
            ("status.podIPs", POD_IP),
        ];
        for (path, expected) in table {
            assert_eq!(field(path, &pod(), host).as_deref(), Ok(expected), "{path}");
        }
        for path in ["", "metadata", "metadata.name['x']", "status.phase", "['x']"] {
            assert_eq!(field(path, &pod(), host), Err(DownwardError::Field(path.to_owned())));
        }
        let no_address = DownwardError::NoAddress("status.hostIP".to_owned());
        assert_eq!(field("status.hostIP", &pod(), None), Err(no_address));
        assert!(metadata("status.podIP", &pod()).is_err(), "a file would hold the placeholder for ever");
    }

    #[test]
    fn resources_are_counted_in_units_of_the_divisor() {
        let allocatable: ResourceList = [("cpu", "8"), ("memory", "16Gi"), ("ephemeral-storage", "100Gi")]
            .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
            .into();
        let pod = pod();
        let own = &pod.spec.as_ref().unwrap().containers[0];
        let told = |container: &str, resource: &str, divisor: &str| {
            let selector = ResourceFieldSelector {
                container_name: Some(container.to_owned()).filter(|name| !name.is_empty()),
                resource: resource.to_owned(),
                divisor: Some(Quantity(divisor.to_owned())).filter(|divisor| !divisor.0.is_empty()),
            };
            super::resource(&selector, &pod, Some(own), &allocatable)
        };
        let table = [
            ("", "limits.cpu", "", "2"),
            ("", "limits.cpu", "0", "2"),
            ("", "limits.cpu", "1m", "1500"),
            ("", "requests.cpu", "", "1"),
            ("main", "requests.cpu", "1m", "250"),
            ("", "limits.memory", "1Mi", "16384"),
            ("", "requests.memory", "", "67108864"),
            ("", "requests.memory", "1M", "68"),
            ("", "limits.ephemeral-storage", "1Gi", "100"),
            ("", "requests.ephemeral-storage", "1Mi", "1024"),
            ("", "limits.hugepages-2Mi", "1Mi", "4"),
            ("", "limits.hugepages-1Gi", "", "0"),
            ("", "requests.hugepages-2Mi", "", "0"),
            ("first", "limits.memory", "1Mi", "1024"),
            ("first", "limits.cpu", "", "8"),
            ("first", "requests.memory", "", "0"),
        ];
        for (container, resource, divisor, expected) in table {
            let row = format!("{container} {resource} {divisor}");
            assert_eq!(told(container, resource, divisor).as_deref(), Ok(expected), "{row}");
        }
        for resource in ["limits.pods", "cpu", "limits.", "others.cpu"] {
            assert_eq!(told("", resource, ""), Err(DownwardError::Resource(resource.to_owned())));
        }
        assert_eq!(told("x", "limits.cpu", ""), Err(DownwardError::Container("x".to_owned())));
        assert!(matches!(told("", "limits.cpu", "y"), Err(DownwardError::Amount(..))));
    }

    #[test]
    fn text_is_quoted_as_go_does_it() {
        let table = [
            ("", r#""""#),
            ("a'b", r#""a'b""#),
            ("tab\tbell\x07\\", r#""tab\tbell\a\\""#),
            ("\0\x1f\x7f", r#""\x00\x1f\x7f""#),
            ("grüße 漢字 é", r#""grüße 漢字 é""#),
            ("e\u{301}", "\"e\u{301}\""),
            ("\u{a0}\u{200b}\u{feff}", r#""\u00a0\u200b\ufeff""#),
            ("\u{e0001}", r#""\U000e0001""#),
        ];
        for (text, expected) in table {
            assert_eq!(quoted(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_list_has_one_line_for_each_pair(
            labels in proptest::collection::btree_map("[a-z]{1,8}", any::<String>(), 0..6),
        ) {
            let lines = listed(Some(&labels));
            prop_assert_eq!(lines.lines().count(), labels.len());
        }

        #[test]
        fn a_larger_divisor_never_gives_a_larger_value(amount in 0u64..1 << 50, small in 1u64..1 << 20, more in 0u64..1 << 20) {
            let told = |divisor: u64| {
                let limits = BTreeMap::from([("memory".to_owned(), Quantity(amount.to_string()))]);
                let resources = k8s_openapi::api::core::v1::ResourceRequirements {
                    requests: Some(limits), ..Default::default()
                };
                let own = Container { resources: Some(resources), ..Container::default() };
                let selector = ResourceFieldSelector {
                    resource: "requests.memory".to_owned(),
                    divisor: Some(Quantity(divisor.to_string())),
                    ..ResourceFieldSelector::default()
                };
                let told = super::resource(&selector, &Pod::default(), Some(&own), &ResourceList::new());
                told.unwrap().parse::<u64>().unwrap()
            };
            prop_assert!(told(small + more) <= told(small));
            prop_assert!(told(small) * small >= amount && told(small) * small < amount + small);
        }
    }
}
