//! The signature of the cluster's information: a JWS with detached content, HS256, keyed by the token's secret.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use serde::Deserialize;

use super::token::BootstrapToken;

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: String,
}

/// Whether a signature is that of the content by the token.
pub(super) fn is_valid(signature: &str, content: &str, token: &BootstrapToken) -> bool {
    let parts: Vec<&str> = signature.trim().split('.').collect();
    let [header, "", signature] = parts[..] else { return false };
    let decode = |text: &str| BASE64_URL_SAFE_NO_PAD.decode(text).ok();
    let Some(parsed) = decode(header).and_then(|bytes| serde_json::from_slice::<Header>(&bytes).ok()) else {
        return false;
    };
    if parsed.alg != "HS256" || parsed.kid != token.id() {
        return false;
    }
    let signed = format!("{header}.{}", BASE64_URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret().as_bytes());
    decode(signature).is_some_and(|tag| hmac::verify(&key, signed.as_bytes(), &tag).is_ok())
}

/// A signature, as the cluster makes it.
#[cfg(test)]
pub(super) fn sign(content: &str, token: &BootstrapToken) -> String {
    let header = BASE64_URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{}"}}"#, token.id()));
    let signed = format!("{header}.{}", BASE64_URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret().as_bytes());
    format!("{header}..{}", BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_signature_of_that_content_by_that_token_is_valid() {
        let token: BootstrapToken = "abcdef.0123456789abcdef".parse().unwrap();
        let other: BootstrapToken = "abcdef.fedcba9876543210".parse().unwrap();
        let signature = sign("content", &token);
        assert!(is_valid(&signature, "content", &token));
        assert!(!is_valid(&signature, "other content", &token));
        assert!(!is_valid(&signature, "content", &other));
        assert!(!is_valid(&sign("content", &other), "content", &token));
    }

    #[test]
    fn a_signature_without_a_key_or_by_another_algorithm_is_refused() {
        let token: BootstrapToken = "abcdef.0123456789abcdef".parse().unwrap();
        let none = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"abcdef"}"#);
        for signature in
            ["", "..", "a.b.c", &format!("{none}.."), &sign("content", &token).replace("..", ".x.")]
        {
            assert!(!is_valid(signature, "content", &token), "{signature}");
        }
    }
}
