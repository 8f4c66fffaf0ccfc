//! What to do with a Pod: pure decisions, without clock or I/O.

pub(crate) mod decide;
pub(crate) mod desired;
pub(crate) mod image_backoff;
pub(crate) mod next_vm;
pub(crate) mod restart;
pub(crate) mod start_progress;
pub(crate) mod time;
pub(crate) mod vm_size;
