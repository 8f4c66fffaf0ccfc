//! The names of hosts, and what they say.

use crate::random;

/// What the names of free hosts begin with. It is never empty: every host would be free.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolPrefix(String);

/// Neither the machine nor the provider says which hosts are free.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no pool: set spec.adoptPoolPrefix, or the provider's --default-adopt-pool-prefix")]
pub(crate) struct NoPoolPrefix;

impl PoolPrefix {
    /// `None` if the text is empty.
    pub(crate) fn new(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// The machine's own prefix, or else the provider's default.
    pub(crate) fn choose(own: Option<&str>, default: Option<&Self>) -> Result<Self, NoPoolPrefix> {
        own.and_then(Self::new).or_else(|| default.cloned()).ok_or(NoPoolPrefix)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A name for a host that is free.
    pub(crate) fn new_name(&self) -> String {
        format!("{}{}", self.0, random::uuid())
    }
}

/// What the name of a host that a claim has begun with starts with.
const PENDING: &str = "tuist-claim-pending-";
/// What the name of a host that failed starts with.
const QUARANTINED: &str = "tuist-quarantined-";

/// What the name of a host says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostName<'a> {
    /// A claim has begun and was not finished.
    Pending,
    /// It failed, and waits for an operator.
    Quarantined,
    /// It is free.
    Free,
    /// A machine has it, or an operator, or another pool.
    Taken(&'a str),
}

impl<'a> HostName<'a> {
    /// Reads a name. A prefix as short as `tuist-` would include the other names, so these come first.
    pub(crate) fn of(name: &'a str, prefix: &PoolPrefix) -> Self {
        if name.starts_with(PENDING) {
            Self::Pending
        } else if name.starts_with(QUARANTINED) {
            Self::Quarantined
        } else if name.starts_with(prefix.as_str()) {
            Self::Free
        } else {
            Self::Taken(name)
        }
    }

    /// A name for one claim. It is like no other, so that a claim sees whether its own name was the last that was written.
    pub(crate) fn new_pending() -> String {
        format!("{PENDING}{}", random::uuid())
    }

    /// A name for a host that failed a machine.
    pub(crate) fn new_quarantined(machine: &str) -> String {
        format!("{QUARANTINED}{machine}")
    }

    /// What a machine's name begins with that a host of this machine must not: it would look free.
    pub(crate) fn reserved<'p>(machine: &str, prefix: &'p PoolPrefix) -> Option<&'p str> {
        [PENDING, QUARANTINED, prefix.as_str()].into_iter().find(|reserved| machine.starts_with(reserved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_free_only_under_the_prefix() {
        let prefix = PoolPrefix::new("tuist-pool-").unwrap();
        assert_eq!(HostName::of(&prefix.new_name(), &prefix), HostName::Free);
        assert_eq!(HostName::of(&HostName::new_pending(), &prefix), HostName::Pending);
        assert_eq!(HostName::of(&HostName::new_quarantined("m"), &prefix), HostName::Quarantined);
        assert_eq!(HostName::of("other-pool-1", &prefix), HostName::Taken("other-pool-1"));
    }

    #[test]
    fn a_short_prefix_does_not_make_marked_hosts_free() {
        let prefix = PoolPrefix::new("tuist-").unwrap();
        assert_eq!(HostName::of(&HostName::new_pending(), &prefix), HostName::Pending);
        assert_eq!(HostName::of(&HostName::new_quarantined("m"), &prefix), HostName::Quarantined);
    }

    #[test]
    fn the_machines_prefix_comes_before_the_default_and_neither_may_be_empty() {
        let default = PoolPrefix::new("default-");
        let choose = |own, default: Option<&PoolPrefix>| {
            PoolPrefix::choose(own, default).map(|prefix| prefix.as_str().to_owned())
        };
        assert_eq!(choose(Some("own-"), default.as_ref()), Ok("own-".to_owned()));
        assert_eq!(choose(Some(""), default.as_ref()), Ok("default-".to_owned()));
        assert_eq!(choose(None, default.as_ref()), Ok("default-".to_owned()));
        assert_eq!(choose(None, None), Err(NoPoolPrefix));
        assert_eq!(PoolPrefix::new(""), None);
    }

    #[test]
    fn a_machine_cannot_be_named_like_a_free_host() {
        let prefix = PoolPrefix::new("pool-").unwrap();
        assert_eq!(HostName::reserved("pool-1", &prefix), Some("pool-"));
        assert_eq!(HostName::reserved("tuist-claim-pending-1", &prefix), Some(PENDING));
        assert_eq!(HostName::reserved("runner-1", &prefix), None);
    }
}
