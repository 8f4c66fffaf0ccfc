//! `/etc/kcpassword`: the password with which macOS logs a user in at boot, hidden from no one by a fixed key.

const KEY: [u8; 11] = [0x7d, 0x89, 0x52, 0x23, 0xd2, 0xbc, 0xdd, 0xea, 0xa3, 0xb9, 0x1f];
/// macOS writes files whose length is a multiple of this.
const BLOCK: usize = 12;
/// What macOS puts in the place of a password that was wrong.
const SEALED: &[u8] = b"<sealed>";

fn mask(bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
    bytes.into_iter().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key).collect()
}

/// The file for a password. The password ends with a zero byte, whatever its length.
pub(super) fn encode(password: &[u8]) -> Vec<u8> {
    let length = (password.len() + 1).next_multiple_of(BLOCK);
    mask(password.iter().copied().chain(std::iter::repeat(0)).take(length))
}

/// Whether macOS has replaced the password in the file because it was wrong.
pub(super) fn is_sealed(file: &[u8]) -> bool {
    mask(file.iter().copied()).starts_with(SEALED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_known_password_has_a_known_file() {
        assert_eq!(encode(b"")[..], [0x7d, 0x89, 0x52, 0x23, 0xd2, 0xbc, 0xdd, 0xea, 0xa3, 0xb9, 0x1f, 0x7d]);
        assert_eq!(encode(b"admin")[..6], [0x1c, 0xed, 0x3f, 0x4a, 0xbc, 0xbc]);
    }

    #[test]
    fn a_wrong_password_is_seen_in_the_file() {
        assert!(is_sealed(&encode(b"<sealed>")));
        assert!(!is_sealed(&encode(b"secret")) && !is_sealed(b""));
    }

    proptest! {
        #[test]
        fn a_file_holds_the_password_and_a_zero_byte(password in prop::collection::vec(1_u8.., 0..40)) {
            let file = encode(&password);
            prop_assert!(file.len().is_multiple_of(12));
            let plain = mask(file);
            prop_assert_eq!(&plain[..password.len()], &password[..]);
            prop_assert!(plain[password.len()..].iter().all(|byte| *byte == 0) && plain.len() > password.len());
        }
    }
}
