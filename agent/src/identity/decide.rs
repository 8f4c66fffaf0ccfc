//! The next step for the agent's identity.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The agent rotates a certificate after this share of its lifetime, in thousandths, plus a part of the spread.
const EARLIEST: i128 = 700;
const SPREAD: i128 = 200;

/// The agent takes its credentials for refused after the API server has refused them for so long in every answer. It may refuse them for
/// moments: while it starts, or while its authorities are replaced.
const REFUSAL_LIMIT: Duration = Duration::from_secs(30);

/// The bounds of the pause after a rotation that failed.
const SHORTEST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(1);

/// The credentials in the kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FoundCredentials {
    /// There is no kubeconfig.
    Absent,
    Unusable(String),
    /// Credentials of which the agent does not know when they expire: a token, a plugin.
    Endless,
    /// A certificate that the user made and renews.
    Given {
        ends: Timestamp,
    },
    /// A certificate that the agent requested.
    Own(Lifetime),
}

/// The lifetime of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lifetime {
    /// When the agent got the certificate. Not its own start: signers date that back, which is most of a short lifetime.
    pub(super) starts: Timestamp,
    pub(super) ends: Timestamp,
    /// Differs from certificate to certificate, so that the Nodes of a fleet do not rotate at once.
    pub(super) jitter: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum IdentityDecision {
    /// Use the credentials for good.
    Use,
    /// Use the certificate, and decide again then.
    Wait(Timestamp),
    /// Use the certificate, and request its successor before it expires.
    Rotate { ends: Timestamp },
    /// Request a certificate with the bootstrap credentials.
    Bootstrap(UnusableReason),
    /// There are no credentials to use. An agent that starts ends with this reason; an agent that runs reports it, and attends to its VMs.
    Refuse(UnusableReason),
}

/// Why the kubeconfig cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UnusableReason {
    Absent,
    Unusable(String),
    Expired(Timestamp),
    /// The API server does not accept the credentials, although they have not expired.
    Refused,
}

impl fmt::Display for UnusableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("No such file"),
            Self::Unusable(why) => f.write_str(why),
            Self::Expired(ends) => write!(f, "its certificate expired at {ends:.0}"),
            Self::Refused => f.write_str("the API server refuses its credentials (401 Unauthorized)"),
        }
    }
}

impl Lifetime {
    /// When to request the successor.
    pub(super) fn rotates(&self) -> Timestamp {
        let (starts, ends) = (self.starts.as_millisecond(), self.ends.as_millisecond());
        let life = i128::from(ends) - i128::from(starts);
        let share = EARLIEST + SPREAD * i128::from(self.jitter) / i128::from(u32::MAX);
        let at = i128::from(starts) + life * share / 1000;
        // It lies between two timestamps, unless the certificate ends before it starts.
        i64::try_from(at).ok().and_then(|at| Timestamp::from_millisecond(at).ok()).unwrap_or(self.ends)
    }
}

/// Decides by what is in the kubeconfig, and for how long the API server has refused it.
pub(super) fn decide(
    found: &FoundCredentials,
    refused_for: Duration,
    can_bootstrap: bool,
    now: Timestamp,
) -> IdentityDecision {
    let another = |reason| {
        if can_bootstrap { IdentityDecision::Bootstrap(reason) } else { IdentityDecision::Refuse(reason) }
    };
    let is_refused = refused_for >= REFUSAL_LIMIT;
    match found {
        FoundCredentials::Absent => another(UnusableReason::Absent),
        FoundCredentials::Unusable(why) => another(UnusableReason::Unusable(why.clone())),
        FoundCredentials::Given { ends } | FoundCredentials::Own(Lifetime { ends, .. }) if now >= *ends => {
            another(UnusableReason::Expired(*ends))
        }
        FoundCredentials::Own(_) if is_refused => another(UnusableReason::Refused),
        // The user's credentials are the user's to replace.
        _ if is_refused => IdentityDecision::Refuse(UnusableReason::Refused),
        FoundCredentials::Endless | FoundCredentials::Given { .. } => IdentityDecision::Use,
        FoundCredentials::Own(term) if now < term.rotates() => IdentityDecision::Wait(term.rotates()),
        FoundCredentials::Own(Lifetime { ends, .. }) => IdentityDecision::Rotate { ends: *ends },
    }
}

/// The pause after a rotation that failed: several tries fit into the time that is left.
pub(super) fn pause(ends: Timestamp, now: Timestamp) -> SignedDuration {
    (ends.duration_since(now) / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;
    use proptest::prelude::*;

    /// The API server has not refused the credentials.
    const ACCEPTED: Duration = Duration::ZERO;

    fn own(starts: i64, ends: i64, jitter: u32) -> FoundCredentials {
        FoundCredentials::Own(Lifetime { starts: at(starts), ends: at(ends), jitter })
    }

    #[test]
    fn the_next_step_depends_on_the_credentials() {
        let broken = || "it is broken".to_owned();
        // An error is the reason to bootstrap, or else to refuse.
        for (seen, now, expected) in [
            (FoundCredentials::Absent, 0, Err(UnusableReason::Absent)),
            (FoundCredentials::Unusable(broken()), 0, Err(UnusableReason::Unusable(broken()))),
            (FoundCredentials::Endless, 0, Ok(IdentityDecision::Use)),
            (FoundCredentials::Given { ends: at(10) }, 9, Ok(IdentityDecision::Use)),
            (FoundCredentials::Given { ends: at(10) }, 10, Err(UnusableReason::Expired(at(10)))),
            (own(0, 1000, 0), 0, Ok(IdentityDecision::Wait(at(700)))),
            (own(0, 1000, u32::MAX), 899, Ok(IdentityDecision::Wait(at(900)))),
            (own(0, 1000, 0), 700, Ok(IdentityDecision::Rotate { ends: at(1000) })),
            (own(0, 1000, 0), 999, Ok(IdentityDecision::Rotate { ends: at(1000) })),
            (own(0, 1000, 0), 1000, Err(UnusableReason::Expired(at(1000)))),
            // The file's time is after the certificate's end.
            (own(1000, 900, 0), 950, Err(UnusableReason::Expired(at(900)))),
        ] {
            let with_bootstrap = expected.clone().unwrap_or_else(IdentityDecision::Bootstrap);
            let without = expected.unwrap_or_else(IdentityDecision::Refuse);
            assert_eq!(decide(&seen, ACCEPTED, true, at(now)), with_bootstrap, "{seen:?} at {now}");
            assert_eq!(decide(&seen, ACCEPTED, false, at(now)), without, "{seen:?} at {now}");
        }
    }

    #[test]
    fn credentials_that_the_api_server_refuses_are_replaced_if_they_are_the_agents() {
        let own = || own(0, 1000, 0);
        let given = || FoundCredentials::Given { ends: at(1000) };
        let refuse = || IdentityDecision::Refuse(UnusableReason::Refused);
        for (seen, refused_for, now, with_bootstrap, without) in [
            (own(), 29, 100, IdentityDecision::Wait(at(700)), IdentityDecision::Wait(at(700))),
            (own(), 30, 100, IdentityDecision::Bootstrap(UnusableReason::Refused), refuse()),
            (own(), 30, 800, IdentityDecision::Bootstrap(UnusableReason::Refused), refuse()),
            (given(), 29, 100, IdentityDecision::Use, IdentityDecision::Use),
            (given(), 30, 100, refuse(), refuse()),
            (FoundCredentials::Endless, 30, 100, refuse(), refuse()),
        ] {
            let decision =
                |can_bootstrap| decide(&seen, Duration::from_secs(refused_for), can_bootstrap, at(now));
            assert_eq!((decision(true), decision(false)), (with_bootstrap, without), "{seen:?} at {now}");
        }
        // The end says more than the refusals that it causes.
        let ended = decide(&own(), Duration::MAX, false, at(1000));
        assert_eq!(ended, IdentityDecision::Refuse(UnusableReason::Expired(at(1000))));
    }

    #[test]
    fn a_reason_is_readable() {
        let words = UnusableReason::Expired("2026-11-16T10:00:00Z".parse().unwrap()).to_string();
        assert_eq!(words, "its certificate expired at 2026-11-16T10:00:00Z");
    }

    proptest! {
        #[test]
        fn a_certificate_is_rotated_after_seven_to_nine_tenths(
            starts in 0..4_000_000_000_i64, life in 1..400_000_000_i64, jitter: u32,
        ) {
            let term = Lifetime { starts: at(starts), ends: at(starts + life), jitter };
            let age = term.rotates().as_millisecond() - starts * 1000;
            prop_assert!(age >= life * 700 - 1 && age <= life * 900 + 1, "{age} of {life}");
        }

        #[test]
        fn a_certificate_that_has_not_expired_is_used(
            starts in 0..4_000_000_000_i64, life in 1..400_000_000_i64, jitter: u32, share in 0.0..1.0_f64, boot: bool,
        ) {
            let term = Lifetime { starts: at(starts), ends: at(starts + life), jitter };
            let now = at(starts).saturating_add(SignedDuration::from_secs(life).mul_f64(share)).unwrap();
            prop_assume!(now < term.ends);
            match decide(&FoundCredentials::Own(term), ACCEPTED, boot, now) {
                IdentityDecision::Wait(then) => {
                    prop_assert!(now < then && then < term.ends);
                    prop_assert_eq!(decide(&FoundCredentials::Own(term), ACCEPTED, boot, then), IdentityDecision::Rotate { ends: term.ends });
                }
                IdentityDecision::Rotate { ends } => prop_assert_eq!(ends, term.ends),
                other => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn an_agent_that_cannot_bootstrap_refuses_for_the_same_reason(now in 0..100_i64, ends in 0..100_i64, which in 0..5) {
            let seen = match which {
                0 => FoundCredentials::Absent,
                1 => FoundCredentials::Unusable("why".to_owned()),
                2 => FoundCredentials::Endless,
                3 => FoundCredentials::Given { ends: at(ends) },
                _ => own(0, ends, 7),
            };
            match (decide(&seen, ACCEPTED, true, at(now)), decide(&seen, ACCEPTED, false, at(now))) {
                (IdentityDecision::Bootstrap(one), IdentityDecision::Refuse(other)) => prop_assert_eq!(one, other),
                (one, other) => {
                    prop_assert_eq!(&one, &other);
                    prop_assert!(!matches!(one, IdentityDecision::Bootstrap(_) | IdentityDecision::Refuse(_)));
                }
            }
        }

        #[test]
        fn a_pause_is_bounded(ends in 0..4_000_000_000_i64, now in 0..4_000_000_000_i64) {
            let pause = pause(at(ends), at(now));
            prop_assert!(pause >= SHORTEST_PAUSE && pause <= LONGEST_PAUSE);
        }
    }
}
