//! The record of images in the state directory.

use tracing::warn;

use super::ownership::ImageRecord;
use crate::fs::file::{self, FileCondition, FileError};
use crate::state::StateDir;

impl StateDir {
    pub(crate) fn images(&self) -> Result<ImageRecord, FileError> {
        Ok(file::read(&self.images_path())?.unwrap_or_default())
    }

    pub(crate) fn has_images(&self) -> Result<bool, FileError> {
        let path = self.images_path();
        path.try_exists().map_err(|source| FileError::new("look for", &path, source))
    }

    /// The record, for the process that writes it. A spoilt file is renamed first, so that the agent remembers that images were lost: no
    /// Pod may use an image that is not in the new record, until its registry grants it. A file of another release stays as it is, and the
    /// new record is never written.
    pub(crate) fn images_for_writing(&self) -> Result<ImageRecord, FileError> {
        let (path, aside) = (self.images_path(), self.spoilt_images_path());
        match file::condition::<ImageRecord>(&path)? {
            FileCondition::Absent | FileCondition::Readable => self.images(),
            FileCondition::Spoilt => {
                std::fs::rename(&path, &aside)
                    .map_err(|source| FileError::new("put aside", &path, source))?;
                warn!(
                    aside = %aside.display(),
                    "the record of images is spoilt and was put aside; while it is there, no base VM is taken for an orphan"
                );
                let mut record = ImageRecord::default();
                record.mark_lost();
                self.write_images(&record)?;
                self.images()
            }
            FileCondition::OtherFormat => {
                warn!(
                    path = %path.display(),
                    "another release of the agent has written the record of images, and this one cannot read it; it stays as it is. No \
                     image that is here is deleted, and no Pod may use one until its registry grants it. Run that release again, or \
                     remove the file"
                );
                Ok(ImageRecord::of_other_format())
            }
        }
    }

    /// Whether a record was spoilt, or is of another release, so that the agent may have images that it does not know of.
    pub(crate) fn has_lost_images(&self) -> Result<bool, FileError> {
        let aside = self.spoilt_images_path();
        let is_aside = aside.try_exists().map_err(|source| FileError::new("look for", &aside, source))?;
        Ok(is_aside || file::condition::<ImageRecord>(&self.images_path())?.is_unreadable())
    }

    /// Writes the record so that not even a power cut can undo it, unless its file is of another release.
    pub(crate) fn write_images(&self, record: &ImageRecord) -> Result<(), FileError> {
        if record.is_in_memory_only {
            return Ok(());
        }
        file::write_durably(&self.images_path(), record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_spoilt_record_of_images_counts_as_lost_until_it_is_removed() {
        let dir = testing::dir();
        let state = StateDir::open(dir.path()).unwrap();
        let record = dir.path().join("images.json");
        let is_lost = || state.has_lost_images().unwrap();
        assert!(!is_lost(), "a new directory has lost nothing");
        state.write_images(&ImageRecord::default()).unwrap();
        assert_eq!(state.images_for_writing().unwrap(), ImageRecord::default());
        assert!(!is_lost());
        // Half a file, and an empty one.
        for content in ["{", ""] {
            std::fs::write(&record, content).unwrap();
            assert!(is_lost(), "{content}");
            assert!(state.images_for_writing().unwrap().is_lost, "{content}");
            assert!(state.images_for_writing().unwrap().is_lost, "{content}, and the next agent reads it");
            state.write_images(&ImageRecord::default()).unwrap();
            assert!(is_lost(), "{content}, and another agent has written a new record");
            assert_eq!(std::fs::read_to_string(state.spoilt_images_path()).unwrap(), content);
            std::fs::remove_file(state.spoilt_images_path()).unwrap();
            assert!(!is_lost());
        }
    }

    #[test]
    fn a_record_of_images_of_another_release_is_never_replaced() {
        let dir = testing::dir();
        let state = StateDir::open(dir.path()).unwrap();
        let path = dir.path().join("images.json");
        let content = "{\"version\":2,\"images\":{}}";
        std::fs::write(&path, content).unwrap();
        for _ in 0..2 {
            let mut record = state.images_for_writing().unwrap();
            assert!(record.is_lost && record.images.is_empty(), "{record:?}");
            record.begin("r.test/macos:1", [], testing::at(1));
            state.write_images(&record).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            assert!(!state.spoilt_images_path().exists());
            assert!(state.has_lost_images().unwrap(), "no base VM may be taken for an orphan");
        }
        assert!(state.images().is_err(), "who lists images is told");
    }
}
