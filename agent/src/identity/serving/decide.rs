//! The next step for the certificate of the kubelet API.

use jiff::Timestamp;

use crate::identity::alt_names::AltNames;
use crate::identity::decide::Lifetime;

/// A certificate that the cluster has issued for the kubelet API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IssuedCertificate {
    pub(super) lifetime: Lifetime,
    pub(super) alt_names: AltNames,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServingDecision {
    /// Decide again then, or when the address changes; at an unknown time while the Node has no address.
    Wait(Option<Timestamp>),
    /// Request a certificate with these names.
    Request(AltNames),
}

/// The next step: a certificate is requested when there is none for the Node's address, and before the one in use expires.
pub(super) fn decide(
    issued: Option<&IssuedCertificate>,
    wanted: Option<&AltNames>,
    now: Timestamp,
) -> ServingDecision {
    let Some(wanted) = wanted else { return ServingDecision::Wait(None) };
    match issued {
        Some(IssuedCertificate { lifetime, alt_names })
            if alt_names == wanted && now < lifetime.rotates() =>
        {
            ServingDecision::Wait(Some(lifetime.rotates()))
        }
        _ => ServingDecision::Request(wanted.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn names(address: &str) -> AltNames {
        AltNames::of_node(&"mac-1".parse().unwrap(), address.parse().unwrap())
    }

    fn issued(address: &str, ends: i64, jitter: u32) -> IssuedCertificate {
        let lifetime = Lifetime { starts: at(0), ends: at(ends), jitter };
        IssuedCertificate { lifetime, alt_names: names(address) }
    }

    #[test]
    fn the_next_step_follows_from_certificate_and_address() {
        let (here, there) = (names("10.0.0.1"), names("10.0.0.2"));
        let certificate = issued("10.0.0.1", 1000, 0);
        let waits = ServingDecision::Wait(Some(at(700)));
        for (what, issued, wanted, now, expected) in [
            ("no address", None, None, 0, ServingDecision::Wait(None)),
            ("no address any more", Some(&certificate), None, 0, ServingDecision::Wait(None)),
            ("no certificate", None, Some(&here), 0, ServingDecision::Request(here.clone())),
            ("a good one", Some(&certificate), Some(&here), 699, waits),
            ("an old one", Some(&certificate), Some(&here), 700, ServingDecision::Request(here.clone())),
            ("an expired one", Some(&certificate), Some(&here), 2000, ServingDecision::Request(here.clone())),
            ("another address", Some(&certificate), Some(&there), 0, ServingDecision::Request(there.clone())),
        ] {
            assert_eq!(decide(issued, wanted, at(now)), expected, "{what}");
        }
    }

    proptest! {
        #[test]
        fn a_certificate_is_never_waited_for_beyond_its_end(ends in 1i64..1_000_000, now in 0i64..2_000_000, jitter: u32) {
            let here = names("10.0.0.1");
            match decide(Some(&issued("10.0.0.1", ends, jitter)), Some(&here), at(now)) {
                ServingDecision::Wait(then) => {
                    prop_assert!(then.is_some_and(|then| at(now) < then && then < at(ends)));
                }
                ServingDecision::Request(wanted) => prop_assert_eq!(wanted, here),
            }
        }
    }
}
