//! Pressure on disk, memory and process ids: at once when something runs short, gone only after it has been enough for a while.

use std::time::Duration;

use jiff::Timestamp;

use super::thresholds::{Signal, Thresholds};
use crate::os::availability::Availability;
use crate::os::dhcp_leases;

/// One kind of pressure on the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Pressure {
    /// There is enough.
    #[default]
    None,
    /// There is too little, or was a short while ago.
    Short {
        /// The figures when it began: live ones would make every look a change.
        message: String,
        /// When there was last too little.
        last: Timestamp,
    },
}

impl Pressure {
    /// The pressure after one more look: `shortage` says what was too little, `None` that all was enough.
    #[must_use]
    pub(crate) fn after(self, shortage: Option<String>, period: Duration, now: Timestamp) -> Self {
        match (self, shortage) {
            (Self::None, Some(message)) | (Self::Short { message, .. }, Some(_)) => {
                Self::Short { message, last: now }
            }
            (Self::Short { message, last }, None) if now < last + period => Self::Short { message, last },
            (Self::None | Self::Short { .. }, None) => Self::None,
        }
    }

    /// What is too little, when something is.
    pub(crate) fn message(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Short { message, .. } => Some(message),
        }
    }
}

/// What a look at the host found; what could not be read is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reading {
    /// Memory in bytes.
    pub(crate) memory: Option<Availability>,
    /// The volume of the state directory, in bytes.
    pub(crate) nodefs: Option<Availability>,
    /// The volume of tart's home, in bytes.
    pub(crate) imagefs: Option<Availability>,
    /// Processes.
    pub(crate) pids: Option<Availability>,
    /// Addresses for VMs.
    pub(crate) addresses: Option<Availability>,
}

/// All kinds of pressure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Pressures {
    /// Too little space.
    pub(crate) disk: Pressure,
    /// Too little memory.
    pub(crate) memory: Pressure,
    /// Too few process ids.
    pub(crate) pid: Pressure,
    /// Too few addresses for VMs.
    pub(crate) addresses: Pressure,
}

impl Pressures {
    /// The pressures after one more look. What could not be read stays as it was.
    #[must_use]
    pub(crate) fn after(
        self,
        seen: &Reading,
        thresholds: &Thresholds,
        period: Duration,
        now: Timestamp,
    ) -> Self {
        let look = |before: Pressure, figures: &[(Signal, Option<Availability>)]| {
            let mut short =
                figures.iter().filter_map(|(signal, figure)| thresholds.shortage(*signal, (*figure)?));
            match short.next() {
                None if figures.iter().all(|(_, figure)| figure.is_none()) => before,
                shortage => before.after(shortage, period, now),
            }
        };
        Self {
            disk: look(self.disk, &[(Signal::NodeFs, seen.nodefs), (Signal::ImageFs, seen.imagefs)]),
            memory: look(self.memory, &[(Signal::Memory, seen.memory)]),
            pid: look(self.pid, &[(Signal::Pid, seen.pids)]),
            // Without a file of leases none is lent.
            addresses: self.addresses.after(seen.addresses.and_then(dhcp_leases::shortage), period, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: Duration = Duration::from_mins(5);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn figure(available: u64) -> Availability {
        Availability { available, total: 100 }
    }

    #[test]
    fn pressure_comes_at_once_and_goes_slowly() {
        let thresholds = Thresholds::parse("nodefs.available<10%,imagefs.available<20%").unwrap();
        let full = Reading { nodefs: Some(figure(50)), imagefs: Some(figure(19)), ..Reading::default() };
        let free = Reading { nodefs: Some(figure(50)), imagefs: Some(figure(20)), ..Reading::default() };
        // (time, what is seen, whether there is pressure then)
        let looks = [
            (0, &free, false),
            (10, &full, true),
            (20, &free, true),
            (309, &free, true),
            (310, &free, false),
            (320, &full, true),
            (500, &full, true),
            (799, &Reading::default(), true),
            (900, &Reading::default(), true),
            (901, &free, false),
        ];
        let mut pressures = Pressures::default();
        for (time, seen, expected) in looks {
            pressures = pressures.after(seen, &thresholds, PERIOD, at(time));
            assert_eq!(pressures.disk.message().is_some(), expected, "at {time}: {pressures:?}");
            assert_eq!(pressures.memory, Pressure::None);
        }
    }

    #[test]
    fn the_figures_are_those_of_the_beginning() {
        let first = Pressure::None.after(Some("9 of 100".into()), PERIOD, at(0));
        let later = first.after(Some("8 of 100".into()), PERIOD, at(10));
        assert_eq!(later.message(), Some("9 of 100"));
    }

    proptest! {
        #[test]
        fn pressure_holds_exactly_while_there_was_a_shortage_in_the_period(
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
