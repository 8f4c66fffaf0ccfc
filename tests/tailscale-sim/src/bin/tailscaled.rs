//! The daemon.

use std::fs::{self, Permissions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tailscale_sim::{Member, VERSION};

/// What a job without flags ends with.
const EX_CONFIG: u8 = 78;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if matches!(words.as_slice(), [word] if word == "--version" || word == "-version") {
        println!("{VERSION}\n  tailscale commit: simulated");
        return ExitCode::SUCCESS;
    }
    tailscale_sim::note_call("tailscaled", &words);
    let value = |name: &str| {
        let prefix = format!("--{name}=");
        words.iter().find_map(|word| word.strip_prefix(&prefix)).map(PathBuf::from)
    };
    let is_known =
        |word: &String| ["--state=", "--socket=", "--port="].iter().any(|flag| word.starts_with(flag));
    if let Some(word) = words.iter().find(|word| !is_known(word)) {
        eprintln!("flag provided but not defined: {}", word.trim_start_matches('-'));
        return ExitCode::from(2);
    }
    let (Some(state), Some(socket), Some(_)) = (value("state"), value("socket"), value("port")) else {
        return ExitCode::from(EX_CONFIG);
    };
    if !nix::unistd::geteuid().is_root() {
        eprintln!("tailscaled requires root; use sudo tailscaled (or use --tun=userspace-networking)");
        return ExitCode::FAILURE;
    }
    match serve(&state, &socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tailscaled: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(state: &Path, socket: &Path) -> io::Result<()> {
    let directory = state.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let access = fs::metadata(directory)?;
    if access.uid() != 0 || access.mode() & 0o077 != 0 {
        return Err(io::Error::other(
            "mac-sim: the state has the member's key, and others than root can read it",
        ));
    }
    let mut member = match fs::read(state) {
        Ok(bytes) => serde_json::from_slice(&bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Member::default(),
        Err(error) => return Err(error),
    };
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket)?;
    fs::set_permissions(socket, Permissions::from_mode(0o666))?;
    println!("listening on {}", socket.display());
    for stream in listener.incoming() {
        let mut stream = stream?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        let Ok(request) = serde_json::from_str(&line) else { continue };
        let reply = member.answer(request);
        let hidden = state.with_extension("new");
        fs::write(&hidden, serde_json::to_vec(&member)?)?;
        fs::set_permissions(&hidden, Permissions::from_mode(0o600))?;
        fs::rename(&hidden, state)?;
        // The client may be gone.
        let _ = stream.write_all(&[serde_json::to_vec(&reply)?, b"\n".to_vec()].concat());
    }
    Ok(())
}
