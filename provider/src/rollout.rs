//! Several Macs, a few at a time. A Mac that fails keeps those from being begun that come after it: a bad release breaks as few Macs as
//! possible.

use std::cell::Cell;

use futures::stream::{self, StreamExt as _};

/// How a Mac fared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fared {
    /// It is as it should be.
    Well,
    /// A step failed.
    Failed,
    /// Nothing could be done. The words say why.
    Refused(String),
    /// It was not begun, because another one failed before.
    NotBegun,
}

/// Takes each Mac through `take`, `concurrency` of them at a time, and returns how each fared, in their order.
pub(crate) async fn each<M>(
    macs: &[M],
    concurrency: usize,
    keep_going: bool,
    take: impl AsyncFn(&M) -> Result<bool, String>,
) -> Vec<Fared> {
    let is_over = Cell::new(false);
    let one = async |(place, mac): (usize, &M)| {
        if is_over.get() {
            return (place, Fared::NotBegun);
        }
        let fared = match take(mac).await {
            Ok(true) => Fared::Well,
            Ok(false) => Fared::Failed,
            Err(words) => Fared::Refused(words),
        };
        if fared != Fared::Well && !keep_going {
            is_over.set(true);
        }
        (place, fared)
    };
    // A slow Mac holds up none of the others.
    let runs: Vec<_> = macs.iter().enumerate().map(one).collect();
    let mut fared: Vec<_> = stream::iter(runs).buffer_unordered(concurrency.max(1)).collect().await;
    fared.sort_by_key(|(place, _)| *place);
    fared.into_iter().map(|(_, fared)| fared).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn fared(count: usize, concurrency: usize, keep_going: bool, bad: usize) -> (Vec<Fared>, usize) {
        let (now, most) = (Cell::new(0_usize), Cell::new(0_usize));
        let macs: Vec<usize> = (0..count).collect();
        let take = async |mac: &usize| {
            now.set(now.get() + 1);
            most.set(most.get().max(now.get()));
            tokio::time::sleep(Duration::from_secs(1)).await;
            now.set(now.get() - 1);
            if *mac == bad { Err("no answer".to_owned()) } else { Ok(true) }
        };
        (each(&macs, concurrency, keep_going, take).await, most.get())
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_macs_are_taken_at_a_time() {
        let (all, most) = fared(10, 4, false, 99).await;
        assert_eq!((all, most), (vec![Fared::Well; 10], 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_mac_that_fails_keeps_the_next_ones_from_being_begun() {
        let (all, _) = fared(6, 2, false, 1).await;
        assert_eq!(all[..2], [Fared::Well, Fared::Refused("no answer".to_owned())]);
        assert!(all[3..].iter().all(|fared| *fared == Fared::NotBegun), "{all:?}");
        let (all, _) = fared(6, 2, true, 1).await;
        assert_eq!(all.iter().filter(|fared| **fared == Fared::Well).count(), 5);
    }
}
