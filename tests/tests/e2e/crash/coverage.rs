//! Every crash point in the agent's source has a test in which an agent or a shim dies there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

#[test]
fn every_crash_point_has_a_test() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let agent = root.join("../agent/src");
    let tests: String = sources(&root.join("tests/e2e"))?.iter().map(|(_, text)| text.as_str()).collect();
    let died_at = deaths(&tests);
    let mut points = BTreeSet::new();
    for (path, text) in sources(&agent)? {
        for argument in text.split("crash_point::point(").skip(1).map(argument) {
            let names: Vec<&str> = literals(argument).collect();
            ensure!(!names.is_empty(), "{}: a point without a name: {argument}", path.display());
            for name in names {
                points.extend(spelt_out(name, &agent)?);
            }
        }
    }
    ensure!(points.len() > 60, "the agent has more points than {points:?}");
    let missing: Vec<_> = points.iter().filter(|point| !died_at.contains(point.as_str())).collect();
    ensure!(missing.is_empty(), "no test crashes at {missing:?}; add them to a test of `crash`");
    Ok(())
}

/// The points at which tests crash an agent or a shim: lists of nothing but points, and what an agent is started with.
fn deaths(tests: &str) -> BTreeSet<&str> {
    let lists = tests.split('[').skip(1).filter_map(|rest| rest.split(']').next());
    let lists = lists.map(|list| literals(list).collect::<Vec<_>>());
    let lists = lists.filter(|list| list.iter().all(|name| is_point(name)));
    let started_with = tests.split("\"TART_KUBELET_CRASH\", \"").skip(1);
    let started_with = started_with.filter_map(|rest| rest.split('"').next());
    lists.flatten().chain(started_with).collect()
}

fn is_point(name: &str) -> bool {
    let parts = ["agent.", "shim.", "write."];
    parts.iter().any(|part| name.starts_with(part)) && !name.contains(' ')
}

/// What is left of the bracket that ends a call.
fn argument(rest: &str) -> &str {
    let mut depth = 1;
    let end = rest.find(|character| {
        depth += match character {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    });
    &rest[..end.unwrap_or(rest.len())]
}

/// All points that a name stands for: some have the next step, or the file that is written, in it.
fn spelt_out(name: &str, agent: &Path) -> Result<Vec<String>> {
    let (before, after) = match name.split_once('{') {
        None => return Ok(vec![name.to_owned()]),
        Some((before, rest)) => (before, rest.split_once('}').context("a name with half a place")?.1),
    };
    let fill = |words: Vec<String>| words.iter().map(|word| format!("{before}{word}{after}")).collect();
    match before {
        "agent." => Ok(fill(decisions(agent)?)),
        "write." => Ok(fill(files(agent)?)),
        _ => bail!("this test does not know what {name} stands for"),
    }
}

/// The names of all steps that a Pod's worker takes.
fn decisions(agent: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(agent.join("pod/sync/decide/decision.rs"))?;
    let names = text.split("fn words(self)").nth(1).and_then(|rest| rest.split("\n    }\n").next());
    // The words of a failure stand beside the name. To wait is no effect.
    let words = literals(names.context("decisions have no names")?);
    let effects = words.filter(|word| *word != "wait" && !word.contains(' '));
    Ok(effects.map(str::to_owned).collect())
}

/// The names of all files that are written by rename.
fn files(agent: &Path) -> Result<Vec<String>> {
    let mut found = BTreeSet::new();
    let texts = sources(&agent.join("state"))?.into_iter();
    let is_test = |path: &Path| {
        path.to_string_lossy().ends_with("tests.rs")
            || path.components().any(|part| part.as_os_str() == "golden")
    };
    for (_, text) in texts.filter(|(path, _)| !is_test(path)) {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_file = |word: &&str| matches!(word.rsplit_once('.'), Some((_, "json" | "pid")));
        let files = literals(code).filter(is_file);
        found.extend(files.map(str::to_owned));
    }
    Ok(found.into_iter().collect())
}

/// The text between quotes; good enough for names.
fn literals(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split('"').skip(1).step_by(2))
}

fn sources(dir: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path)?;
                found.push((path, text));
            }
        }
    }
    Ok(found)
}
