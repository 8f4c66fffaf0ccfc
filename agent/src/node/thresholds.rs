//! `--eviction-hard`: below which amounts the host is short of something.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::os::availability::Availability;
use crate::quantity;

/// The kubelet's own defaults, and one for processes, which it leaves to the operator.
pub(crate) const DEFAULT: &str =
    "memory.available<100Mi,nodefs.available<10%,imagefs.available<15%,pid.available<5%";

/// What the host can be short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    /// Memory.
    Memory,
    /// Space on the volume of the state directory.
    NodeFs,
    /// Space on the volume of tart's home, where VMs and images are.
    ImageFs,
    /// Process ids.
    Pid,
}

const SIGNALS: [(Signal, &str); 4] = [
    (Signal::Memory, "memory.available"),
    (Signal::NodeFs, "nodefs.available"),
    (Signal::ImageFs, "imagefs.available"),
    (Signal::Pid, "pid.available"),
];

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = SIGNALS.iter().find(|(signal, _)| signal == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// The least amount that is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Least {
    /// So much.
    Amount(u64),
    /// So many hundredths of a percent of all there is.
    Share(u16),
}

impl Least {
    /// The amount, where there is so much in total.
    pub(crate) fn of(self, total: u64) -> u64 {
        match self {
            Self::Amount(amount) => amount,
            Self::Share(share) => {
                u64::try_from(u128::from(total) * u128::from(share) / 10_000).unwrap_or(u64::MAX)
            }
        }
    }
}

impl fmt::Display for Least {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amount(amount) => amount.fmt(f),
            Self::Share(share) => write!(f, "{}%", f64::from(*share) / 100.0),
        }
    }
}

/// All thresholds; what has none is never short.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Thresholds(BTreeMap<Signal, Least>);

/// A threshold that is none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BadThreshold {
    /// It has another form.
    #[error("`{0}` is not `signal<amount`, such as `memory.available<100Mi` or `nodefs.available<10%`")]
    Form(String),
    /// There is no such signal.
    #[error(
        "`{0}` is not a signal: memory.available, nodefs.available, imagefs.available and pid.available are"
    )]
    Signal(String),
    /// The amount is not one.
    #[error("`{0}` is neither an amount nor a percentage")]
    Amount(String),
}

impl Thresholds {
    /// Reads `signal<amount,signal<amount`.
    pub(crate) fn parse(text: &str) -> Result<Self, BadThreshold> {
        let mut thresholds = BTreeMap::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, amount) = item.split_once('<').ok_or_else(|| BadThreshold::Form(item.to_owned()))?;
            let signal = SIGNALS.iter().find(|(_, known)| *known == name);
            let (signal, _) = signal.ok_or_else(|| BadThreshold::Signal(name.to_owned()))?;
            let least = least(amount).ok_or_else(|| BadThreshold::Amount(amount.to_owned()))?;
            thresholds.insert(*signal, least);
        }
        Ok(Self(thresholds))
    }

    /// The threshold for a signal.
    pub(crate) fn least(&self, signal: Signal) -> Option<Least> {
        self.0.get(&signal).copied()
    }

    /// Why there is too little, in words, when there is.
    pub(crate) fn shortage(&self, signal: Signal, figure: Availability) -> Option<String> {
        let least = self.least(signal)?;
        let needed = least.of(figure.total);
        (figure.available < needed).then(|| {
            format!("{signal} is {} of {}, and must not be below {least}", figure.available, figure.total)
        })
    }
}

fn least(text: &str) -> Option<Least> {
    let Some(percent) = text.strip_suffix('%') else {
        return quantity::whole(&Quantity(text.to_owned())).map(Least::Amount);
    };
    // Thousandths of a percent are more than anybody needs; hundredths are kept.
    let hundredths = quantity::milli(&Quantity(percent.to_owned()))? / 10;
    let plain = percent.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    u16::try_from(hundredths).ok().filter(|share| plain && *share <= 10_000).map(Least::Share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn thresholds_are_read_as_the_kubelet_reads_them() {
        let thresholds = Thresholds::parse(DEFAULT).unwrap();
        assert_eq!(thresholds.least(Signal::Memory), Some(Least::Amount(100 << 20)));
        assert_eq!(thresholds.least(Signal::NodeFs), Some(Least::Share(1000)));
        assert_eq!(Thresholds::parse(""), Ok(Thresholds::default()));
        let fine = Thresholds::parse("pid.available<7.5%").unwrap();
        assert_eq!(fine.least(Signal::Pid), Some(Least::Share(750)));
    }

    #[test]
    fn what_is_refused_says_why() {
        assert_eq!(Thresholds::parse("memory"), Err(BadThreshold::Form("memory".into())));
        assert_eq!(Thresholds::parse("disk<1"), Err(BadThreshold::Signal("disk".into())));
        for amount in ["", "x", "101%", "1Ki%", "-1", "%"] {
            let text = format!("pid.available<{amount}");
            assert_eq!(Thresholds::parse(&text), Err(BadThreshold::Amount(amount.into())), "{amount}");
        }
    }

    #[test]
    fn too_little_is_told_with_its_figures() {
        let thresholds = Thresholds::parse("nodefs.available<10%").unwrap();
        let figure = |available| Availability { available, total: 1000 };
        assert_eq!(thresholds.shortage(Signal::NodeFs, figure(100)), None);
        assert_eq!(
            thresholds.shortage(Signal::NodeFs, figure(99)).unwrap(),
            "nodefs.available is 99 of 1000, and must not be below 10%"
        );
        assert_eq!(thresholds.shortage(Signal::Memory, figure(0)), None, "it has no threshold");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z.<%0-9,MGi]{0,30}") {
            let _ = Thresholds::parse(&text);
        }

        #[test]
        fn a_share_is_never_more_than_all(share in 0u16..=10_000, total: u64) {
            prop_assert!(Least::Share(share).of(total) <= total);
        }
    }
}
