//! The names of metrics: those that the code registers, those that alerts and dashboards use, and those of the documentation.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};

use super::{observability, workspace};

/// Where metrics are registered.
const SOURCES: [&str; 3] =
    ["agent/src/metrics", "provider/src/metrics.rs", "provider/src/reclaim/metrics.rs"];
/// What the names of all of them begin with.
const PREFIXES: [&str; 5] = ["tart_kubelet_", "tart_provider_", "scaleway_orphan_", "capt_", "rest_client_"];
/// What the format adds to the name of a counter or a histogram.
const SUFFIXES: [&str; 5] = ["", "_total", "_bucket", "_sum", "_count"];

fn is_name(word: &str) -> bool {
    PREFIXES.iter().any(|prefix| word.starts_with(prefix) && word.len() > prefix.len())
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| is_name(word))
}

fn read_all(path: &Path) -> Result<String> {
    if path.is_file() {
        return Ok(std::fs::read_to_string(path)?);
    }
    let mut text = String::new();
    for entry in std::fs::read_dir(path)? {
        text += &read_all(&entry?.path())?;
    }
    Ok(text)
}

/// The names that the code registers: string literals that are nothing but a name.
fn registered() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for source in SOURCES {
        let text = read_all(&workspace().join(source))?;
        names.extend(text.split('"').filter(|literal| words(literal).eq([*literal])).map(str::to_owned));
    }
    ensure!(names.len() > 20, "the names were not found: {names:?}");
    Ok(names)
}

fn is_registered(names: &BTreeSet<String>, used: &str) -> bool {
    SUFFIXES.iter().any(|suffix| used.strip_suffix(suffix).is_some_and(|name| names.contains(name)))
}

#[test]
fn alerts_and_dashboards_use_figures_that_exist() -> Result<()> {
    let names = registered()?;
    let text = read_all(&observability())?;
    let unknown: BTreeSet<_> = words(&text).filter(|used| !is_registered(&names, used)).collect();
    ensure!(unknown.is_empty(), "the code has no {unknown:?}; it has {names:?}");
    ensure!(words(&text).count() > 40, "the alerts and dashboards were not read");
    Ok(())
}

#[test]
fn the_documentation_has_every_metric_and_no_other() -> Result<()> {
    let names = registered()?;
    let text = std::fs::read_to_string(workspace().join("docs/metrics.md"))?;
    let documented: BTreeSet<_> = words(&text).collect();
    let unknown: Vec<_> = documented.iter().filter(|name| !is_registered(&names, name)).collect();
    ensure!(unknown.is_empty(), "the code has no {unknown:?}");
    let is_documented =
        |name: &&String| SUFFIXES.iter().any(|end| documented.contains(format!("{name}{end}").as_str()));
    let missing: Vec<_> = names.iter().filter(|name| !is_documented(name)).collect();
    ensure!(missing.is_empty(), "docs/metrics.md does not name {missing:?}");
    Ok(())
}
