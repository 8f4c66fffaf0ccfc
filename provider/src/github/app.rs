//! A GitHub App: who the provider is at GitHub. GitHub knows it by a token that the App's key has signed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::SigningKey;
use serde_json::json;

const APP_ID: &str = "app-id";
const INSTALLATION_ID: &str = "installation-id";
const PRIVATE_KEY: &str = "private-key";
/// GitHub takes tokens that are valid for at most ten minutes. Its clock and this one may differ.
const LIFETIME: Duration = Duration::from_mins(9);
const CLOCK_SKEW: Duration = Duration::from_secs(30);

/// An App, and its installation in the organization.
#[derive(Clone)]
pub(crate) struct App {
    id: String,
    pub(super) installation: String,
    key: Arc<dyn SigningKey>,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("id", &self.id)
            .field("installation", &self.installation)
            .finish_non_exhaustive()
    }
}

/// What is wrong with the Secret of an App. No error repeats what is in it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum AppError {
    #[error("it has no {0}")]
    Missing(&'static str),
    #[error("its {0} is no number")]
    NoNumber(&'static str),
    #[error("its {PRIVATE_KEY} is no RSA key in PEM")]
    NoKey,
}

impl App {
    /// The App that a Secret describes.
    pub(crate) fn parse(data: &BTreeMap<String, ByteString>) -> Result<Self, AppError> {
        let field = |key| data.get(key).map(|value| value.0.as_slice()).filter(|value| !value.is_empty());
        // It becomes a part of a path.
        let number = |key| {
            let text = String::from_utf8_lossy(field(key).ok_or(AppError::Missing(key))?).trim().to_owned();
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if is_number { Ok(text) } else { Err(AppError::NoNumber(key)) }
        };
        let (id, installation) = (number(APP_ID)?, number(INSTALLATION_ID)?);
        let pem = field(PRIVATE_KEY).ok_or(AppError::Missing(PRIVATE_KEY))?;
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| AppError::NoKey)?;
        let key = any_supported_type(&key).map_err(|_| AppError::NoKey)?;
        if key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]).is_none() {
            return Err(AppError::NoKey);
        }
        Ok(Self { id, installation, key })
    }

    /// The token that says who asks: a JSON Web Token by RS256.
    pub(super) fn token(&self, now: Timestamp) -> Result<String, AppError> {
        let encoded = |value: serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let claims = json!({
            "iat": (now - CLOCK_SKEW).as_second(), "exp": (now + LIFETIME).as_second(), "iss": self.id,
        });
        let signed = format!("{}.{}", encoded(json!({ "alg": "RS256", "typ": "JWT" })), encoded(claims));
        let signer = self.key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]).ok_or(AppError::NoKey)?;
        let signature = signer.sign(signed.as_bytes()).map_err(|_| AppError::NoKey)?;
        Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(fields: &[(&str, &str)]) -> Result<App, AppError> {
        let field = |(key, value): &(&str, &str)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()));
        App::parse(&fields.iter().map(field).collect())
    }

    #[test]
    fn a_secret_without_a_field_or_with_a_wrong_one_is_refused_in_words() {
        for (fields, wanted) in [
            (vec![], AppError::Missing(APP_ID)),
            (vec![(APP_ID, "1")], AppError::Missing(INSTALLATION_ID)),
            (vec![(APP_ID, "1"), (INSTALLATION_ID, "../2")], AppError::NoNumber(INSTALLATION_ID)),
            (vec![(APP_ID, " 1\n"), (INSTALLATION_ID, "2")], AppError::Missing(PRIVATE_KEY)),
            (vec![(APP_ID, "1"), (INSTALLATION_ID, "2"), (PRIVATE_KEY, "canary")], AppError::NoKey),
        ] {
            let error = parsed(&fields).expect_err("an App");
            assert_eq!(error, wanted);
            assert!(!error.to_string().contains("canary"));
        }
    }
}
