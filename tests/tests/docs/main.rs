//! The documentation names what the code has, its links lead somewhere, and its commands are right.

mod commands;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::pages::{pages, workspace};
use tart_kubelet_tests::programs;

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(workspace().join(path)).with_context(|| path.to_owned())
}

/// The source of a file, or of all files of a directory, without tests and comments.
fn code(path: &Path) -> Result<String> {
    if path.is_dir() {
        let mut text = String::new();
        for entry in std::fs::read_dir(path)? {
            text += &code(&entry?.path())?;
        }
        return Ok(text);
    }
    if path.file_name().is_some_and(|name| name.to_string_lossy().contains("tests")) {
        return Ok(String::new());
    }
    let text = std::fs::read_to_string(path)?;
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    Ok(code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n"))
}

/// The body of an enum.
fn body<'a>(code: &'a str, name: &str) -> Result<&'a str> {
    let (_, after) =
        code.split_once(&format!("enum {name} {{")).with_context(|| format!("no enum {name}"))?;
    after.split('}').next().context("an enum without an end")
}

/// The variants of an enum that stand for one word.
fn words(body: &str) -> impl Iterator<Item = String> {
    let lines = body.lines().map(|line| line.trim().trim_end_matches(','));
    lines.filter(|line| is_reason(line)).map(str::to_owned)
}

/// String literals.
fn literals(code: &str) -> impl Iterator<Item = &str> {
    code.split('"').skip(1).step_by(2)
}

/// A word such as `RollHalted`, which is how reasons are written.
fn is_reason(word: &str) -> bool {
    let capitals = word.chars().filter(char::is_ascii_uppercase).count();
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && capitals >= 2
        && word.chars().any(|c| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

#[test]
fn every_reason_is_in_the_troubleshooting_guide() -> Result<()> {
    let source = |path: &str| code(&workspace().join(path));
    let mut reasons = BTreeSet::new();
    let events = source("agent/src/apiserver/events/reason.rs")?;
    reasons.extend(body(&events, "EventReason")?.split(',').map(str::trim).map(str::to_owned));
    let health = source("agent/src/node/health.rs")?;
    reasons.extend(literals(body(&health, "NotReadyReason")?).map(str::to_owned));
    let conditions = source("agent/src/node/conditions.rs")?;
    reasons.extend(literals(body(&conditions, "ConditionType")?).map(str::to_owned));
    let refusals = source("agent/src/pod/admission/refusal.rs")?;
    reasons.extend(literals(&refusals).map(str::to_owned));
    let outcomes = source("agent/src/state/outcome.rs")?;
    for name in ["NotStartedReason", "EndReason"] {
        reasons.extend(words(body(&outcomes, name)?));
    }
    // Reasons that are written where they are decided: the shim's notices, images, conditions of Pods, machines and certificates.
    for path in [
        "agent/src/shim",
        "agent/src/image/error.rs",
        "agent/src/pod/sync",
        "agent/src/pod/status/conditions.rs",
        "provider/src/machine",
        "provider/src/csr",
    ] {
        let source = source(path)?;
        reasons.extend(literals(&source).filter(|literal| is_reason(literal)).map(str::to_owned));
    }
    // Kinds of objects look like reasons.
    reasons.remove("DaemonSet");
    reasons.remove("");
    ensure!(reasons.len() > 70, "not all reasons were found: {reasons:?}");
    let guide = read("docs/troubleshooting.md")?;
    let missing: Vec<_> = reasons.iter().filter(|reason| !guide.contains(&format!("`{reason}`"))).collect();
    ensure!(missing.is_empty(), "docs/troubleshooting.md does not say what these mean: {missing:?}");
    Ok(())
}

/// The anchors of a page, as GitHub makes them of its titles.
fn anchors(text: &str) -> BTreeSet<String> {
    let titles = text.lines().filter(|line| line.starts_with('#'));
    titles
        .map(|title| {
            let kept = title.trim_start_matches('#').trim().chars();
            let kept = kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        })
        .collect()
}

#[test]
fn links_lead_somewhere() -> Result<()> {
    for page in pages()? {
        let text = std::fs::read_to_string(&page)?;
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
            ensure!(target.exists(), "{}: {link} is not there", page.display());
            if !anchor.is_empty() {
                let found = anchors(&std::fs::read_to_string(&target)?).contains(anchor);
                ensure!(found, "{}: {link} has no such title", page.display());
            }
        }
    }
    Ok(())
}

#[test]
fn the_index_has_every_page() -> Result<()> {
    let index = read("docs/README.md")?;
    for page in pages()? {
        let name = page.file_name().context("a name")?.to_string_lossy().into_owned();
        ensure!(name == "README.md" || index.contains(&format!("({name})")), "the index lacks {name}");
    }
    Ok(())
}

/// As docs/cli.md has them.
#[test]
fn exit_codes_are_as_documented() -> Result<()> {
    for program in [programs::agent()?, programs::provider()?] {
        for (arguments, code) in [(&["--version"][..], 0), (&["--help"], 0), (&["--no-such-flag"], 2)] {
            let output = Command::new(&program).args(arguments).output()?;
            assert_eq!(output.status.code(), Some(code), "{} {arguments:?}", program.display());
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(complaint.is_empty() == (code == 0), "{arguments:?}: {complaint}");
        }
    }
    Ok(())
}
