//! Prints the bill of materials of a package of this workspace: every crate that is compiled into its programs, as SPDX 2.3.
//!
//! `sbom tart-kubelet-main`

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

fn main() -> Result<()> {
    let name = std::env::args().nth(1).context("usage: sbom PACKAGE")?;
    let output = Command::new("cargo")
        .args(["metadata", "--format-version=1", "--locked"])
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let document = bill(&metadata, &name)?;
    println!("{}", serde_json::to_string_pretty(&document)?);
    Ok(())
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// What is compiled into a package: its dependencies but those for tests, and theirs.
fn compiled_in(metadata: &Value, root: &str) -> BTreeMap<String, BTreeSet<String>> {
    let nodes: BTreeMap<_, _> =
        list(&metadata["resolve"], "nodes").map(|node| (text(node, "id"), node)).collect();
    let mut found = BTreeMap::new();
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        if found.contains_key(id) {
            continue;
        }
        let node = nodes.get(id).copied().unwrap_or(&Value::Null);
        let is_built = |dependency: &&Value| list(dependency, "dep_kinds").any(|kind| kind["kind"] != "dev");
        let needs: BTreeSet<_> =
            list(node, "deps").filter(is_built).map(|dependency| text(dependency, "pkg")).collect();
        open.extend(&needs);
        found.insert(id.to_owned(), needs.into_iter().map(str::to_owned).collect());
    }
    found
}

fn bill(metadata: &Value, name: &str) -> Result<Value> {
    let packages: BTreeMap<_, _> =
        list(metadata, "packages").map(|package| (text(package, "id"), package)).collect();
    let is_root = |package: &&&Value| package["name"] == name && package["source"].is_null();
    let root = *packages.values().find(is_root).with_context(|| format!("this workspace has no {name}"))?;
    let compiled = compiled_in(metadata, text(root, "id"));
    let reference = |id: &str| {
        let package = packages.get(id).copied().unwrap_or(&Value::Null);
        let plain = format!("{}-{}", text(package, "name"), text(package, "version"));
        let plain: String =
            plain.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        format!("SPDXRef-{plain}")
    };
    let described = compiled.keys().filter_map(|id| packages.get(id.as_str())).map(|package| {
        let (name, version) = (text(package, "name"), text(package, "version"));
        let license = package["license"].as_str().unwrap_or("NOASSERTION").replace('/', " OR ");
        let source = match package["source"].as_str() {
            Some(_) => format!("https://crates.io/api/v1/crates/{name}/{version}/download"),
            None => "NOASSERTION".to_owned(),
        };
        json!({
            "SPDXID": reference(text(package, "id")), "name": name, "versionInfo": version, "filesAnalyzed": false,
            "downloadLocation": source, "licenseDeclared": license, "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION",
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                "referenceLocator": format!("pkg:cargo/{name}@{version}"),
            }],
        })
    });
    let needs = compiled.iter().flat_map(|(id, needs)| needs.iter().map(move |needed| (id, needed)));
    let mut relationships: Vec<_> = needs
        .map(|(id, needed)| {
            json!({ "spdxElementId": reference(id), "relationshipType": "DEPENDS_ON", "relatedSpdxElement": reference(needed) })
        })
        .collect();
    relationships.push(json!({
        "spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
        "relatedSpdxElement": reference(text(root, "id")),
    }));
    let version = text(root, "version");
    let created = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    Ok(json!({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("{name}-{version}"),
        "documentNamespace": format!("https://github.com/tuist/tart-kubelet/spdx/{name}-{version}-{created}"),
        "creationInfo": { "created": created, "creators": ["Tool: tart-kubelet-sbom"] },
        "packages": described.collect::<Vec<_>>(),
        "relationships": relationships,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_has_what_is_compiled_in_and_not_what_tests_need() {
        let package = |name: &str, source: Value| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source });
        let dependency = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let registry = json!("registry+https://github.com/rust-lang/crates.io-index");
        let metadata = json!({
            "packages": [
                package("own", Value::Null), package("used", registry.clone()), package("deep", registry.clone()),
                package("for-tests", registry.clone()), package("other", registry),
            ],
            "resolve": { "nodes": [
                { "id": "own", "deps": [dependency("used", Value::Null), dependency("for-tests", json!("dev"))] },
                { "id": "used", "deps": [dependency("deep", json!("build"))] },
                { "id": "deep", "deps": [] }, { "id": "for-tests", "deps": [] }, { "id": "other", "deps": [] },
            ] },
        });
        let bill = bill(&metadata, "own").unwrap();
        let names: Vec<_> = list(&bill, "packages").map(|package| text(package, "name")).collect();
        assert_eq!(names, ["deep", "own", "used"]);
        assert_eq!(bill["packages"][0]["licenseDeclared"], "MIT OR Apache-2.0");
        assert_eq!(bill["relationships"].as_array().map(Vec::len), Some(3));
        assert!(super::bill(&metadata, "missing").is_err());
    }
}
