//! The order of the crate's modules: a module imports only modules that stand before it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// All top-level modules, the first one imports none.
const ORDER: &[&str] = &[
    "apiserver",
    "artifact",
    "error_chain",
    "random",
    "names",
    "rollout",
    "host",
    "ssh",
    "scaleway",
    "crd",
    "cluster_api",
    "certificate_request",
    "events",
    "metrics",
    "github",
    "pool",
    "machine",
    "csr",
    "cluster",
    "reclaim",
    "manager",
    "progress",
    "cli",
    "program",
];

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// Whether a file is compiled for tests only: those may use every module.
fn is_for_tests(path: &Path) -> bool {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.ends_with("tests") || ["scene", "memory_mac", "model_decision"].contains(&stem.as_ref())
}

/// The top-level modules that a file names in a path from the crate's root.
fn imports(source: &str) -> BTreeSet<&str> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let paths = lines.flat_map(|line| line.split("crate::").skip(1));
    let names = paths.flat_map(|path| match path.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        Some((group, _)) => group.split(',').collect(),
        None => vec![path],
    });
    names
        .map(|name| {
            let name = name.trim();
            name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
        })
        .collect()
}

#[test]
fn every_module_imports_only_those_before_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let place = |name: &str| ORDER.iter().position(|known| *known == name);
    let mut backward = Vec::new();
    for file in sources(&root) {
        let path = file.strip_prefix(&root).unwrap();
        let top = path.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
        let top = top.trim_end_matches(".rs");
        if is_for_tests(path) || ["main", "lib"].contains(&top) {
            continue;
        }
        let own = place(top).unwrap_or_else(|| panic!("{top} has no place: add it to ORDER"));
        let source = std::fs::read_to_string(&file).unwrap();
        for import in imports(&source) {
            let imported = place(import).unwrap_or_else(|| panic!("{}: no module {import}", path.display()));
            if imported > own {
                backward.push(format!("{} imports {import}", path.display()));
            }
        }
    }
    assert!(backward.is_empty(), "imports of modules that stand behind: {backward:#?}");
}

#[test]
fn the_architecture_names_the_modules_of_the_manager_in_this_order() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let text = std::fs::read_to_string(page).unwrap();
    let (_, table) = text.split_once("| module of `provider/src` | does |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let named: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 7, "{named:?}");
    let places: Vec<_> =
        named.iter().map(|name| ORDER.iter().position(|known| known == name).unwrap()).collect();
    assert!(places.is_sorted(), "{named:?}");
}
