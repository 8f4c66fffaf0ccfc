//! Where the API server is.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};

/// The address of an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiEndpoint(Authority);

/// A text that is no address of an API server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address of an API server: write `host:port` or `https://host:port`")]
pub(crate) struct BadEndpoint(String);

/// kube-apiserver's port.
const DEFAULT_PORT: u16 = 6443;

impl ApiEndpoint {
    /// Its URL.
    pub(crate) fn uri(&self) -> Uri {
        let parts = Uri::builder().scheme(Scheme::HTTPS).authority(self.0.clone()).path_and_query("/");
        // An authority with a scheme and a path is a URL.
        parts.build().unwrap_or_default()
    }
}

impl FromStr for ApiEndpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = || BadEndpoint(text.to_owned());
        let rest = text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/');
        let authority: Authority = rest.parse().map_err(|_| bad())?;
        if authority.host().is_empty() || authority.as_str().contains('@') {
            return Err(bad());
        }
        if authority.port().is_some() {
            return Ok(Self(authority));
        }
        format!("{}:{DEFAULT_PORT}", authority.host()).parse().map(Self).map_err(|_| bad())
    }
}

impl fmt::Display for ApiEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_read_with_or_without_scheme_and_port() {
        for (text, expected) in [
            ("10.0.0.1:6443", "https://10.0.0.1:6443"),
            ("https://api.example.com/", "https://api.example.com:6443"),
            ("[fd00::1]:443", "https://[fd00::1]:443"),
        ] {
            let endpoint: ApiEndpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), expected);
            assert_eq!(endpoint.uri().to_string(), format!("{expected}/"));
        }
        for text in ["", "http://a", "a b", "user@host:1", "https://"] {
            assert!(text.parse::<ApiEndpoint>().is_err(), "{text}");
        }
    }
}
