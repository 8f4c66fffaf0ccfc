//! The record of images in the state directory.

use tracing::warn;

use super::ownership::ImageRecord;
use crate::fs::file::{self, FileError};
use crate::state::StateDir;

impl StateDir {
    /// What is known of this host's images.
    pub(crate) fn images(&self) -> Result<ImageRecord, FileError> {
        Ok(file::read(&self.images_path())?.unwrap_or_default())
    }

    /// The same, for who is going to write it: what is spoilt is put aside first, so that it stays known that something was lost.
    pub(crate) fn images_to_go_on_with(&self) -> Result<ImageRecord, FileError> {
        let (path, aside) = (self.images_path(), self.spoilt_images_path());
        if file::is_spoilt::<ImageRecord>(&path)? {
            std::fs::rename(&path, &aside).map_err(|source| FileError::new("put aside", &path, source))?;
            warn!(
                aside = %aside.display(),
                "the record of images is spoilt and was put aside; while it is there, no base VM is taken for an orphan"
            );
        }
        self.images()
    }

    /// Whether there were images of which nothing is known any more.
    pub(crate) fn has_lost_images(&self) -> Result<bool, FileError> {
        let aside = self.spoilt_images_path();
        let is_aside = aside.try_exists().map_err(|source| FileError::new("look for", &aside, source))?;
        Ok(is_aside || file::is_spoilt::<ImageRecord>(&self.images_path())?)
    }

    /// Writes down what is known of this host's images, so that not even a power cut can undo it.
    pub(crate) fn write_images(&self, record: &ImageRecord) -> Result<(), FileError> {
        file::write_durably(&self.images_path(), record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_images_that_is_spoilt_stays_known_as_lost() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let record = dir.path().join("images.json");
        let is_lost = || state.has_lost_images().unwrap();
        assert!(!is_lost(), "a new directory has lost nothing");
        state.write_images(&ImageRecord::default()).unwrap();
        assert_eq!(state.images_to_go_on_with().unwrap(), ImageRecord::default());
        assert!(!is_lost());
        // Half a file, and one of an agent that writes something else.
        for content in ["{", "", "{\"images\":{}}"] {
            std::fs::write(&record, content).unwrap();
            assert!(is_lost(), "{content}");
            assert_eq!(state.images_to_go_on_with().unwrap(), ImageRecord::default());
            state.write_images(&ImageRecord::default()).unwrap();
            assert!(is_lost(), "{content}, and another agent has begun anew");
            assert_eq!(std::fs::read_to_string(state.spoilt_images_path()).unwrap(), content);
            std::fs::remove_file(state.spoilt_images_path()).unwrap();
            assert!(!is_lost());
        }
    }
}
