//! Room on the disk for the volumes of a Pod: what has been deleted for them once has to do.

use tokio::sync::watch;

use super::worker::Worker;

/// Whether room was made for a Pod's volumes. They are tried again and again, but images go for them only once: when that does not help,
/// something else fills the disk.
#[derive(Debug, Default)]
pub(super) enum RoomForVolumes {
    /// Nobody has asked, or nothing could go.
    #[default]
    NotMade,
    /// Somebody is at it: what it comes to is told here.
    Asked(watch::Receiver<Option<bool>>),
    /// Something is gone.
    Made,
}

impl RoomForVolumes {
    /// Volumes have found no space: `make` makes some, and says whether there is more than before. It goes on by itself: the image that
    /// is being fetched may be making room, too, and does so only while it is polled.
    pub(super) fn want(&mut self, make: impl Future<Output = bool> + Send + 'static) {
        if let Self::Asked(answer) = self {
            let (made, is_over) = (*answer.borrow(), answer.has_changed().is_err());
            match made {
                Some(true) => *self = Self::Made,
                Some(false) => *self = Self::NotMade,
                // The task has died.
                None if is_over => *self = Self::NotMade,
                None => {}
            }
        }
        if let Self::NotMade = self {
            let (answer, asked) = watch::channel(None);
            tokio::spawn(async move { answer.send_replace(Some(make.await)) });
            *self = Self::Asked(asked);
        }
    }
}

impl Worker {
    /// The Pod's volumes have found no space.
    pub(super) fn want_room_for_volumes(&mut self) {
        if let Some(collector) = self.host.collector.clone() {
            let place = self.dir.volumes_path();
            self.room.want(async move { collector.make_room_at(&place).await });
        }
    }

    /// They have what they need, or lack something else.
    pub(super) fn want_no_room_for_volumes(&mut self) {
        self.room = RoomForVolumes::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn images_go_once_for_the_volumes_of_a_pod() {
        let passes = Arc::new(AtomicU32::new(0));
        let mut room = RoomForVolumes::default();
        let mut want = async |made: bool| {
            let count = passes.clone();
            room.want(async move {
                count.fetch_add(1, Ordering::Relaxed);
                made
            });
            if let RoomForVolumes::Asked(answer) = &mut room {
                answer.wait_for(Option::is_some).await.unwrap();
            }
            passes.load(Ordering::Relaxed)
        };
        assert_eq!(want(false).await, 1);
        assert_eq!(want(true).await, 2, "nothing could go before");
        assert_eq!(want(true).await, 2, "something is gone, and it was of no use");
        assert_eq!(want(true).await, 2);
        room = RoomForVolumes::default();
        room.want(std::future::pending());
        room.want(async { panic!("one pass at a time") });
        assert!(matches!(room, RoomForVolumes::Asked(_)));
    }
}
