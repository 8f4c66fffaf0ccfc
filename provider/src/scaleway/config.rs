//! Where Scaleway is, and who asks it: the variables that Scaleway's own tools have.

use std::env;

use http::{HeaderValue, Uri};

/// How Scaleway is asked.
#[derive(Debug, Clone)]
pub(crate) struct ScalewayConfig {
    /// Where the API is.
    pub(super) url: Uri,
    /// The secret key, as a header. It is marked as sensitive, so that nothing shows it.
    pub(super) token: HeaderValue,
    /// The project. Servers and keys of others are not seen.
    pub(super) project_id: String,
}

/// Why Scaleway cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScalewayConfigError {
    /// A variable is missing.
    #[error("the environment variable {0} is missing")]
    Missing(&'static str),
    /// A variable is wrong. Its value may be a secret.
    #[error("the environment variable {0} is wrong: {1}")]
    Wrong(&'static str, &'static str),
}

const API_URL: &str = "SCW_API_URL";
const SECRET_KEY: &str = "SCW_SECRET_KEY";
const PROJECT_ID: &str = "SCW_DEFAULT_PROJECT_ID";

impl ScalewayConfig {
    /// Reads the environment.
    pub(crate) fn from_env() -> Result<Self, ScalewayConfigError> {
        Self::read(|name| env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ScalewayConfigError> {
        let required = |name| {
            let value = variable(name).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty()).ok_or(ScalewayConfigError::Missing(name))
        };
        let url = variable(API_URL).unwrap_or_else(|| "https://api.scaleway.com".to_owned());
        Self::new(&url, &required(SECRET_KEY)?, &required(PROJECT_ID)?)
    }

    /// The configuration of these values.
    pub(crate) fn new(url: &str, secret_key: &str, project_id: &str) -> Result<Self, ScalewayConfigError> {
        let wrong = ScalewayConfigError::Wrong;
        let url: Uri = url.parse().map_err(|_| wrong(API_URL, "it is no URL"))?;
        let host = url.host().unwrap_or_default();
        let is_this_machine = host == "localhost" || host == "[::1]" || host.starts_with("127.");
        match url.scheme_str() {
            Some("https") => {}
            Some("http") if is_this_machine => {}
            Some("http") => return Err(wrong(API_URL, "the secret key would be sent in the clear")),
            _ => return Err(wrong(API_URL, "it begins with https://")),
        }
        let mut token =
            HeaderValue::from_str(secret_key).map_err(|_| wrong(SECRET_KEY, "it is no secret key"))?;
        token.set_sensitive(true);
        let is_id = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if !project_id.chars().all(is_id) {
            return Err(wrong(PROJECT_ID, "it is no id of a project"));
        }
        Ok(Self { url, token, project_id: project_id.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_and_project_are_needed_and_never_shown() {
        let read = |variables: &[(&str, &str)]| {
            let variables: Vec<(String, String)> =
                variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            ScalewayConfig::read(move |name| {
                variables.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone())
            })
        };
        let config = read(&[(SECRET_KEY, "canary\n"), (PROJECT_ID, "p-1")]).unwrap();
        assert_eq!(config.url, "https://api.scaleway.com");
        assert!(!format!("{config:?}").contains("canary"), "{config:?}");
        let missing = |error: Result<ScalewayConfig, _>| error.unwrap_err();
        assert_eq!(missing(read(&[(PROJECT_ID, "p")])), ScalewayConfigError::Missing(SECRET_KEY));
        assert_eq!(
            missing(read(&[(SECRET_KEY, " "), (PROJECT_ID, "p")])),
            ScalewayConfigError::Missing(SECRET_KEY)
        );
        assert_eq!(missing(read(&[(SECRET_KEY, "s")])), ScalewayConfigError::Missing(PROJECT_ID));
        let error = read(&[(SECRET_KEY, "can\u{7}ary"), (PROJECT_ID, "p")]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("can"), "{error}");
    }

    #[test]
    fn the_key_is_sent_in_the_clear_to_this_machine_only() {
        for (url, is_right) in [
            ("https://api.scaleway.com", true),
            ("http://127.0.0.1:80", true),
            ("http://localhost", true),
            ("http://api.scaleway.com", false),
            ("http://localhost.example.com", false),
            ("ftp://x", false),
            ("", false),
        ] {
            assert_eq!(ScalewayConfig::new(url, "key", "p").is_ok(), is_right, "{url}");
        }
    }
}
