//! The output of `tart list`.

use serde::Deserialize;

/// The kinds of things that `tart list` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum VmSource {
    /// A VM.
    #[serde(rename = "local")]
    Local,
    /// An image of a registry, by its tag or by its digest.
    #[serde(rename = "OCI")]
    Oci,
}

impl VmSource {
    /// The word of the flag `--source`, which differs from the word in the list.
    pub(super) fn flag(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Oci => "oci",
        }
    }
}

/// Fields come and go with the versions of tart; these two do not.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Row {
    name: String,
    source: VmSource,
}

/// The names in the list; `None` when the text is no list.
pub(super) fn names(text: &str, source: VmSource) -> Option<Vec<String>> {
    let rows: Vec<Row> = serde_json::from_str(text).ok()?;
    Some(rows.into_iter().filter(|row| row.source == source).map(|row| row.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_whole_or_not_at_all() {
        let text = r#"[
  { "Disk" : 50, "Running" : false, "Name" : "sequoia", "State" : "stopped", "Size" : 31, "Source" : "local" },
  { "Source" : "OCI", "Name" : "ghcr.io\/a\/b:latest", "Size" : "33.1", "SizeOnDisk" : 4, "State" : "?" }
]"#;
        assert_eq!(names(text, VmSource::Local).unwrap(), ["sequoia"]);
        assert_eq!(names(text, VmSource::Oci).unwrap(), ["ghcr.io/a/b:latest"]);
        assert_eq!(names("[\n\n]", VmSource::Oci), Some(Vec::new()));
        for garbage in ["", "[", "{}", "[{}]", r#"[{"Name": "a"}]"#, r#"[{"Name": "a", "Source": "moon"}]"#] {
            assert_eq!(names(garbage, VmSource::Local), None, "{garbage}");
        }
    }
}
