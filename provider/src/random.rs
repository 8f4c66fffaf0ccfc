//! Names that are like no other.

use std::fmt::Write as _;

/// A random UUID (version 4).
pub(crate) fn uuid() -> String {
    let mut bytes = rand::random::<[u8; 16]>();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes.iter().enumerate().fold(String::with_capacity(36), |mut text, (at, byte)| {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_has_its_version_and_its_dashes() {
        let uuid = super::uuid();
        let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(&uuid[14..15], "4");
        assert_ne!(uuid, super::uuid());
    }
}
