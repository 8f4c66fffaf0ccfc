//! What a Pod shows while its image cannot be pulled, and when the agent tries again. As in the kubelet: first the error, then the back-off.

use std::time::Duration;

use jiff::Timestamp;

use crate::backoff::IMAGE_PULL;
use crate::error_chain::chain;
use crate::image::ImageError;
use crate::pod::status::Trouble;
use crate::pod::sync::vm_size::SizeError;

/// How long the status shows the error before the back-off.
const ERROR_SHOWN: Duration = Duration::from_secs(5);

/// A failure to have an image ready, or to make a VM of it.
#[derive(Debug, Clone)]
pub(crate) struct ImageFailure {
    image: String,
    reason: &'static str,
    /// Whether it is one that the kubelet shows a back-off for.
    is_pull: bool,
    pub(crate) message: String,
    at: Timestamp,
    delay: Duration,
}

impl ImageFailure {
    /// A failure at a time, after another one or as the first.
    pub(crate) fn new(image: &str, error: &ImageError, before: Option<&Self>, at: Timestamp) -> Self {
        let delay = IMAGE_PULL.next(before.map(|before| before.delay));
        let is_pull = !matches!(error, ImageError::NeverPull(_) | ImageError::Look { .. });
        Self { image: image.to_owned(), reason: error.reason(), is_pull, message: chain(error), at, delay }
    }

    /// An image whose VM cannot have a size. Room comes when another Pod goes, and so the agent looks for it often.
    pub(crate) fn of_size(image: &str, error: &SizeError, before: Option<&Self>, at: Timestamp) -> Self {
        let before = before.filter(|_| matches!(error, SizeError::LimitTooSmall { .. }));
        let delay = IMAGE_PULL.next(before.map(|before| before.delay));
        let (image, reason) = (image.to_owned(), "CreateContainerConfigError");
        Self { image, reason, is_pull: false, message: error.to_string(), at, delay }
    }

    /// The reason that the status shows.
    pub(crate) fn reason(&self) -> &'static str {
        self.reason
    }

    pub(crate) fn is_about(&self, image: Option<&str>) -> bool {
        image == Some(&*self.image)
    }

    /// When the agent may pull the image again.
    pub(crate) fn retry_at(&self) -> Timestamp {
        self.at + self.delay
    }

    /// The container's waiting state.
    pub(crate) fn shown(&self, now: Timestamp) -> Trouble {
        let (reason, message) = match self.back_off(now) {
            Some(words) => ("ImagePullBackOff", format!("{words}: {}: {}", self.reason, self.message)),
            None => (self.reason, self.message.clone()),
        };
        Trouble { reason, message, container: None }
    }

    /// The kubelet's words for a pull in back-off. Failures that are not pulls have no back-off words.
    pub(crate) fn back_off(&self, now: Timestamp) -> Option<String> {
        self.turns_at()
            .is_some_and(|at| now >= at)
            .then(|| format!("Back-off pulling image \"{}\"", self.image))
    }

    /// When the error turns into a back-off.
    pub(crate) fn turns_at(&self) -> Option<Timestamp> {
        self.is_pull.then(|| self.at + ERROR_SHOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn an_error_turns_into_a_back_off_and_into_an_error_again() {
        let error = ImageError::Interrupted("a/b:1".into());
        let first = ImageFailure::new("a/b:1", &error, None, at(0));
        assert_eq!(first.shown(at(4)).reason, "ErrImagePull");
        let waiting = first.shown(at(5));
        let words =
            "Back-off pulling image \"a/b:1\": ErrImagePull: the pull of image `a/b:1` was interrupted";
        assert_eq!((waiting.reason, &*waiting.message), ("ImagePullBackOff", words));
        let second = ImageFailure::new("a/b:1", &error, Some(&first), at(12));
        assert_eq!(second.shown(at(12)).reason, "ErrImagePull");
    }

    #[test]
    fn only_a_failed_pull_shows_a_back_off() {
        let never = ImageFailure::new("a/b:1", &ImageError::NeverPull("a/b:1".into()), None, at(0));
        assert_eq!((never.shown(at(9)).reason, never.turns_at()), ("ErrImageNeverPull", None));
    }

    #[test]
    fn an_image_without_room_is_tried_often_and_one_above_the_limit_ever_less() {
        let limit =
            SizeError::LimitTooSmall { resource: "cpu", least: "2 cores".into(), limit: "1 core".into() };
        for (error, expected) in
            [(limit, [10, 20, 40]), (SizeError::NoRoom { least: 2, left: 1 }, [10, 10, 10])]
        {
            let mut failure = ImageFailure::of_size("a/b:1", &error, None, at(0));
            let shown = failure.shown(at(9));
            assert_eq!((shown.reason, shown.message), ("CreateContainerConfigError", error.to_string()));
            for delay in expected {
                assert_eq!(failure.retry_at(), at(delay), "{error}");
                failure = ImageFailure::of_size("a/b:1", &error, Some(&failure), at(0));
            }
        }
    }

    #[test]
    fn a_failure_counts_for_one_image_only() {
        let failure = ImageFailure::new("a/b:1", &ImageError::Vanished("a/b:1".into()), None, at(0));
        let about = |image| failure.is_about(image);
        assert!(about(Some("a/b:1")) && !about(Some("a/b:2")) && !about(None));
    }

    #[test]
    fn delays_double_to_five_minutes() {
        let error = ImageError::Vanished("a/b:1".into());
        let mut failure = ImageFailure::new("a/b:1", &error, None, at(0));
        let mut delays = Vec::new();
        for _ in 0..7 {
            delays.push(failure.retry_at().as_second());
            failure = ImageFailure::new("a/b:1", &error, Some(&failure), at(0));
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
    }
}
