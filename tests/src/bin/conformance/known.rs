//! The specs that are known not to pass, from the tables in the documentation.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The names of the specs, each with the heading that it stands under.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known(BTreeMap<String, String>);

impl Known {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not as expected", path.display()))
    }

    /// Reads every row of a table whose first cell is the name of a spec, in back-ticks.
    fn parse(markdown: &str) -> Result<Self> {
        let mut known = BTreeMap::new();
        let mut heading = "";
        for line in markdown.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                heading = title;
            }
            let Some((name, rest)) = line.strip_prefix("| `[sig-").and_then(|row| row.split_once("` | "))
            else {
                continue;
            };
            let name = format!("[sig-{name}");
            ensure!(!rest.trim_matches([' ', '|']).is_empty(), "{name} has no reason");
            let before = known.insert(name.clone(), heading.to_owned());
            ensure!(before.is_none(), "{name} stands in it twice");
        }
        Ok(Self(known))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// How many of these specs stand under each heading.
    pub(crate) fn count<'a>(&'a self, specs: &'a [String]) -> BTreeMap<&'a str, usize> {
        let mut counts = BTreeMap::new();
        for heading in specs.iter().filter_map(|name| self.0.get(name)) {
            *counts.entry(heading.as_str()).or_default() += 1;
        }
        counts
    }

    #[cfg(test)]
    pub(crate) fn of(names: &[&str]) -> Self {
        Self(names.iter().map(|name| ((*name).to_owned(), "To come".to_owned())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_all_tables_are_known_by_their_headings() {
        let text = "# Title\n| `[sig-a] early` | why |\n## One\n\n| spec | why |\n|---|---|\n| `[sig-a] x y` | because |\n\
                    ## Two\n| `[sig-b] z` | because `of` that |\n| other | row |\n";
        let known = Known::parse(text).unwrap();
        assert_eq!(known.names(), ["[sig-a] early", "[sig-a] x y", "[sig-b] z"]);
        let selected = ["[sig-a] x y", "[sig-b] z", "[sig-c]"].map(str::to_owned);
        assert_eq!(known.count(&selected).into_iter().collect::<Vec<_>>(), [("One", 1), ("Two", 1)]);
    }

    #[test]
    fn a_row_without_a_reason_or_for_a_second_time_is_refused() {
        assert!(Known::parse("| `[sig-a] x` |  |\n").is_err());
        assert!(Known::parse("| `[sig-a] x` | why |\n| `[sig-a] x` | why |\n").is_err());
    }

    #[test]
    fn the_documentation_can_be_read() {
        Known::read(Path::new(crate::TABLES)).unwrap();
    }
}
