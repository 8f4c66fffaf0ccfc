//! The Mac's place in a tailnet. tailscaled keeps it across restarts, so that the key is needed once.

use std::time::Duration;

use launchd::Call;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::{COMMAND_DEADLINE, Change, Inputs, PartError, Remote, note, note_path, noted, run, succeeded};
use crate::artifact::Sha256Hash;
use crate::host::Secret;

/// How long tailscaled may take to answer, and how long the Mac may take to get its address.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_secs(1);
/// How long tailscale itself waits for the tailnet, and how long it is waited for.
const UP_TIMEOUT: &str = "--timeout=45s";
const UP_DEADLINE: Duration = Duration::from_mins(1);
/// Where the key is while it is read. A boot clears the directory.
const KEY_FILE: &str = "/var/run/dev.tuist.tart-provider.tailscale-auth-key";
/// The name of the note that says as what the Mac has joined.
const NOTE: &str = "tailnet";
/// How a secret of an OAuth client begins. It is no key itself: tailscale makes one with it.
const OAUTH: &str = "tskey-client-";

/// Keeps its input in the file `$1`, which only root reads, while the rest of the words run as a command.
const WITH_KEY_FILE: &str = "set -eu
umask 077
key=$1
shift
trap 'rm -f \"$key\"' EXIT HUP INT TERM
cat >\"$key\"
\"$@\"";

/// Prints the addresses and ports of the SSH connection.
const CONNECTION: &str = "printf '%s\\n' \"${SSH_CONNECTION-}\"";

/// The Mac as a member of a tailnet.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Tailnet {
    /// The `tailscale` program on the Mac.
    pub(crate) program: String,
    /// The name that others reach it by.
    pub(crate) host_name: String,
    /// Its tags.
    pub(crate) tags: Vec<String>,
    /// Whether it uses the routes that others offer.
    pub(crate) accept_routes: bool,
}

/// What `tailscale status --json` says, as far as it matters.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Status {
    backend_state: String,
    #[serde(rename = "TailscaleIPs", default)]
    addresses: Option<Vec<String>>,
}

/// The file of the note.
pub(crate) fn tailnet_note() -> String {
    note_path(NOTE)
}

impl Status {
    /// Whether the Mac has joined, and has an address.
    fn has_joined(&self) -> bool {
        self.backend_state == "Running"
            && self.addresses.as_ref().is_some_and(|all| all.iter().any(|is| is.starts_with("100.")))
    }
}

impl Tailnet {
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let mut changes = Vec::new();
        let wanted = format!("joined as {} ({})", self.host_name, self.tags.join(", "));
        match self.status(mac).await? {
            None => changes.push(Change::new("tailnet", "tailscaled does not answer", &wanted)),
            Some(status) if !status.has_joined() => {
                changes.push(Change::new("tailnet", status.backend_state, &wanted));
            }
            Some(_) if noted(mac, NOTE).await?.as_deref() != Some(self.hash().as_str()) => {
                changes.push(Change::new("tailnet", "joined with another name, tags or routes", &wanted));
            }
            Some(_) => (),
        }
        // A Mac that lost its power in the middle has it no more. One whose shell was killed may.
        if mac.run(Call::new(&["/bin/test", "-e", KEY_FILE], COMMAND_DEADLINE)).await?.is_success() {
            changes.push(Change::new(KEY_FILE, "left behind", "gone"));
        }
        Ok(changes)
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R, inputs: &Inputs) -> Result<(), PartError> {
        run(mac, &["/bin/rm", "-f", KEY_FILE]).await?;
        let status = self.wait(mac, |_| true).await?;
        let is_joined = status.is_some_and(|status| status.has_joined());
        if is_joined && noted(mac, NOTE).await?.as_deref() == Some(self.hash().as_str()) {
            return Ok(());
        }
        let secret = "an auth key or the secret of an OAuth client";
        let missing = PartError::NoSecret { what: "the tailnet", secret, flag: "--tailscale-auth-key-file" };
        let key = inputs.tailscale_auth_key.as_ref().ok_or(missing)?;
        let line = auth_key(key, !self.tags.is_empty())?;
        ensure_not_over_tailnet(mac, "joining the tailnet again").await?;
        self.join(mac, &line).await?;
        if self.wait(mac, Status::has_joined).await?.is_none() {
            let message = "it has no address after 30 s; `tailscale status` on the Mac says why".to_owned();
            return Err(PartError::Tailnet { message });
        }
        note(mac, NOTE, self.hash().as_str()).await
    }

    fn hash(&self) -> Sha256Hash {
        Sha256Hash::of(&serde_json::to_vec(self).unwrap_or_default())
    }

    async fn join<R: Remote>(&self, mac: &R, key: &Secret) -> Result<(), PartError> {
        let name = format!("--hostname={}", self.host_name);
        let tags = format!("--advertise-tags={}", self.tags.join(","));
        let routes = format!("--accept-routes={}", self.accept_routes);
        let file = format!("--auth-key=file:{KEY_FILE}");
        let argv = [
            "/bin/sh",
            "-c",
            WITH_KEY_FILE,
            "sh",
            KEY_FILE,
            &self.program,
            "up",
            &file,
            "--reset",
            "--ssh=false",
            &name,
            &tags,
            &routes,
            UP_TIMEOUT,
        ];
        let call = Call::new(&argv, UP_DEADLINE).with_stdin(key.expose());
        let output = mac.run(call).await?;
        if output.is_success() {
            return Ok(());
        }
        let shown = String::from_utf8_lossy(key.expose()).trim().to_owned();
        Err(PartError::Tailnet { message: output.message().replace(&shown, "(the key)") })
    }

    /// Asks until the answer is right; `None` when it never was.
    async fn wait<R: Remote>(
        &self,
        mac: &R,
        is_right: impl Fn(&Status) -> bool,
    ) -> Result<Option<Status>, PartError> {
        let start = Instant::now();
        loop {
            match self.status(mac).await? {
                Some(status) if is_right(&status) => return Ok(Some(status)),
                _ if start.elapsed() >= PATIENCE => return Ok(None),
                _ => sleep(POLL).await,
            }
        }
    }

    /// What tailscaled says; `None` when it does not answer.
    async fn status<R: Remote>(&self, mac: &R) -> Result<Option<Status>, PartError> {
        let argv = [self.program.as_str(), "status", "--json"];
        let output = mac.run(Call::new(&argv, COMMAND_DEADLINE)).await?;
        Ok(output.is_success().then(|| serde_json::from_str(&output.stdout).ok()).flatten())
    }
}

/// What tailscale is given. The secret of an OAuth client makes a key for a member that is approved at once and forgotten when it is gone.
fn auth_key(key: &Secret, has_tags: bool) -> Result<Secret, PartError> {
    let text = String::from_utf8_lossy(key.expose()).trim().to_owned();
    if !text.starts_with(OAUTH) {
        return Ok(Secret::new(format!("{text}\n").into_bytes()));
    }
    if !has_tags {
        let message =
            "the secret of an OAuth client makes only keys with tags; give them with --tailscale-tag"
                .to_owned();
        return Err(PartError::Tailnet { message });
    }
    Ok(Secret::new(format!("{text}?ephemeral=true&preauthorized=true\n").into_bytes()))
}

/// Refuses what restarts tailscaled when the connection runs through it: the answer would never come, this time and the next.
pub(super) async fn ensure_not_over_tailnet<R: Remote>(mac: &R, what: &str) -> Result<(), PartError> {
    let call = Call::new(&["/bin/sh", "-c", CONNECTION], COMMAND_DEADLINE);
    let output = succeeded(call, mac.run_as_user(call).await?)?;
    // The client's address and port, and the Mac's.
    let own = output.stdout.split_whitespace().nth(2).and_then(|address| address.parse().ok());
    if own.is_some_and(is_of_tailnet) {
        return Err(PartError::OverTailnet { what: what.to_owned() });
    }
    Ok(())
}

fn is_of_tailnet(address: std::net::IpAddr) -> bool {
    match address {
        std::net::IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            first == 100 && (64..128).contains(&second)
        }
        std::net::IpAddr::V6(address) => address.segments().starts_with(&[0xfd7a, 0x115c, 0xa1e0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_of_an_oauth_client_needs_tags_and_makes_a_key_of_a_member_that_is_forgotten() {
        let secret = Secret::new(b"tskey-client-canary\n".to_vec());
        let error = auth_key(&secret, false).unwrap_err().to_string();
        assert!(error.contains("--tailscale-tag") && !error.contains("canary"), "{error}");
        let line = auth_key(&secret, true).unwrap();
        assert_eq!(line.expose(), b"tskey-client-canary?ephemeral=true&preauthorized=true\n");
        let key = auth_key(&Secret::new(b"tskey-auth-canary".to_vec()), false).unwrap();
        assert_eq!(key.expose(), b"tskey-auth-canary\n");
    }

    #[test]
    fn addresses_of_a_tailnet_are_known() {
        for (address, is) in [
            ("100.64.0.1", true),
            ("100.127.255.254", true),
            ("100.63.0.1", false),
            ("100.128.0.1", false),
            ("fd7a:115c:a1e0::1", true),
            ("fd00::1", false),
        ] {
            assert_eq!(is_of_tailnet(address.parse().unwrap()), is, "{address}");
        }
    }

    #[test]
    fn a_mac_has_joined_when_it_runs_and_has_an_address() {
        let status = |text: &str| serde_json::from_str::<Status>(text).unwrap().has_joined();
        assert!(status(r#"{"BackendState":"Running","TailscaleIPs":["100.1.2.3","fd7a::1"],"Self":{}}"#));
        assert!(!status(r#"{"BackendState":"Running","TailscaleIPs":null}"#));
        assert!(!status(r#"{"BackendState":"NeedsLogin","TailscaleIPs":["100.1.2.3"]}"#));
    }
}
