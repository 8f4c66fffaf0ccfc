//! The layers of the crate: a module imports only modules of lower layers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// All top-level modules, the lowest first.
const ORDER: &[&str] = &[
    "fuzz",
    "testing",
    "word_enum",
    "mutex",
    "error_chain",
    "crash_point",
    "text_table",
    "duration",
    "quantity",
    "backoff",
    "clock",
    "names",
    "os",
    "fs",
    "tart",
    "metrics",
    "apiserver",
    "identity",
    "state",
    "logs",
    "guest",
    "env",
    "image",
    "probe",
    "volume",
    "shim",
    "node",
    "pod",
    "eviction",
    "gc",
    "api",
    "install",
    "cli",
    "agent",
    "entry_point",
];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The top-level modules that a file names in a path from the crate's root. Tests may use every layer.
fn imports(source: &str) -> BTreeSet<&str> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut found = BTreeSet::new();
    for rest in lines.flat_map(|line| line.split("crate::").skip(1)) {
        let group = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map(|(names, _)| names);
        for name in group.unwrap_or(rest).split(',').take(if group.is_some() { usize::MAX } else { 1 }) {
            let name = name.trim();
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
            found.insert(&name[..end]);
        }
    }
    found
}

#[test]
fn every_module_imports_lower_layers_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let layer = |name: &str| ORDER.iter().position(|known| *known == name);
    let mut upward = Vec::new();
    for file in files {
        let path = file.strip_prefix(&root).unwrap();
        let is_test = path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"));
        let top = path.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
        let top = top.trim_end_matches(".rs");
        if is_test || ["main", "lib"].contains(&top) {
            continue;
        }
        let own = layer(top).unwrap_or_else(|| panic!("{top} has no layer: add it to ORDER"));
        let source = std::fs::read_to_string(&file).unwrap();
        for import in imports(&source) {
            let imported = layer(import).unwrap_or_else(|| panic!("{}: no layer {import}", path.display()));
            if imported > own {
                upward.push(format!("{} imports {import}", path.display()));
            }
        }
    }
    assert!(upward.is_empty(), "imports of higher layers: {upward:#?}");
}

#[test]
fn imports_are_found_in_every_form() {
    let found = |source| imports(source).into_iter().collect::<Vec<_>>();
    assert_eq!(found("use crate::pod::worker;\nlet x = crate::tart::Tart::new();"), ["pod", "tart"]);
    assert_eq!(found("use crate::{agent, shim::run};"), ["agent", "shim"]);
    assert_eq!(found("// crate::pod\n"), [] as [&str; 0]);
    assert_eq!(found("#[cfg(test)]\nmod tests {\n    use crate::pod;"), [] as [&str; 0]);
}
