//! `--eviction-hard`: the thresholds below which a signal is a shortage.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::os::availability::Availability;
use crate::quantity;

/// The kubelet's defaults, and one for processes, for which the kubelet has none.
pub(crate) const DEFAULT: &str =
    "memory.available<100Mi,nodefs.available<10%,imagefs.available<15%,pid.available<5%";

words! {
    /// The kubelet's eviction signals.
    #[derive(PartialOrd, Ord)]
    pub(crate) enum Signal {
        Memory = "memory.available",
        /// Space on the volume of the state directory.
        NodeFs = "nodefs.available",
        /// Space on the volume of tart's home, which holds VMs and images.
        ImageFs = "imagefs.available",
        Pid = "pid.available",
    }
}

/// The least amount that is no shortage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThresholdValue {
    Quantity(u64),
    /// Of the total, in hundredths of a percent.
    Percentage(u16),
}

impl ThresholdValue {
    /// The amount, for a total.
    pub(crate) fn of(self, total: u64) -> u64 {
        match self {
            Self::Quantity(amount) => amount,
            Self::Percentage(share) => {
                u64::try_from(u128::from(total) * u128::from(share) / 10_000).unwrap_or(u64::MAX)
            }
        }
    }
}

impl fmt::Display for ThresholdValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantity(amount) => amount.fmt(f),
            Self::Percentage(share) => write!(f, "{}%", f64::from(*share) / 100.0),
        }
    }
}

/// All thresholds; a signal without one is never a shortage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Thresholds(BTreeMap<Signal, ThresholdValue>);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BadThreshold {
    #[error("`{0}` is not `signal<amount`, such as `memory.available<100Mi` or `nodefs.available<10%`")]
    Form(String),
    #[error(
        "`{0}` is not a signal: memory.available, nodefs.available, imagefs.available and pid.available are"
    )]
    Signal(String),
    #[error("`{0}` is neither an amount nor a percentage")]
    Amount(String),
}

impl Thresholds {
    /// Parses `signal<amount,signal<amount`.
    pub(crate) fn parse(text: &str) -> Result<Self, BadThreshold> {
        let mut thresholds = BTreeMap::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, amount) = item.split_once('<').ok_or_else(|| BadThreshold::Form(item.to_owned()))?;
            let signal = Signal::ALL.into_iter().find(|signal| signal.as_str() == name);
            let signal = signal.ok_or_else(|| BadThreshold::Signal(name.to_owned()))?;
            let value = value(amount).ok_or_else(|| BadThreshold::Amount(amount.to_owned()))?;
            thresholds.insert(signal, value);
        }
        Ok(Self(thresholds))
    }

    pub(crate) fn value(&self, signal: Signal) -> Option<ThresholdValue> {
        self.0.get(&signal).copied()
    }

    /// The shortage in words, if there is one.
    pub(crate) fn shortage(&self, signal: Signal, left: Availability) -> Option<String> {
        let threshold = self.value(signal)?;
        (left.available < threshold.of(left.total)).then(|| {
            format!("{signal} is {} of {}, and must not be below {threshold}", left.available, left.total)
        })
    }
}

fn value(text: &str) -> Option<ThresholdValue> {
    let Some(percent) = text.strip_suffix('%') else {
        return quantity::whole(&Quantity(text.to_owned())).map(ThresholdValue::Quantity);
    };
    let hundredths = quantity::milli(&Quantity(percent.to_owned()))? / 10;
    let plain = percent.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    u16::try_from(hundredths).ok().filter(|share| plain && *share <= 10_000).map(ThresholdValue::Percentage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn thresholds_are_parsed_as_the_kubelet_parses_them() {
        let thresholds = Thresholds::parse(DEFAULT).unwrap();
        assert_eq!(thresholds.value(Signal::Memory), Some(ThresholdValue::Quantity(100 << 20)));
        assert_eq!(thresholds.value(Signal::NodeFs), Some(ThresholdValue::Percentage(1000)));
        assert_eq!(Thresholds::parse(""), Ok(Thresholds::default()));
        let fine = Thresholds::parse("pid.available<7.5%").unwrap();
        assert_eq!(fine.value(Signal::Pid), Some(ThresholdValue::Percentage(750)));
    }

    #[test]
    fn a_bad_threshold_is_refused_with_its_fault() {
        assert_eq!(Thresholds::parse("memory"), Err(BadThreshold::Form("memory".into())));
        assert_eq!(Thresholds::parse("disk<1"), Err(BadThreshold::Signal("disk".into())));
        for amount in ["", "x", "101%", "1Ki%", "-1", "%"] {
            let text = format!("pid.available<{amount}");
            assert_eq!(Thresholds::parse(&text), Err(BadThreshold::Amount(amount.into())), "{amount}");
        }
    }

    #[test]
    fn a_shortage_has_its_figures_in_words() {
        let thresholds = Thresholds::parse("nodefs.available<10%").unwrap();
        let left = |available| Availability { available, total: 1000 };
        assert_eq!(thresholds.shortage(Signal::NodeFs, left(100)), None);
        assert_eq!(
            thresholds.shortage(Signal::NodeFs, left(99)).unwrap(),
            "nodefs.available is 99 of 1000, and must not be below 10%"
        );
        assert_eq!(thresholds.shortage(Signal::Memory, left(0)), None, "memory has no threshold");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-z.<%0-9,MGi]{0,30}") {
            let _ = Thresholds::parse(&text);
        }

        #[test]
        fn a_percentage_is_never_more_than_the_total(share in 0u16..=10_000, total: u64) {
            prop_assert!(ThresholdValue::Percentage(share).of(total) <= total);
        }
    }
}
