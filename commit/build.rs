//! Puts the version together for the compiler.

#[path = "src/git.rs"]
mod git;

use std::path::{Path, PathBuf};

/// What git would say, for builds without a repository: `abcdef0 2026-11-18`.
const OVERRIDE: &str = "TART_KUBELET_COMMIT";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/git.rs");
    println!("cargo::rerun-if-env-changed={OVERRIDE}");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).unwrap_or_default();
    let given = std::env::var(OVERRIDE).ok().filter(|given| !given.is_empty());
    let commit = given.or_else(|| {
        let head = git::head(&workspace)?;
        for path in head.watched {
            println!("cargo::rerun-if-changed={}", path.display());
        }
        Some(head.commit)
    });
    let release = env!("CARGO_PKG_VERSION");
    let version = commit.map_or_else(|| release.to_owned(), |commit| format!("{release} ({commit})"));
    println!("cargo::rustc-env=TART_KUBELET_VERSION={version}");
}
