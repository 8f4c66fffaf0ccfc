//! The program that asks the daemon.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tailscale_sim::{Member, Request, SOCKET, Settings, VERSION, ask, note_call};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    note_call("tailscale", &words);
    let mut words = words.as_slice();
    let mut socket = PathBuf::from(SOCKET);
    if let Some(path) = words.first().and_then(|word| word.strip_prefix("--socket=")) {
        (socket, words) = (path.into(), &words[1..]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&socket, &words) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(words) => {
            eprintln!("{words}");
            ExitCode::FAILURE
        }
    }
}

fn run(socket: &Path, words: &[&str]) -> Result<String, String> {
    match words {
        ["--version" | "version"] => Ok(format!("{VERSION}\n  tailscale commit: simulated\n")),
        ["status", "--json"] => Ok(status(&tell(socket, &Request::Status)?)),
        ["ip", "-4"] => {
            let member = tell(socket, &Request::Status)?;
            let address = member.address.ok_or("no current Tailscale IPs; state: NeedsLogin")?;
            Ok(format!("{address}\n"))
        }
        ["logout"] => tell(socket, &Request::Logout).map(|_| String::new()),
        ["up", flags @ ..] => up(socket, flags),
        other => Err(format!("mac-sim: tailscale {} is not simulated", other.join(" "))),
    }
}

fn tell(socket: &Path, request: &Request) -> Result<Member, String> {
    ask(socket, request)
        .map_err(|_| "failed to connect to local tailscaled; it doesn't appear to be running".to_owned())?
}

fn status(member: &Member) -> String {
    let state = if member.address.is_some() { "Running" } else { "NeedsLogin" };
    let addresses: Vec<_> = member.address.iter().collect();
    let addresses = if addresses.is_empty() { json!(null) } else { json!(addresses) };
    let Settings { host_name, tags, .. } = &member.settings;
    let text = json!({
        "Version": VERSION, "BackendState": state, "TailscaleIPs": addresses,
        "Self": {"HostName": host_name, "Tags": tags, "Online": member.address.is_some()},
    });
    format!("{text:#}\n")
}

fn up(socket: &Path, flags: &[&str]) -> Result<String, String> {
    let (mut key, mut settings, mut resets) = (None, Settings::default(), false);
    for flag in flags {
        let (name, value) = flag
            .trim_start_matches('-')
            .split_once('=')
            .unwrap_or_else(|| (flag.trim_start_matches('-'), "true"));
        match name {
            "auth-key" | "authkey" => key = Some(read_key(value)?),
            "reset" => resets = value == "true",
            "hostname" => value.clone_into(&mut settings.host_name),
            "advertise-tags" => {
                settings.tags = value.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
            }
            "accept-routes" => settings.accept_routes = value == "true",
            "ssh" | "timeout" => {}
            other => return Err(format!("flag provided but not defined: -{other}")),
        }
    }
    if let Some(tag) = settings.tags.iter().find(|tag| !tag.starts_with("tag:")) {
        return Err(format!("tag: {tag:?}: tags must start with 'tag:'"));
    }
    if !resets && tell(socket, &Request::Status)?.address.is_some() {
        return Err(
            "Error: changing settings via 'tailscale up' requires mentioning all\nnon-default flags."
                .to_owned(),
        );
    }
    tell(socket, &Request::Up { key, settings }).map(|_| String::new())
}

/// The key, or that in the file which it names.
fn read_key(value: &str) -> Result<String, String> {
    let Some(path) = value.strip_prefix("file:") else { return Ok(value.to_owned()) };
    let told = |error: std::io::Error| format!("open {path}: {error}");
    let metadata = std::fs::metadata(path).map_err(told)?;
    if metadata.mode() & 0o077 != 0 {
        return Err(format!("mac-sim: others can read the key in {path}"));
    }
    Ok(std::fs::read_to_string(path).map_err(told)?.trim().to_owned())
}
