//! The free space on the volume of `TART_HOME`.

use nix::sys::statvfs::statvfs;
use tart_sim::Fault;

use crate::home::{Home, prunable};
use crate::host::faults;

/// Free bytes: what VMs and caches leave of the knob `capacity`, else what the real volume has.
pub(crate) fn available(home: &Home) -> u64 {
    match faults::parameter(Fault::Capacity).and_then(|gb| gb.parse::<f64>().ok()) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "far below 2^53 bytes")]
        Some(gb) => ((gb * 1e9) as u64).saturating_sub(prunable::used(home)),
        #[allow(clippy::unnecessary_cast, clippy::cast_lossless, reason = "the types differ between systems")]
        None => statvfs(home.path())
            .map_or(u64::MAX, |volume| volume.blocks_available() as u64 * volume.fragment_size() as u64),
    }
}
