//! The Mac's names: `scutil` and `hostname`.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use mac_sim::control::Request;
use nix::unistd::gethostname;
use plist::{Dictionary, Value};

use super::{is_root, launchd, not_simulated};

const FILE: &str = "/Library/Preferences/SystemConfiguration/preferences.plist";
const NAMES: &[&str] = &["ComputerName", "HostName", "LocalHostName"];

/// A name from the file in which `scutil` keeps them.
pub(in crate::mac) fn read(path: &Path, name: &str) -> Option<String> {
    let value: Value = plist::from_bytes(&fs::read(path).ok()?).ok()?;
    value.as_dictionary()?.get(name)?.as_string().map(str::to_owned)
}

fn write(name: &str, value: &str) -> io::Result<()> {
    let kept = fs::read(FILE).ok().and_then(|bytes| plist::from_bytes::<Value>(&bytes).ok());
    let mut names = kept.and_then(Value::into_dictionary).unwrap_or_else(Dictionary::new);
    names.insert(name.to_owned(), value.into());
    let hidden = format!("{FILE}.new");
    Value::Dictionary(names).to_file_xml(&hidden).map_err(io::Error::other)?;
    fs::rename(hidden, FILE)
}

pub(super) fn scutil(words: &[String]) -> ExitCode {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--get", name] if NAMES.contains(name) => match read(FILE.as_ref(), name) {
            Some(value) => {
                println!("{value}");
                ExitCode::SUCCESS
            }
            None => {
                println!("{name}: not set");
                ExitCode::FAILURE
            }
        },
        ["--set", name, value] if NAMES.contains(name) => set(name, value),
        _ => not_simulated("scutil", &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()),
    }
}

fn set(name: &str, value: &str) -> ExitCode {
    if !is_root() {
        println!("This operation requires administrator privileges");
        return ExitCode::FAILURE;
    }
    let is_dns_label =
        !value.is_empty() && value.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
    if name == "LocalHostName" && !is_dns_label {
        println!("--set LocalHostName: invalid name");
        return ExitCode::FAILURE;
    }
    if let Err(error) = write(name, value) {
        eprintln!("scutil: {error}");
        return ExitCode::FAILURE;
    }
    if name == "HostName" {
        let _ = launchd(&Request::SetHostName(value.to_owned()));
    }
    ExitCode::SUCCESS
}

pub(super) fn hostname(words: &[String]) -> ExitCode {
    let name = gethostname().unwrap_or_default().to_string_lossy().into_owned();
    match words {
        [] => println!("{name}"),
        [option] if option == "-s" => println!("{}", name.split('.').next().unwrap_or_default()),
        [option] if option == "-f" => println!("{name}"),
        _ => return not_simulated("hostname", words),
    }
    ExitCode::SUCCESS
}
