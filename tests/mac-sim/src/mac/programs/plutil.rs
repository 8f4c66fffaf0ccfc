//! `plutil`: checks property lists, and reads one key.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use plist::Value;

use super::not_simulated;

pub(super) fn main(words: &[String]) -> ExitCode {
    let strings: Vec<_> = words.iter().map(String::as_str).collect();
    match strings.as_slice() {
        ["-lint", paths @ ..] if !paths.is_empty() => lint(paths, false),
        ["-lint" | "-s", "-s" | "-lint", paths @ ..] if !paths.is_empty() => lint(paths, true),
        ["-extract", key, "raw", "-o", "-", path] | ["-extract", key, "raw", path] => extract(key, path),
        _ => not_simulated("plutil", words),
    }
}

fn lint(paths: &[&str], quiet: bool) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for path in paths {
        let Ok(bytes) = fs::read(path) else {
            eprintln!("{path}: file does not exist or is not readable or is not a regular file");
            code = ExitCode::FAILURE;
            continue;
        };
        match plist::from_bytes::<Value>(&bytes) {
            Ok(_) if quiet => {}
            Ok(_) => println!("{path}: OK"),
            Err(error) => {
                eprintln!("{path}: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

fn extract(key: &str, path: &str) -> ExitCode {
    let value = fs::read(Path::new(path)).ok().and_then(|bytes| plist::from_bytes::<Value>(&bytes).ok());
    let found = value
        .as_ref()
        .and_then(|value| key.split('.').try_fold(value, |value, part| value.as_dictionary()?.get(part)));
    match found {
        Some(Value::String(text)) => println!("{text}"),
        Some(Value::Integer(number)) => println!("{number}"),
        Some(Value::Boolean(is)) => println!("{is}"),
        _ => {
            eprintln!(
                "{path}: Could not extract value, error: No value at that key path or invalid key path: {key}"
            );
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
