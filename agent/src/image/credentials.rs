//! Credentials for registries, from a Pod's pull secrets.

use std::fmt;

use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;
use std::collections::BTreeMap;

use crate::tart::Credential;

/// A user's name and password, and the images that they are for.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) path: RegistryPath,
    pub(crate) username: String,
    pub(crate) password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({} at {:?})", self.username, self.path)
    }
}

impl Login {
    /// The credential for the registry of an image, if this login is for it.
    pub(crate) fn at(&self, image: &str) -> Option<Credential> {
        self.path.has(image).then(|| Credential {
            host: split(image).0.to_owned(),
            username: self.username.clone(),
            password: self.password.clone(),
        })
    }
}

/// A key of a Docker config, by the kubelet's rules: a host, which may have wildcards in its parts, and the beginning of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RegistryPath(String);

impl RegistryPath {
    /// Reads a key, which may be a URL. The paths of the registry's own API stand for the whole registry.
    pub(crate) fn read(key: &str) -> Self {
        let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
        let (host, path) = split(key);
        let path = if path.starts_with("/v1/") || path.starts_with("/v2/") { &path[3..] } else { path };
        Self(if path == "/" { host.to_owned() } else { format!("{host}{path}") })
    }

    /// Whether an image is below this path.
    fn has(&self, image: &str) -> bool {
        let ((mine, beginning), (its, path)) = (split(&self.0), split(image));
        let ((mine, my_port), (its, its_port)) = (split_port(mine), split_port(its));
        let (mine, its): (Vec<&str>, Vec<&str>) = (mine.split('.').collect(), its.split('.').collect());
        let mut parts = mine.iter().zip(&its);
        my_port == its_port
            && path.starts_with(beginning)
            && mine.len() == its.len()
            && parts.all(|(glob, part)| matches_glob(glob.as_bytes(), part.as_bytes()))
    }
}

/// A host, and the path with its slash.
fn split(place: &str) -> (&str, &str) {
    place.split_at(place.find('/').unwrap_or(place.len()))
}

fn split_port(host: &str) -> (&str, Option<&str>) {
    let port = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    port.map_or((host, None), |(host, port)| (host, Some(port)))
}

/// Whether a text matches a pattern, in which `?` is any character and `*` any number of them.
fn matches_glob(glob: &[u8], text: &[u8]) -> bool {
    let (mut glob_at, mut at, mut star) = (0, 0, None);
    while at < text.len() {
        match (glob.get(glob_at), star) {
            (Some(b'*'), _) => {
                star = Some((glob_at, at));
                glob_at += 1;
            }
            (Some(&byte), _) if byte == b'?' || byte == text[at] => {
                glob_at += 1;
                at += 1;
            }
            // The last star matches one more byte.
            (_, Some((star_at, taken))) => {
                star = Some((star_at, taken + 1));
                (glob_at, at) = (star_at + 1, taken + 1);
            }
            (_, None) => return false,
        }
    }
    glob[glob_at..].iter().all(|byte| *byte == b'*')
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BadSecret {
    #[error("it has no `.dockerconfigjson` and no `.dockercfg`")]
    NoConfig,
    /// Its content is not JSON of the right shape. The message does not show it, because it is secret.
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

/// The logins in a pull secret.
pub(crate) fn read(secret: &Secret) -> Result<Vec<Login>, BadSecret> {
    let data = secret.data.as_ref().ok_or(BadSecret::NoConfig)?;
    let entries = if let Some(config) = data.get(".dockerconfigjson") {
        serde_json::from_slice::<DockerConfig>(&config.0).map_err(|_| BadSecret::Malformed)?.auths
    } else if let Some(config) = data.get(".dockercfg") {
        serde_json::from_slice(&config.0).map_err(|_| BadSecret::Malformed)?
    } else {
        return Err(BadSecret::NoConfig);
    };
    // Docker writes entries without a password if a helper program keeps it. They are left out.
    entries.into_iter().filter_map(|(key, entry)| entry.read(&key).transpose()).collect()
}

/// The logins in a file that `docker login` writes.
pub(crate) fn read_docker_config(content: &[u8]) -> Result<Vec<Login>, BadSecret> {
    let config: DockerConfig = serde_json::from_slice(content).map_err(|_| BadSecret::Malformed)?;
    // A malformed entry of one registry must not fail the pull from another.
    Ok(config.auths.into_iter().filter_map(|(key, entry)| entry.read(&key).ok().flatten()).collect())
}

impl Entry {
    fn read(self, key: &str) -> Result<Option<Login>, BadSecret> {
        let login = |username, password| Login { path: RegistryPath::read(key), username, password };
        if let (Some(username), Some(password)) = (self.username, self.password) {
            return Ok(Some(login(username, password)));
        }
        let Some(auth) = self.auth.filter(|auth| !auth.is_empty()) else { return Ok(None) };
        let auth = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, auth.trim())
            .map_err(|_| BadSecret::Malformed)?;
        let pair = std::str::from_utf8(&auth).ok().and_then(|auth| auth.split_once(':'));
        let (username, password) = pair.ok_or(BadSecret::Malformed)?;
        Ok(Some(login(username.to_owned(), password.to_owned())))
    }
}

/// The credentials for the registry of an image, in the order of use: the most exact path first. Each has the `T` of its login.
pub(crate) fn fitting<T>(image: &str, mut logins: Vec<(Login, T)>) -> Vec<(Credential, T)> {
    logins.sort_by(|(one, _), (other, _)| other.path.cmp(&one.path));
    logins.into_iter().filter_map(|(login, with)| Some((login.at(image)?, with))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    fn secret(key: &str, content: &str) -> Secret {
        let data = BTreeMap::from([(key.to_owned(), ByteString(content.as_bytes().to_vec()))]);
        Secret { data: Some(data), ..Secret::default() }
    }

    fn login(path: &str, username: &str, password: &str) -> Login {
        Login { path: RegistryPath(path.into()), username: username.into(), password: password.into() }
    }

    #[test]
    fn both_kinds_of_secret_are_read() {
        let config = r#"{"auths": {"https://registry.test/v1/": {"auth": "YTpiOmM="}, "other.test:5000": {"username": "u", "password": "p"}}}"#;
        let found = read(&secret(".dockerconfigjson", config)).unwrap();
        assert_eq!(found, [login("registry.test", "a", "b:c"), login("other.test:5000", "u", "p")]);
        let found = read(&secret(".dockercfg", r#"{"registry.test": {"auth": "YTpi"}}"#)).unwrap();
        assert_eq!(found, [login("registry.test", "a", "b")]);
    }

    #[test]
    fn entries_without_a_password_are_left_out() {
        let config = r#"{"credsStore": "desktop", "auths": {"registry.test": {"auth": "YTpi"}, "other.test": {}, "third.test": {"auth": ""}}}"#;
        let expected = [login("registry.test", "a", "b")];
        assert_eq!(read_docker_config(config.as_bytes()).unwrap(), expected);
        assert_eq!(read(&secret(".dockerconfigjson", config)).unwrap(), expected);
        assert!(matches!(read_docker_config(b"{"), Err(BadSecret::Malformed)));
        let odd = br#"{"auths": {"registry.test": {"auth": "YTpi"}, "other.test": {"auth": "!"}}}"#;
        assert_eq!(read_docker_config(odd).unwrap(), expected);
    }

    #[test]
    fn a_malformed_secret_is_told_apart_from_one_without_a_config() {
        assert!(matches!(read(&Secret::default()), Err(BadSecret::NoConfig)));
        assert!(matches!(read(&secret("password", "x")), Err(BadSecret::NoConfig)));
        for content in
            ["", "{}", r#"{"auths": {"a": {"auth": "!"}}}"#, r#"{"auths": {"a": {"auth": "YQ=="}}}"#]
        {
            assert!(
                matches!(read(&secret(".dockerconfigjson", content)), Err(BadSecret::Malformed)),
                "{content}"
            );
        }
    }

    #[test]
    fn paths_match_images_by_the_kubelets_rules() {
        for (key, image, expected) in [
            ("a.test", "a.test/macos:1", true),
            ("a.test", "b.test/macos:1", false),
            ("a.test", "a.test:5000/macos:1", false),
            ("a.test:5000", "a.test:5000/macos:1", true),
            ("https://a.test/v2/", "a.test/macos:1", true),
            ("http://a.test/v1/team", "a.test/team/macos", true),
            ("http://a.test/v1/team", "a.test/macos", false),
            ("a.test/", "a.test/macos", true),
            ("a.test/team", "a.test/team/macos@sha256:1", true),
            ("a.test/team", "a.test/other/macos", false),
            ("*.test", "a.test/macos", true),
            ("*.test", "a.b.test/macos", false),
            ("*.*.test", "a.b.test/macos", true),
            ("r?g-*-1.test", "reg-eu-west-1.test/macos", true),
            ("r?g-*-1.test", "reg-eu-west-2.test/macos", false),
            ("*", "a.test/macos", false),
        ] {
            assert_eq!(RegistryPath::read(key).has(image), expected, "{key} {image}");
        }
    }

    #[test]
    fn a_glob_matches_in_linear_time() {
        for (glob, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("**a*b", "xaxb", true),
            ("a*", "ba", false),
            ("a?", "a", false),
        ] {
            assert_eq!(matches_glob(glob.as_bytes(), text.as_bytes()), expected, "{glob} {text}");
        }
        // A secret can be large.
        assert!(!matches_glob(&b"*a".repeat(500_000), "a".repeat(60).as_bytes()));
    }

    #[test]
    fn the_most_exact_path_is_tried_first_and_only_the_images_own_registry() {
        let paths = ["a.test", "b.test", "a.test/team", "*.test", "a.test"];
        let logins = || (1..).zip(paths).map(|(number, path)| (login(path, path, ""), number)).collect();
        let order =
            |image| fitting(image, logins()).into_iter().map(|(_, number)| number).collect::<Vec<_>>();
        assert_eq!(order("a.test/team/macos:1"), [3, 1, 5, 4]);
        assert_eq!(order("a.test/macos:1"), [1, 5, 4]);
        assert_eq!(order("a.test:5000/macos:1"), [0; 0]);
        let hosts = fitting("c.test/macos", logins());
        assert_eq!(hosts.first().map(|(credential, _)| credential.host.as_str()), Some("c.test"));
    }

    #[test]
    fn a_password_is_never_shown() {
        let login = login("a.test", "me", "hunter2");
        let credential = login.at("a.test/macos");
        assert!(credential.is_some() && !format!("{login:?} {credential:?}").contains("hunter2"));
    }
}
