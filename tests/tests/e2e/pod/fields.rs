//! `docs/pods.md`, which is the agent's own table of fields, and the API as the API server has it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;
use tart_kubelet_tests::control_plane::ControlPlane;

/// What the API server says of its objects.
struct Api(Value);

impl Api {
    async fn read() -> Result<Self> {
        let kubectl = ControlPlane::shared().await?.kubectl();
        Ok(Self(serde_json::from_str(&kubectl.run(["get", "--raw", "/openapi/v3/api/v1"]).await?)?))
    }

    /// A schema itself, where there is only word of it.
    fn follow<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let reference = schema.get("$ref").or_else(|| schema.get("allOf")?.get(0)?.get("$ref"));
        let name = reference.and_then(Value::as_str).and_then(|it| it.rsplit('/').next());
        name.map_or(schema, |name| &self.0["components"]["schemas"][name])
    }

    /// The fields in a schema, by their paths below one: those of its items when it is a list.
    fn inside<'a>(&'a self, path: &str, schema: &'a Value) -> Vec<(String, &'a Value)> {
        let schema = self.follow(schema);
        let (path, schema) = match schema.get("items") {
            Some(items) => (format!("{path}[]"), self.follow(items)),
            None => (path.to_owned(), schema),
        };
        let fields = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        fields.map(|(name, field)| (format!("{path}.{name}"), field)).collect()
    }
}

/// The rows of the table: fields, and what is said of them.
fn rows() -> Result<BTreeMap<String, String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pods.md");
    let text = std::fs::read_to_string(path)?;
    let row = |line: &str| {
        let (field, rest) = line.strip_prefix("| `")?.split_once('`')?;
        Some((field.to_owned(), rest.to_owned()))
    };
    Ok(text.lines().filter_map(row).collect())
}

#[tokio::test]
async fn table_of_fields_has_every_field_of_the_api_and_no_other() -> Result<()> {
    let (api, rows) = (Api::read().await?, rows()?);
    let has_parts = |path: &str| {
        rows.keys().any(|row| row.strip_prefix(path).is_some_and(|rest| rest.starts_with(['.', '['])))
    };
    let spec = &api.0["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"];
    spec.get("properties").context("the API server does not say what a Pod is")?;
    let mut left = api.inside("spec", spec);
    let (mut unlisted, mut known) = (Vec::new(), Vec::new());
    while let Some((path, schema)) = left.pop() {
        // An init container has the rows of any container, but for its own.
        let like = path.replace("spec.initContainers[]", "spec.containers[]");
        if rows.contains_key(&path) || rows.contains_key(&like) {
            known.push(path);
        } else if has_parts(&path) || has_parts(&like) {
            left.extend(api.inside(&path, schema));
        } else {
            unlisted.push(path);
        }
    }
    assert_eq!(unlisted, [""; 0], "fields that are not in the table");
    // The row of an init container as a whole is not a field's.
    let strangers: Vec<&String> =
        rows.keys().filter(|row| !known.contains(row) && *row != "spec.initContainers[]").collect();
    assert_eq!(strangers, [""; 0], "rows of fields that there are not");
    Ok(())
}
