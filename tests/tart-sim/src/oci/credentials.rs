//! Where the credentials for a registry come from.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use tart_sim::Fault;

use crate::host::{self, faults};
use crate::output::stdout;

/// A user name and a password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credentials {
    pub(crate) username: String,
    pub(crate) password: String,
}

/// A source that could not be asked, described as Swift does.
#[derive(Debug)]
struct ProviderError(String);

impl ProviderError {
    fn new(message: &str) -> Self {
        Self(format!("Failed(message: {message:?})"))
    }
}

type Lookup = Result<Option<Credentials>, ProviderError>;

impl Credentials {
    /// Asks the environment, Docker's configuration and the keychain, in this order. A source that fails is
    /// mentioned on stdout and skipped.
    pub(crate) fn find(host: &str) -> Option<Self> {
        let or_warn = |name: &str, lookup: Lookup| {
            lookup.unwrap_or_else(|ProviderError(error)| {
                stdout::line(format!(
                    "Failed to retrieve credentials using {name} credentials provider, authentication may fail: {error}"
                ));
                None
            })
        };
        from_environment(host)
            .or_else(|| or_warn("Docker configuration", from_docker(host)))
            .or_else(|| or_warn("Keychain", Keychain::get(host)))
    }
}

fn from_environment(host: &str) -> Option<Credentials> {
    if env::var("TART_REGISTRY_HOSTNAME").is_ok_and(|only| only != host) {
        return None;
    }
    let (username, password) =
        (env::var("TART_REGISTRY_USERNAME").ok()?, env::var("TART_REGISTRY_PASSWORD").ok()?);
    Some(Credentials { username, password })
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: BTreeMap<String, DockerAuth>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DockerAuth {
    auth: Option<String>,
}

fn from_docker(host: &str) -> Lookup {
    let path = env::home_dir().unwrap_or_default().join(".docker/config.json");
    let Ok(text) = fs::read(path) else { return Ok(None) };
    let config: DockerConfig = serde_json::from_slice(&text).map_err(|_| {
        ProviderError("The data couldn’t be read because it isn’t in the correct format.".into())
    })?;
    if let Some(auth) = config.auths.get(host).and_then(|auth| auth.auth.as_deref()) {
        return Ok(decode(auth));
    }
    let helper = config.cred_helpers.iter().find(|(pattern, _)| {
        *pattern == host
            || regex_lite::Regex::new(&format!("^(?:{pattern})$")).is_ok_and(|regex| regex.is_match(host))
    });
    helper.map(|(_, program)| ask_helper(program, host)).transpose()
}

/// Base64 of `user:password`, with exactly one colon.
fn decode(auth: &str) -> Option<Credentials> {
    let text = String::from_utf8(BASE64_STANDARD.decode(auth).ok()?).ok()?;
    let (username, password) = text.split_once(':')?;
    (!password.contains(':')).then(|| Credentials { username: username.into(), password: password.into() })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

fn ask_helper(program: &str, host: &str) -> Result<Credentials, ProviderError> {
    let program = format!("docker-credential-{program}");
    let answer = || -> io::Result<Option<Vec<u8>>> {
        let mut child =
            Command::new(&program).arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(host.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        Ok(output.status.success().then_some(output.stdout))
    };
    let output = match answer() {
        Ok(Some(output)) => output,
        Ok(None) => return Err(ProviderError::new("Docker helper failed!")),
        Err(_) => return Err(ProviderError::new(&format!("{program} not found in PATH"))),
    };
    let answer: HelperAnswer = serde_json::from_slice(&output)
        .map_err(|_| ProviderError::new("Docker helper output is not JSON"))?;
    Ok(Credentials { username: answer.username, password: answer.secret })
}

/// The login keychain: a file of the simulated Mac.
#[derive(Debug)]
pub(crate) struct Keychain;

impl Keychain {
    fn path() -> PathBuf {
        host::dir().join("keychain.json")
    }

    fn read() -> BTreeMap<String, Credentials> {
        fs::read(Self::path()).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    fn change(change: impl FnOnce(&mut BTreeMap<String, Credentials>)) -> Result<(), String> {
        if faults::is_on(Fault::KeychainLocked) {
            return Err(locked().0);
        }
        let mut entries = Self::read();
        change(&mut entries);
        fs::create_dir_all(host::dir())
            .and_then(|()| fs::write(Self::path(), serde_json::to_vec_pretty(&entries)?))
            .map_err(|error| error.to_string())
    }

    fn get(host: &str) -> Lookup {
        if faults::is_on(Fault::KeychainLocked) { Err(locked()) } else { Ok(Self::read().remove(host)) }
    }

    /// Keeps credentials; the error is described as Swift does.
    pub(crate) fn store(host: &str, credentials: Credentials) -> Result<(), String> {
        Self::change(|entries| drop(entries.insert(host.into(), credentials)))
    }

    /// Removes credentials, if there are any.
    pub(crate) fn remove(host: &str) -> Result<(), String> {
        Self::change(|entries| drop(entries.remove(host)))
    }
}

fn locked() -> ProviderError {
    ProviderError::new("Keychain returned unsuccessful status -25308")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_credentials_have_exactly_one_colon() {
        let pair = Credentials { username: "user".into(), password: "secret".into() };
        assert_eq!(decode(&BASE64_STANDARD.encode("user:secret")), Some(pair));
        assert_eq!(decode(&BASE64_STANDARD.encode("user:se:cret")), None);
        assert_eq!(decode(&BASE64_STANDARD.encode("user")), None);
        assert_eq!(decode("not base64!"), None);
    }
}
