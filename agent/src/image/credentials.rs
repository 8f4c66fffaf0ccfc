//! Credentials for registries, out of a Pod's pull secrets.

use std::fmt;

use k8s_openapi::api::core::v1::Secret;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A user's name and password at one registry.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Credential {
    /// The registry, as `host` or `host:port`.
    pub host: String,
    /// The user's name.
    pub username: String,
    /// The user's password.
    pub password: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({} at {})", self.username, self.host)
    }
}

/// A pull secret that says nothing about any registry.
#[derive(Debug, thiserror::Error)]
pub enum BadSecret {
    /// It is of another type, or lacks its only key.
    #[error("it has no `.dockerconfigjson` and no `.dockercfg`")]
    NoConfig,
    /// What it holds is not JSON of the right shape. The content is not shown: it is secret.
    #[error("its content is not what `kubectl create secret docker-registry` writes")]
    Malformed,
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

/// All credentials in a pull secret.
pub fn read(secret: &Secret) -> Result<Vec<Credential>, BadSecret> {
    let data = secret.data.as_ref().ok_or(BadSecret::NoConfig)?;
    let entries = if let Some(config) = data.get(".dockerconfigjson") {
        serde_json::from_slice::<DockerConfig>(&config.0).map_err(|_| BadSecret::Malformed)?.auths
    } else if let Some(config) = data.get(".dockercfg") {
        serde_json::from_slice(&config.0).map_err(|_| BadSecret::Malformed)?
    } else {
        return Err(BadSecret::NoConfig);
    };
    entries.into_iter().map(|(place, entry)| entry.read(&place).ok_or(BadSecret::Malformed)).collect()
}

/// All credentials in a file as `docker login` writes it. Entries whose password a program keeps are left out.
pub fn read_docker_config(content: &[u8]) -> Result<Vec<Credential>, BadSecret> {
    let config: DockerConfig = serde_json::from_slice(content).map_err(|_| BadSecret::Malformed)?;
    Ok(config.auths.into_iter().filter_map(|(place, entry)| entry.read(&place)).collect())
}

impl Entry {
    fn read(self, place: &str) -> Option<Credential> {
        let host = host_of(place).to_owned();
        if let (Some(username), Some(password)) = (self.username, self.password) {
            return Some(Credential { host, username, password });
        }
        let auth =
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, self.auth?.trim()).ok()?;
        let (username, password) = std::str::from_utf8(&auth).ok()?.split_once(':')?;
        Some(Credential { host, username: username.to_owned(), password: password.to_owned() })
    }
}

/// The credentials that fit an image, in the order in which they are to be tried.
pub fn fitting(image: &str, credentials: Vec<Credential>) -> Vec<Credential> {
    let host = host_of(image);
    credentials.into_iter().filter(|credential| credential.host == host).collect()
}

/// The registry in an image's name or in a key of a Docker config, which may be a URL.
fn host_of(place: &str) -> &str {
    let place = place.strip_prefix("https://").or_else(|| place.strip_prefix("http://")).unwrap_or(place);
    place.split('/').next().unwrap_or(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    fn secret(key: &str, content: &str) -> Secret {
        let data = BTreeMap::from([(key.to_owned(), ByteString(content.as_bytes().to_vec()))]);
        Secret { data: Some(data), ..Secret::default() }
    }

    fn credential(host: &str, username: &str, password: &str) -> Credential {
        Credential { host: host.into(), username: username.into(), password: password.into() }
    }

    #[test]
    fn both_kinds_of_secret_are_read() {
        let config = r#"{"auths": {"https://registry.test/v1/": {"auth": "YTpiOmM="}, "other.test:5000": {"username": "u", "password": "p"}}}"#;
        let found = read(&secret(".dockerconfigjson", config)).unwrap();
        assert_eq!(found, [credential("registry.test", "a", "b:c"), credential("other.test:5000", "u", "p")]);
        let found = read(&secret(".dockercfg", r#"{"registry.test": {"auth": "YTpi"}}"#)).unwrap();
        assert_eq!(found, [credential("registry.test", "a", "b")]);
    }

    #[test]
    fn a_file_of_docker_is_read_without_what_is_kept_elsewhere() {
        let config =
            br#"{"credsStore": "desktop", "auths": {"registry.test": {"auth": "YTpi"}, "other.test": {}}}"#;
        assert_eq!(read_docker_config(config).unwrap(), [credential("registry.test", "a", "b")]);
        assert!(matches!(read_docker_config(b"{"), Err(BadSecret::Malformed)));
    }

    #[test]
    fn nonsense_is_told_apart_from_absence() {
        assert!(matches!(read(&Secret::default()), Err(BadSecret::NoConfig)));
        assert!(matches!(read(&secret("password", "x")), Err(BadSecret::NoConfig)));
        for content in ["", "{}", r#"{"auths": {"a": {}}}"#, r#"{"auths": {"a": {"auth": "!"}}}"#] {
            assert!(
                matches!(read(&secret(".dockerconfigjson", content)), Err(BadSecret::Malformed)),
                "{content}"
            );
        }
    }

    #[test]
    fn only_the_images_own_registry_gets_a_password() {
        let all =
            vec![credential("a.test", "1", ""), credential("b.test", "2", ""), credential("a.test", "3", "")];
        let names = |image| fitting(image, all.clone()).into_iter().map(|c| c.username).collect::<Vec<_>>();
        assert_eq!(names("a.test/macos:1"), ["1", "3"]);
        assert_eq!(names("a.test:5000/macos:1"), [""; 0]);
    }

    #[test]
    fn a_password_is_never_shown() {
        assert!(!format!("{:?}", credential("a.test", "me", "hunter2")).contains("hunter2"));
    }
}
