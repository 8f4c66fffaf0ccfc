//! What to do next about the agent's own identity.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

/// A certificate is replaced when this share of its life is over, in thousandths: the earliest, and by how much later
/// some are.
const EARLIEST: i128 = 700;
const SPREAD: i128 = 200;

/// The bounds of the pause after a rotation that failed.
const SHORTEST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(1);

/// What the kubeconfig holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// There is none.
    Absent,
    /// Nothing that can be used, for a reason.
    Unusable(String),
    /// Credentials whose end the agent does not know: a token, a plugin.
    Endless,
    /// A certificate that somebody else made and looks after.
    Given {
        /// When it ends.
        ends: Timestamp,
    },
    /// A certificate that the agent asked for itself.
    Own(Term),
}

/// The time that a certificate serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Term {
    /// When the agent got it. Not when it says that it begins: signers date that back, which is most of a short life.
    pub(crate) starts: Timestamp,
    /// When it ends.
    pub(crate) ends: Timestamp,
    /// A number that differs from certificate to certificate, so that a fleet does not rotate all at once.
    pub(crate) jitter: u32,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdentityDecision {
    /// Use what is there, for good.
    Use,
    /// Use it, and decide again then.
    Wait(Timestamp),
    /// Use it, and ask for its successor before it ends.
    Rotate {
        /// When it ends.
        ends: Timestamp,
    },
    /// Ask for a certificate with the bootstrap credentials.
    Bootstrap(RotationReason),
    /// Give up, in words.
    Refuse(RotationReason),
}

/// Why the kubeconfig cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RotationReason {
    /// There is none.
    Absent,
    /// It does not hold what it should.
    Unusable(String),
    /// Its certificate has ended.
    Expired(Timestamp),
}

impl fmt::Display for RotationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("No such file"),
            Self::Unusable(why) => f.write_str(why),
            Self::Expired(ends) => write!(f, "its certificate expired at {ends:.0}"),
        }
    }
}

impl Term {
    /// When to ask for the successor.
    pub(crate) fn rotates(&self) -> Timestamp {
        let (starts, ends) = (self.starts.as_millisecond(), self.ends.as_millisecond());
        let life = i128::from(ends) - i128::from(starts);
        let share = EARLIEST + SPREAD * i128::from(self.jitter) / i128::from(u32::MAX);
        let at = i128::from(starts) + life * share / 1000;
        // Between two timestamps, so it is one, if there is a life at all.
        i64::try_from(at).ok().and_then(|at| Timestamp::from_millisecond(at).ok()).unwrap_or(self.ends)
    }
}

/// Decides what to do about the agent's identity.
pub(crate) fn decide(seen: &Seen, can_bootstrap: bool, now: Timestamp) -> IdentityDecision {
    let another = |reason| {
        if can_bootstrap { IdentityDecision::Bootstrap(reason) } else { IdentityDecision::Refuse(reason) }
    };
    match seen {
        Seen::Absent => another(RotationReason::Absent),
        Seen::Unusable(why) => another(RotationReason::Unusable(why.clone())),
        Seen::Endless => IdentityDecision::Use,
        Seen::Given { ends } if now < *ends => IdentityDecision::Use,
        Seen::Own(term) if now < term.rotates() && now < term.ends => IdentityDecision::Wait(term.rotates()),
        Seen::Own(Term { ends, .. }) if now < *ends => IdentityDecision::Rotate { ends: *ends },
        Seen::Given { ends } | Seen::Own(Term { ends, .. }) => another(RotationReason::Expired(*ends)),
    }
}

/// How long to wait after a rotation that failed: several tries fit into what is left.
pub(crate) fn pause(ends: Timestamp, now: Timestamp) -> SignedDuration {
    (ends.duration_since(now) / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn own(starts: i64, ends: i64, jitter: u32) -> Seen {
        Seen::Own(Term { starts: at(starts), ends: at(ends), jitter })
    }

    #[test]
    fn what_is_done_with_what_is_there() {
        let broken = || "it is broken".to_owned();
        for (seen, now, with_bootstrap, without) in [
            (
                Seen::Absent,
                0,
                IdentityDecision::Bootstrap(RotationReason::Absent),
                IdentityDecision::Refuse(RotationReason::Absent),
            ),
            (
                Seen::Unusable(broken()),
                0,
                IdentityDecision::Bootstrap(RotationReason::Unusable(broken())),
                IdentityDecision::Refuse(RotationReason::Unusable(broken())),
            ),
            (Seen::Endless, 0, IdentityDecision::Use, IdentityDecision::Use),
            (Seen::Given { ends: at(10) }, 9, IdentityDecision::Use, IdentityDecision::Use),
            (
                Seen::Given { ends: at(10) },
                10,
                IdentityDecision::Bootstrap(RotationReason::Expired(at(10))),
                IdentityDecision::Refuse(RotationReason::Expired(at(10))),
            ),
            (own(0, 1000, 0), 0, IdentityDecision::Wait(at(700)), IdentityDecision::Wait(at(700))),
            (own(0, 1000, u32::MAX), 899, IdentityDecision::Wait(at(900)), IdentityDecision::Wait(at(900))),
            (
                own(0, 1000, 0),
                700,
                IdentityDecision::Rotate { ends: at(1000) },
                IdentityDecision::Rotate { ends: at(1000) },
            ),
            (
                own(0, 1000, 0),
                999,
                IdentityDecision::Rotate { ends: at(1000) },
                IdentityDecision::Rotate { ends: at(1000) },
            ),
            (
                own(0, 1000, 0),
                1000,
                IdentityDecision::Bootstrap(RotationReason::Expired(at(1000))),
                IdentityDecision::Refuse(RotationReason::Expired(at(1000))),
            ),
            // Got after its end: a file with a wrong date.
            (
                own(1000, 900, 0),
                950,
                IdentityDecision::Bootstrap(RotationReason::Expired(at(900))),
                IdentityDecision::Refuse(RotationReason::Expired(at(900))),
            ),
        ] {
            assert_eq!(decide(&seen, true, at(now)), with_bootstrap, "{seen:?} at {now}");
            assert_eq!(decide(&seen, false, at(now)), without, "{seen:?} at {now}");
        }
    }

    #[test]
    fn reasons_are_words() {
        let words = RotationReason::Expired("2026-11-16T10:00:00Z".parse().unwrap()).to_string();
        assert_eq!(words, "its certificate expired at 2026-11-16T10:00:00Z");
    }

    proptest! {
        #[test]
        fn a_certificate_is_rotated_after_seven_to_nine_tenths(
            starts in 0..4_000_000_000_i64, life in 1..400_000_000_i64, jitter: u32,
        ) {
            let term = Term { starts: at(starts), ends: at(starts + life), jitter };
            let age = term.rotates().as_millisecond() - starts * 1000;
            prop_assert!(age >= life * 700 - 1 && age <= life * 900 + 1, "{age} of {life}");
        }

        #[test]
        fn a_certificate_that_has_not_ended_is_used(
            starts in 0..4_000_000_000_i64, life in 1..400_000_000_i64, jitter: u32, share in 0.0..1.0_f64, boot: bool,
        ) {
            let term = Term { starts: at(starts), ends: at(starts + life), jitter };
            let now = at(starts).saturating_add(SignedDuration::from_secs(life).mul_f64(share)).unwrap();
            prop_assume!(now < term.ends);
            match decide(&Seen::Own(term), boot, now) {
                IdentityDecision::Wait(then) => {
                    prop_assert!(now < then && then < term.ends);
                    prop_assert_eq!(decide(&Seen::Own(term), boot, then), IdentityDecision::Rotate { ends: term.ends });
                }
                IdentityDecision::Rotate { ends } => prop_assert_eq!(ends, term.ends),
                other => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn only_those_who_can_bootstrap_do_and_all_others_are_told(now in 0..100_i64, ends in 0..100_i64, which in 0..5) {
            let seen = match which {
                0 => Seen::Absent,
                1 => Seen::Unusable("why".to_owned()),
                2 => Seen::Endless,
                3 => Seen::Given { ends: at(ends) },
                _ => own(0, ends, 7),
            };
            match (decide(&seen, true, at(now)), decide(&seen, false, at(now))) {
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
