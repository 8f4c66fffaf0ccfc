//! The hash by which a user knows the cluster's CA.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use x509_parser::parse_x509_certificate;

/// The SHA-256 of a CA's public key (its `SubjectPublicKeyInfo`), as kubeadm prints it: `sha256:` and 64 digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CaCertHash([u8; 32]);

/// A text that is no hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no hash of a CA: write `sha256:` and 64 hexadecimal digits")]
pub(crate) struct BadHash(String);

impl CaCertHash {
    /// The hash of a certificate's public key; `None` if it is no certificate.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let (_, parsed) = parse_x509_certificate(certificate).ok()?;
        Some(Self(Sha256::digest(parsed.public_key().raw).into()))
    }
}

impl FromStr for CaCertHash {
    type Err = BadHash;

    fn from_str(text: &str) -> Result<Self, BadHash> {
        let bad = || BadHash(text.to_owned());
        let digits = text.strip_prefix("sha256:").ok_or_else(bad)?;
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut hash = [0; 32];
        for (index, byte) in hash.iter_mut().enumerate() {
            let pair = digits.get(2 * index..2 * index + 2).ok_or_else(bad)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        Ok(Self(hash))
    }
}

impl fmt::Display for CaCertHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_strictly_and_printed_the_same() {
        let text = format!("sha256:{}", "0aff".repeat(16));
        assert_eq!(text.parse::<CaCertHash>().unwrap().to_string(), text);
        for bad in
            ["", "sha256:", &text[7..], &format!("{text}0"), &format!("sha256:{}", "+f".repeat(32)), "md5:00"]
        {
            assert!(bad.parse::<CaCertHash>().is_err(), "{bad}");
        }
    }
}
