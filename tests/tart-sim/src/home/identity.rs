//! What makes one virtual Mac differ from another: hardware model, machine identifier (ECID), MAC address.
//!
//! The first two are base64 of the small binary property lists that the virtualization framework hands out.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fastrand::Rng;

/// A fresh MAC address: locally administered, unicast.
pub(crate) fn random_mac_address() -> String {
    mac_address(&mut Rng::new())
}

/// The MAC address that these random numbers give.
pub(crate) fn mac_address(rng: &mut Rng) -> String {
    let mut octets = [0u8; 6];
    rng.fill(&mut octets);
    octets[0] = octets[0] & 0xfe | 0x02;
    octets.map(|octet| format!("{octet:02x}")).join(":")
}

/// A fresh machine identifier.
pub(crate) fn random_ecid() -> String {
    ecid(&mut Rng::new())
}

/// The machine identifier that these random numbers give: `{ECID: <64-bit integer>}`.
pub(crate) fn ecid(rng: &mut Rng) -> String {
    // A dictionary of one: the key is object 1, the value object 2.
    property_list(&[vec![0xd1, 1, 2], string("ECID"), integer(rng.u64(1..1 << 62))])
}

/// The hardware model of a virtual Mac, the same for all.
pub(crate) fn hardware_model() -> String {
    let objects = [
        // A dictionary of three: keys are objects 1 to 3, values objects 4 to 6.
        vec![0xd3, 1, 2, 3, 4, 5, 6],
        string("DataRepresentationVersion"),
        string("MinimumSupportedOS"),
        string("PlatformVersion"),
        vec![0x10, 1],
        // An array of three: objects 7, 8 and 8.
        vec![0xa3, 7, 8, 8],
        vec![0x10, 2],
        vec![0x10, 13],
        vec![0x10, 0],
    ];
    property_list(&objects)
}

/// An ASCII string; its length has a byte of its own unless it is short.
fn string(text: &str) -> Vec<u8> {
    match u8::try_from(text.len()) {
        Ok(length) if length < 15 => [&[0x50 | length], text.as_bytes()].concat(),
        length => [&[0x5f, 0x10, length.unwrap_or(u8::MAX)], text.as_bytes()].concat(),
    }
}

fn integer(value: u64) -> Vec<u8> {
    [&[0x13][..], &value.to_be_bytes()].concat()
}

/// Frames objects as a `bplist00` with one-byte offsets and references, the first object being the root.
fn property_list(objects: &[Vec<u8>]) -> String {
    let mut bytes = b"bplist00".to_vec();
    let mut offsets = Vec::new();
    for object in objects {
        offsets.push(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
        bytes.extend(object);
    }
    let table_offset = bytes.len() as u64;
    bytes.extend(&offsets);
    bytes.extend([0, 0, 0, 0, 0, 0, 1, 1]);
    bytes.extend((offsets.len() as u64).to_be_bytes());
    bytes.extend(0u64.to_be_bytes());
    bytes.extend(table_offset.to_be_bytes());
    BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_unicast_and_locally_administered() {
        for _ in 0..100 {
            let mac = random_mac_address();
            let first = u8::from_str_radix(&mac[..2], 16).unwrap();
            assert_eq!((first & 0x03, mac.len()), (0x02, 17), "{mac}");
        }
    }

    #[test]
    fn property_lists_begin_as_captured_ones_do() {
        assert!(random_ecid().starts_with("YnBsaXN0MDDR"));
        assert!(hardware_model().starts_with("YnBsaXN0MDDT"));
        assert_ne!(random_ecid(), random_ecid());
    }
}
