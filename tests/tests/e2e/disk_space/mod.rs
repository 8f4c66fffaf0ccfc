//! The host's disk: who is measured, and what is deleted when it is full.

mod ephemeral_storage;
mod eviction_ranking;
pub(crate) mod image_gc;
mod minimum_image_ttl;
mod out_of_space;
pub(crate) mod reclaim;
mod reserve;
