//! What a server is to a machine.

use std::str;

use crate::host::Secret;
use crate::pool::{Host, HostState, Password};
use crate::scaleway::Server;
use crate::ssh::SshAddress;

/// What Scaleway shows instead of a password that it keeps to itself.
const SEALED: &str = "<sealed>";
const SSH_PORT: u16 = 22;

/// The host that a server is.
pub(super) fn of_server(server: &Server) -> Host {
    let ip = server.ip.as_ref().filter(|ip| !ip.is_empty());
    Host {
        id: server.id.clone(),
        name: server.name.clone(),
        state: state(server),
        ssh: ip.map(|ip| SshAddress { user: server.ssh_username.clone(), host: ip.clone(), port: SSH_PORT }),
        fingerprint: None,
        key: None,
        password: password(server.sudo_password.expose(), server.vnc_url.expose()),
    }
}

/// What a server is doing.
pub(super) fn state(server: &Server) -> HostState {
    match server.status.as_str() {
        "ready" if server.delivered => HostState::Ready,
        "ready" => HostState::Changing("not delivered yet".to_owned()),
        word
        @ ("starting" | "rebooting" | "updating" | "locking" | "unlocking" | "reinstalling" | "busy") => {
            HostState::Changing(word.to_owned())
        }
        word => HostState::Broken(word.to_owned()),
    }
}

/// The password is shown when a server is ordered, and later only in the address for screen sharing. Both can be sealed for a while.
fn password(shown: &[u8], vnc_url: &[u8]) -> Password {
    let in_vnc_url = vnc_password(vnc_url);
    let found =
        [Some(shown.to_vec()), in_vnc_url].into_iter().flatten().filter(|password| !password.is_empty());
    let found: Vec<Vec<u8>> = found.collect();
    match found.iter().find(|password| password.as_slice() != SEALED.as_bytes()) {
        Some(password) => Password::Known(Secret::new(password.clone())),
        None if found.is_empty() && vnc_url != SEALED.as_bytes() => Password::Absent,
        None => Password::Sealed,
    }
}

/// The password in `vnc://USER:PASSWORD@HOST:PORT`.
fn vnc_password(url: &[u8]) -> Option<Vec<u8>> {
    let (user, _) = str::from_utf8(url).ok()?.strip_prefix("vnc://")?.rsplit_once('@')?;
    percent_decoded(user.split_once(':')?.1)
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            decoded.push(u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_found_where_it_is_shown() {
        let known = |text: &str| Password::Known(Secret::new(text.as_bytes().to_vec()));
        for (shown, vnc_url, expected) in [
            ("p w", "", known("p w")),
            ("", "vnc://m1:p%20w%40%3A@10.0.0.1:5900", known("p w@:")),
            ("<sealed>", "vnc://m1:p@10.0.0.1:5900", known("p")),
            ("", "vnc://m1:a:b@10.0.0.1:5900", known("a:b")),
            ("<sealed>", "vnc://m1:%3Csealed%3E@10.0.0.1:5900", Password::Sealed),
            ("<sealed>", "", Password::Sealed),
            ("", "<sealed>", Password::Sealed),
            ("", "vnc://m1:<sealed>@10.0.0.1:5900", Password::Sealed),
            ("", "", Password::Absent),
            ("", "vnc://10.0.0.1:5900", Password::Absent),
            ("", "vnc://m1:%4@10.0.0.1", Password::Absent),
        ] {
            assert_eq!(password(shown.as_bytes(), vnc_url.as_bytes()), expected, "{shown} {vnc_url}");
        }
    }
}
