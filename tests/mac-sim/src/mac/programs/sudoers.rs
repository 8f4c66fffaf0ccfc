//! Who may use `sudo` without a password: `/etc/sudoers.d`, and `visudo` that checks it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::not_simulated;

const DIRECTORY: &str = "/private/etc/sudoers.d";

/// A line that gives rights.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    /// A user, or a group behind `%`.
    who: String,
    needs_password: bool,
}

/// Why `sudo` does not take a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) path: PathBuf,
    pub(super) words: String,
}

/// Reads `WHO HOSTS = (RUNAS) [NOPASSWD:] COMMANDS`; `None` if the line is no such rule. Commands other than `ALL` are not simulated.
fn rule(line: &str) -> Option<Rule> {
    let (left, right) = line.split_once('=')?;
    let mut left = left.split_whitespace();
    let (who, _hosts, None) = (left.next()?, left.next()?, left.next()) else { return None };
    let right = right.trim();
    let right = match right.strip_prefix('(') {
        Some(rest) => rest.split_once(')')?.1.trim(),
        None => right,
    };
    let (needs_password, commands) = match right.strip_prefix("NOPASSWD:") {
        Some(commands) => (false, commands.trim()),
        None => (true, right),
    };
    (commands == "ALL").then(|| Rule { who: who.to_owned(), needs_password })
}

/// The rules of a file; the number of the line that is none otherwise.
fn rules(text: &str) -> Result<Vec<Rule>, usize> {
    let mut rules = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.starts_with("Defaults") {
            continue;
        }
        rules.push(rule(line).ok_or(number + 1)?);
    }
    Ok(rules)
}

fn file_rules(path: &Path) -> Result<Vec<Rule>, Broken> {
    let broken = |words: String| Broken { path: path.to_owned(), words };
    let metadata = fs::metadata(path).map_err(|error| broken(error.to_string()))?;
    if metadata.uid() != 0 {
        return Err(broken(format!("is owned by uid {}, should be 0", metadata.uid())));
    }
    if metadata.mode() & 0o002 != 0 {
        return Err(broken("is world writable".to_owned()));
    }
    if metadata.mode() & 0o020 != 0 && metadata.gid() != 0 {
        return Err(broken(format!("is owned by gid {}, should be 0", metadata.gid())));
    }
    let text = fs::read_to_string(path).map_err(|error| broken(error.to_string()))?;
    rules(&text).map_err(|line| broken(format!("{line}: syntax error")))
}

/// Whether a user of these groups needs a password for `sudo`; `None` if the user may not use it. Broken files are told.
pub(super) fn needs_password(user: &str, groups: &[String]) -> (Option<bool>, Vec<Broken>) {
    let mut files = vec![PathBuf::from("/private/etc/sudoers")];
    let entries = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    let mut extra: Vec<_> = entries
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            !name.contains('.') && !name.ends_with('~')
        })
        .map(|entry| entry.path())
        .collect();
    extra.sort();
    files.extend(extra);
    let (mut needs, mut broken) = (None, Vec::new());
    for file in files {
        match file_rules(&file) {
            // The last rule that fits counts.
            Ok(rules) => {
                for rule in rules.iter().filter(|rule| fits(rule, user, groups)) {
                    needs = Some(rule.needs_password);
                }
            }
            Err(file) => broken.push(file),
        }
    }
    (needs, broken)
}

fn fits(rule: &Rule, user: &str, groups: &[String]) -> bool {
    match rule.who.strip_prefix('%') {
        Some(group) => groups.iter().any(|name| name == group),
        None => rule.who == user || rule.who == "ALL",
    }
}

pub(super) fn visudo(words: &[String]) -> ExitCode {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let path = match words.as_slice() {
        ["-cf", path] | ["-c", "-f", path] => Path::new(path),
        ["-c"] => Path::new("/etc/sudoers"),
        _ => {
            return not_simulated("visudo", &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        }
    };
    let Ok(text) = fs::read_to_string(path) else {
        eprintln!("visudo: unable to open {}: No such file or directory", path.display());
        return ExitCode::FAILURE;
    };
    match rules(&text) {
        Ok(_) => {
            println!("{}: parsed OK", path.display());
            ExitCode::SUCCESS
        }
        Err(line) => {
            let shown = text.lines().nth(line - 1).unwrap_or_default();
            eprintln!("{}:{line}:{}: syntax error\n{shown}\n^", path.display(), shown.len() + 1);
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_says_who_and_whether_a_password_is_needed() {
        for (line, expected) in [
            ("m1 ALL=(ALL) NOPASSWD: ALL", Some(("m1", false))),
            ("m1 ALL = (ALL:ALL) NOPASSWD:ALL", Some(("m1", false))),
            ("%admin          ALL = (ALL) ALL", Some(("%admin", true))),
            ("m1 ALL=(ALL) NOPASSWD ALL", None),
            ("m1 NOPASSWD: ALL", None),
            ("hunter2", None),
        ] {
            let found = rule(line);
            let found = found.as_ref().map(|rule| (rule.who.as_str(), rule.needs_password));
            assert_eq!(found, expected, "{line}");
        }
        assert_eq!(rules("# a comment\n\nm1 ALL=(ALL) NOPASSWD: ALL").unwrap().len(), 1);
        assert_eq!(rules("# a comment\n\nm1 ALL=(ALL) NOPASSWD: ALL\nhunter2\n").unwrap_err(), 4);
    }
}
