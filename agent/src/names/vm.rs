//! Names of the agent's VMs.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use super::{ImageDigest, PodUid};

const PREFIX: &str = "tk-";
const BASE_PREFIX: &str = "tk-base-";
/// Half of a hash is enough to tell images apart, and too long to be taken for the number of a restart.
const BASE_DIGITS: usize = 32;

/// The number of a Pod's VM; the first has 0. In a Pod with one VM at a time for all its containers, it is how often the main container had
/// restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Restart(pub u32);

impl Restart {
    /// The number of the next VM.
    #[must_use]
    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a Pod's VM: `tk-<Pod UID>-<restart>`.
///
/// The agent touches no VM with a name of another form. The UID is a UUID, as API servers make them: `tk-builder-1` is a user's VM.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct VmName {
    uid: PodUid,
    restart: Restart,
}

impl VmName {
    pub(crate) fn new(uid: PodUid, restart: Restart) -> Self {
        Self { uid, restart }
    }

    /// Reads the one spelling that the agent writes: `+1` and `01` are numbers, but no names.
    fn read(name: &str) -> Option<Self> {
        let (uid, restart) = name.strip_prefix(PREFIX)?.rsplit_once('-')?;
        let parsed = Self::new(uid.parse().ok()?, Restart(restart.parse().ok()?));
        (parsed.to_string() == name).then_some(parsed)
    }

    pub(crate) fn uid(&self) -> &PodUid {
        &self.uid
    }

    pub(crate) fn restart(&self) -> Restart {
        self.restart
    }
}

impl fmt::Display for VmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}-{}", self.uid, self.restart)
    }
}

/// The name of the VM that all VMs of one image are cloned from, and that never runs: `tk-base-<half of a hash of the image's name>`.
///
/// The name that is hashed has host, repository and digest: another registry can serve the manifest of a known image with other content.
///
/// No text is both such a name and a [`VmName`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize)]
pub(crate) struct BaseName(String);

impl BaseName {
    /// The name for an image, another one in every repository.
    pub(crate) fn of(image: &ImageDigest) -> Self {
        let hash = Sha256::digest(image.to_string());
        let bytes = hash.iter().take(BASE_DIGITS / 2);
        Self(bytes.fold(BASE_PREFIX.to_owned(), |name, byte| format!("{name}{byte:02x}")))
    }
}

impl fmt::Display for BaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for BaseName {
    type Err = ForeignVm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let fits = name.strip_prefix(BASE_PREFIX).is_some_and(|digits| {
            digits.len() == BASE_DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        });
        if fits { Ok(Self(name.to_owned())) } else { Err(ForeignVm(name.to_owned())) }
    }
}

/// A VM that the agent did not make.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not the name of a VM of this agent")]
pub(crate) struct ForeignVm(String);

impl FromStr for VmName {
    type Err = ForeignVm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::read(name).filter(|vm| vm.uid.is_uuid()).ok_or_else(|| ForeignVm(name.to_owned()))
    }
}

impl serde::Serialize for VmName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for VmName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        // A state file of the agent may name a UID that is no UUID.
        Self::read(&name).ok_or_else(|| serde::de::Error::custom(ForeignVm(name)))
    }
}

impl<'de> serde::Deserialize<'de> for BaseName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_the_agent_does_not_make_are_foreign() {
        const UID: &str = "0b1c2d3e-0000-4000-8000-0123456789ab";
        assert!(format!("tk-{UID}-0").parse::<VmName>().is_ok());
        let nearly =
            ["", "-", "-x", "-01", "-+1", "-4294967296", "-0-0", "0-0"].map(|end| format!("tk-{UID}{end}"));
        let others =
            ["", "tk-", "tk-0", "tk--0", "tk-a-0", "tk-builder-1", "sequoia", "tk-sequoia-15", "tk-../x-0"];
        let upper = format!("tk-{}-0", UID.to_uppercase());
        for name in nearly.into_iter().chain(others.map(str::to_owned)).chain([format!("xtk-{UID}-0"), upper])
        {
            assert_eq!(name.parse::<VmName>(), Err(ForeignVm(name.clone())), "{name}");
        }
    }

    #[test]
    fn images_of_two_repositories_never_share_a_base() {
        let base = |image: &str| {
            BaseName::of(&ImageDigest::parse(&format!("{image}@sha256:{}", "a".repeat(64))).unwrap())
        };
        assert_eq!(base("r.test/macos"), base("r.test/macos"));
        let distinct = ["r.test/macos", "r.test/other", "evil.test/macos", "r.test:5000/macos"].map(base);
        for (number, one) in distinct.iter().enumerate() {
            assert!(distinct[..number].iter().all(|other| other != one), "{one}");
            assert_eq!(one.to_string().parse(), Ok(one.clone()));
        }
    }

    proptest! {
        #[test]
        fn every_name_reads_back(uid in "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", restart: u32) {
            let name = VmName::new(uid.parse().unwrap(), Restart(restart));
            prop_assert_eq!(name.to_string().parse::<VmName>(), Ok(name));
        }

        #[test]
        fn a_name_of_a_base_is_no_name_of_a_vm(digits in "[0-9a-f]{32}|[0-9]{32}|0{31}[0-9]") {
            let name = format!("tk-base-{digits}");
            prop_assert_eq!(name.parse::<BaseName>().unwrap().to_string(), name.clone());
            prop_assert!(name.parse::<VmName>().is_err());
        }

        #[test]
        fn a_name_of_a_vm_is_no_name_of_a_base(uid in "(base|base-)?[0-9a-f][0-9a-f-]{0,35}[0-9a-f]", restart: u32) {
            prop_assert!(VmName::new(uid.parse().unwrap(), Restart(restart)).to_string().parse::<BaseName>().is_err());
        }

        #[test]
        fn every_parsed_name_is_displayed_as_it_was(text in "tk-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}[0-9a-z+-]{0,4}") {
            if let Ok(name) = text.parse::<VmName>() {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
