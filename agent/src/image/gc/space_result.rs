//! What has become of a wish for room, in words for whoever has wished for it.

use super::Pass;

/// What has become of a wish for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpaceResult {
    /// There is more than before.
    Room,
    /// No image could go.
    Nothing,
    /// Images could go, and none could be deleted.
    Failed,
    /// Nobody could see which images may go.
    Unseen,
    /// The disk that is full has no images on it.
    Elsewhere,
    /// `--disable-vm-gc`: no image ever goes.
    SwitchedOff,
    /// What went for this image was not enough, and it is too early for more.
    TooEarly,
    /// Nothing more goes for this Pod: what went for it was not enough.
    InVain,
}

impl SpaceResult {
    /// All of them.
    #[cfg(test)]
    const ALL: [Self; 8] = [
        Self::Room,
        Self::Nothing,
        Self::Failed,
        Self::Unseen,
        Self::Elsewhere,
        Self::SwitchedOff,
        Self::TooEarly,
        Self::InVain,
    ];

    /// What a pass for somebody who wanted room has come to.
    pub(super) fn by(pass: &Pass) -> Self {
        match pass {
            pass if pass.has_made_room() => Self::Room,
            Pass { failed: 0, .. } => Self::Nothing,
            Pass { .. } => Self::Failed,
        }
    }

    /// Why there is no more room than before, to follow "there is no space, and"; `None` where there is.
    pub(crate) fn why_not(self) -> Option<&'static str> {
        match self {
            Self::Room => None,
            Self::Nothing => Some(
                "no image on this host may be deleted for it: each one is in use, new, the last one, or not the agent's own",
            ),
            Self::Failed => Some("the images that could go could not be deleted: the agent's log says why"),
            Self::Unseen => {
                Some("it could not be seen which images may be deleted for it: the agent's log says why")
            }
            Self::Elsewhere => {
                Some("no image is deleted for it: images are on another disk than the one that is full")
            }
            Self::SwitchedOff => Some("with `--disable-vm-gc` the agent deletes no image for it"),
            Self::TooEarly => {
                Some("the images that were deleted for it were not enough; another one may go in a while")
            }
            Self::InVain => Some("the images that were deleted for it were not enough, so that no more are"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_pass_makes_room_or_says_what_was_in_the_way() {
        for (deleted, freed, failed, expected) in [
            (1, 0, 0, SpaceResult::Room),
            (0, 5, 0, SpaceResult::Room),
            (1, 5, 1, SpaceResult::Room),
            (0, 0, 0, SpaceResult::Nothing),
            (0, 0, 2, SpaceResult::Failed),
        ] {
            assert_eq!(SpaceResult::by(&Pass { deleted, freed, failed }), expected);
        }
    }

    #[test]
    fn each_reason_has_words_of_its_own() {
        let words: HashSet<_> = SpaceResult::ALL.iter().map(|made| made.why_not()).collect();
        assert_eq!(words.len(), SpaceResult::ALL.len());
        assert!(SpaceResult::ALL.iter().all(|made| (*made == SpaceResult::Room) == made.why_not().is_none()));
    }
}
