//! Pressure on disk, memory, process ids and addresses. It begins with the first shortage, and ends after a time without one.

use std::time::Duration;

use jiff::Timestamp;

use super::SignalObservations;
use super::thresholds::{Signal, Thresholds};
use crate::os::availability::Availability;
use crate::os::dhcp_leases;

/// Pressure on one resource.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Pressure {
    #[default]
    None,
    /// There is a shortage, or there was one within the transition period.
    Short {
        /// With the figures of its beginning: current ones would change the Node's status at every observation.
        message: String,
        /// The time of the last shortage.
        last: Timestamp,
    },
}

impl Pressure {
    /// The pressure after one more observation, which found this shortage or none.
    #[must_use]
    fn after(self, shortage: Option<String>, period: Duration, now: Timestamp) -> Self {
        match (self, shortage) {
            (Self::None, Some(message)) | (Self::Short { message, .. }, Some(_)) => {
                Self::Short { message, last: now }
            }
            (Self::Short { message, last }, None) if now < last + period => Self::Short { message, last },
            (Self::None | Self::Short { .. }, None) => Self::None,
        }
    }

    pub(in crate::node) fn message(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Short { message, .. } => Some(message),
        }
    }
}

/// Pressure on all resources.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::node) struct Pressures {
    pub(in crate::node) disk: Pressure,
    pub(in crate::node) memory: Pressure,
    pub(in crate::node) pid: Pressure,
    pub(in crate::node) dhcp_addresses: Pressure,
}

impl Pressures {
    /// The pressures after one more observation. A signal that could not be read changes nothing.
    #[must_use]
    pub(in crate::node) fn after(
        self,
        seen: &SignalObservations,
        thresholds: &Thresholds,
        period: Duration,
        now: Timestamp,
    ) -> Self {
        let next = |before: Pressure, signals: &[(Signal, Option<Availability>)]| {
            let mut short =
                signals.iter().filter_map(|(signal, left)| thresholds.shortage(*signal, (*left)?));
            match short.next() {
                None if signals.iter().all(|(_, left)| left.is_none()) => before,
                shortage => before.after(shortage, period, now),
            }
        };
        Self {
            disk: next(self.disk, &[(Signal::NodeFs, seen.nodefs), (Signal::ImageFs, seen.imagefs)]),
            memory: next(self.memory, &[(Signal::Memory, seen.memory)]),
            pid: next(self.pid, &[(Signal::Pid, seen.pids)]),
            // Without a file of leases no address is lent.
            dhcp_addresses: self.dhcp_addresses.after(
                seen.dhcp_addresses.and_then(dhcp_leases::shortage),
                period,
                now,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;
    use proptest::prelude::*;

    const PERIOD: Duration = Duration::from_mins(5);

    fn left(available: u64) -> Availability {
        Availability { available, total: 100 }
    }

    #[test]
    fn pressure_begins_at_once_and_ends_after_the_period() {
        let thresholds = Thresholds::parse("nodefs.available<10%,imagefs.available<20%").unwrap();
        let full = SignalObservations {
            nodefs: Some(left(50)),
            imagefs: Some(left(19)),
            ..SignalObservations::default()
        };
        let free = SignalObservations {
            nodefs: Some(left(50)),
            imagefs: Some(left(20)),
            ..SignalObservations::default()
        };
        // (time, observation, whether there is pressure then)
        let table = [
            (0, &free, false),
            (10, &full, true),
            (20, &free, true),
            (309, &free, true),
            (310, &free, false),
            (320, &full, true),
            (500, &full, true),
            (799, &SignalObservations::default(), true),
            (900, &SignalObservations::default(), true),
            (901, &free, false),
        ];
        let mut pressures = Pressures::default();
        for (time, seen, expected) in table {
            pressures = pressures.after(seen, &thresholds, PERIOD, at(time));
            assert_eq!(pressures.disk.message().is_some(), expected, "at {time}: {pressures:?}");
            assert_eq!(pressures.memory, Pressure::None);
        }
    }

    #[test]
    fn the_message_has_the_figures_of_the_beginning() {
        let first = Pressure::None.after(Some("9 of 100".into()), PERIOD, at(0));
        let later = first.after(Some("8 of 100".into()), PERIOD, at(10));
        assert_eq!(later.message(), Some("9 of 100"));
    }

    proptest! {
        #[test]
        fn there_is_pressure_exactly_while_a_shortage_is_within_the_period(
            looks in proptest::collection::vec((1i64..400, any::<bool>()), 1..40)
        ) {
            let mut pressure = Pressure::None;
            let (mut now, mut last) = (0, None);
            for (pause, short) in looks {
                now += pause;
                pressure = pressure.after(short.then(|| "short".to_owned()), PERIOD, at(now));
                if short {
                    last = Some(now);
                }
                let expected = short
                    || (pressure.message().is_some() && last.is_some_and(|last| now < last + 300));
                prop_assert_eq!(pressure.message().is_some(), expected);
                if last.is_none_or(|last| now >= last + 300) && !short {
                    prop_assert_eq!(&pressure, &Pressure::None);
                }
            }
        }
    }
}
