//! What came of a request for disk space, in words for the user.

use super::Pass;

/// [`Self::why_not`] says what each one means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpaceResult {
    Freed,
    NoCandidate,
    DeletionFailed,
    Unknown,
    OtherDisk,
    NotFull,
    Disabled,
    TooEarly,
    NotEnough,
}

impl SpaceResult {
    #[cfg(test)]
    const ALL: [Self; 9] = [
        Self::Freed,
        Self::NoCandidate,
        Self::DeletionFailed,
        Self::Unknown,
        Self::OtherDisk,
        Self::NotFull,
        Self::Disabled,
        Self::TooEarly,
        Self::NotEnough,
    ];

    pub(super) fn of(pass: &Pass) -> Self {
        match pass {
            pass if pass.has_freed_space() => Self::Freed,
            Pass { failed: 0, .. } => Self::NoCandidate,
            Pass { .. } => Self::DeletionFailed,
        }
    }

    /// Why there is no more space than before, to follow "there is no space, and"; `None` if there is.
    pub(crate) fn why_not(self) -> Option<&'static str> {
        Some(match self {
            Self::Freed => return None,
            Self::NoCandidate => {
                "no image on this host may be deleted for it: each one is in use, new, the last one, or not the agent's own"
            }
            Self::DeletionFailed => "the images that could go could not be deleted: the agent's log says why",
            Self::Unknown => {
                "it could not be seen which images may be deleted for it: the agent's log says why"
            }
            Self::OtherDisk => {
                "no image is deleted for it: images are on another disk than the one that is full"
            }
            Self::NotFull => "no image is deleted for it: the disk itself says that it has space left",
            Self::Disabled => "with `--disable-vm-gc` the agent deletes no image for it",
            Self::TooEarly => {
                "the images that were deleted for it were not enough; another one may go in a while"
            }
            Self::NotEnough => "the images that were deleted for it were not enough, so that no more are",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_pass_frees_space_or_says_why_not() {
        for (deleted, freed, failed, expected) in [
            (1, 0, 0, SpaceResult::Freed),
            (0, 5, 0, SpaceResult::Freed),
            (1, 5, 1, SpaceResult::Freed),
            (0, 0, 0, SpaceResult::NoCandidate),
            (0, 0, 2, SpaceResult::DeletionFailed),
        ] {
            assert_eq!(SpaceResult::of(&Pass { deleted, freed, failed }), expected);
        }
    }

    #[test]
    fn each_result_has_words_of_its_own() {
        let words: HashSet<_> = SpaceResult::ALL.iter().map(|result| result.why_not()).collect();
        assert_eq!(words.len(), SpaceResult::ALL.len());
        let is_freed = |result: &SpaceResult| *result == SpaceResult::Freed;
        assert!(SpaceResult::ALL.iter().all(|result| is_freed(result) == result.why_not().is_none()));
    }
}
