//! `defaults`: reads and writes property lists by key.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use plist::{Dictionary, Value};

use super::not_simulated;

/// The file of a domain: a path with or without `.plist`, a reverse host name, or the domain of all programs.
fn file(domain: &str) -> PathBuf {
    if domain.starts_with('/') {
        return PathBuf::from(if domain.ends_with(".plist") {
            domain.to_owned()
        } else {
            format!("{domain}.plist")
        });
    }
    let domain = if ["-g", "-globalDomain", "NSGlobalDomain"].contains(&domain) {
        ".GlobalPreferences"
    } else {
        domain
    };
    let home =
        if super::is_root() { "/var/root".to_owned() } else { std::env::var("HOME").unwrap_or_default() };
    Path::new(&home).join("Library/Preferences").join(format!("{domain}.plist"))
}

/// The value of a key in a property list.
pub(super) fn read(path: &Path, key: &str) -> Option<Value> {
    dictionary(path)?.get(key).cloned()
}

fn dictionary(path: &Path) -> Option<Dictionary> {
    plist::from_bytes::<Value>(&fs::read(path).ok()?).ok()?.into_dictionary()
}

fn write(path: &Path, content: Dictionary) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let hidden = path.with_extension("new");
    Value::Dictionary(content).to_file_binary(&hidden).map_err(io::Error::other)?;
    fs::rename(hidden, path)
}

/// Reads the typed words behind a key; `None` if they are no value.
fn value(words: &[&str]) -> Option<Value> {
    Some(match words {
        ["-string", text] => Value::String((*text).to_owned()),
        ["-int" | "-integer", number] => Value::Integer(number.parse::<i64>().ok()?.into()),
        ["-float", number] => Value::Real(number.parse().ok()?),
        ["-bool" | "-boolean", "true" | "yes" | "TRUE" | "YES" | "1"] => Value::Boolean(true),
        ["-bool" | "-boolean", "false" | "no" | "FALSE" | "NO" | "0"] => Value::Boolean(false),
        ["-array", items @ ..] => {
            Value::Array(items.iter().map(|item| Value::String((*item).to_owned())).collect())
        }
        ["-dict", pairs @ ..] => {
            let mut content = Dictionary::new();
            let mut rest = pairs;
            while let [key, tail @ ..] = rest {
                let (item, after) = match tail {
                    [kind, text, after @ ..] if kind.starts_with('-') => (value(&[*kind, *text])?, after),
                    [text, after @ ..] => (Value::String((*text).to_owned()), after),
                    [] => return None,
                };
                content.insert((*key).to_owned(), item);
                rest = after;
            }
            Value::Dictionary(content)
        }
        [text] if !text.starts_with('-') => Value::String((*text).to_owned()),
        _ => return None,
    })
}

/// A value in the old style in which `defaults` prints.
fn shown(value: &Value, indent: usize) -> String {
    let (inner, outer) = ("    ".repeat(indent + 1), "    ".repeat(indent));
    match value {
        Value::Boolean(is) => i32::from(*is).to_string(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::String(text) if indent == 0 => text.clone(),
        Value::String(text)
            if text.chars().all(|letter| letter.is_ascii_alphanumeric()) && !text.is_empty() =>
        {
            text.clone()
        }
        Value::String(text) => format!("{text:?}"),
        Value::Array(items) => {
            let items: Vec<_> =
                items.iter().map(|item| format!("{inner}{}", shown(item, indent + 1))).collect();
            format!("(\n{}\n{outer})", items.join(",\n"))
        }
        Value::Dictionary(pairs) => {
            let rows =
                pairs.iter().map(|(key, item)| format!("{inner}{key} = {};\n", shown(item, indent + 1)));
            format!("{{\n{}{outer}}}", rows.collect::<String>())
        }
        _ => "?".to_owned(),
    }
}

pub(super) fn main(words: &[String]) -> ExitCode {
    let strings: Vec<_> = words.iter().map(String::as_str).collect();
    match strings.as_slice() {
        ["read", domain] => match dictionary(&file(domain)) {
            Some(content) => {
                println!("{}", shown(&Value::Dictionary(content), 0));
                ExitCode::SUCCESS
            }
            None => missing_domain(domain),
        },
        ["read", domain, key] => match read(&file(domain), key) {
            Some(value) => {
                println!("{}", shown(&value, 0));
                ExitCode::SUCCESS
            }
            None => missing_pair(domain, key),
        },
        ["write", domain, key, rest @ ..] if !rest.is_empty() => match value(rest) {
            Some(value) => change(domain, |content| {
                content.insert((*key).to_owned(), value);
                true
            }),
            None => not_simulated("defaults", words),
        },
        ["delete", domain, key] => match dictionary(&file(domain)) {
            Some(content) if content.contains_key(key) => {
                change(domain, |content| content.remove(key).is_some())
            }
            _ => missing_pair(domain, key),
        },
        _ => not_simulated("defaults", words),
    }
}

fn change(domain: &str, edit: impl FnOnce(&mut Dictionary) -> bool) -> ExitCode {
    let path = file(domain);
    let mut content = dictionary(&path).unwrap_or_default();
    edit(&mut content);
    match write(&path, content) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => {
            eprintln!(
                "{} defaults[{}] Could not write domain {}; exiting",
                stamp(),
                std::process::id(),
                path.with_extension("").display()
            );
            ExitCode::FAILURE
        }
    }
}

fn missing_domain(domain: &str) -> ExitCode {
    eprintln!("{} defaults[{}] \nDomain {domain} does not exist", stamp(), std::process::id());
    ExitCode::FAILURE
}

fn missing_pair(domain: &str, key: &str) -> ExitCode {
    let id = std::process::id();
    eprintln!("{} defaults[{id}] \nThe domain/default pair of ({domain}, {key}) does not exist", stamp());
    ExitCode::FAILURE
}

/// The time in the style of the system's log.
fn stamp() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S.000").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_types() {
        assert_eq!(value(&["-int", "0"]), Some(Value::Integer(0.into())));
        assert_eq!(value(&["m1"]), Some(Value::String("m1".into())));
        assert_eq!(value(&["-int", "many"]), None);
        let lease = value(&["-dict", "DHCPLeaseTimeSecs", "-int", "600"]).unwrap();
        assert_eq!(shown(&lease, 0), "{\n    DHCPLeaseTimeSecs = 600;\n}");
        let ranges = value(&["-array", "10.0.0.0/8", "a"]).unwrap();
        assert_eq!(shown(&ranges, 0), "(\n    \"10.0.0.0/8\",\n    a\n)");
    }
}
