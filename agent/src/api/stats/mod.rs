//! What the Node and its VMs use: for `kubectl top`, for scrapers and for `/stats/summary`.
//!
//! `sampler` measures, `summary` and `exposition` put a sample into the kubelet's words.

pub(super) mod exposition;
mod sample;
mod sampler;
pub(super) mod summary;

pub(super) use sample::Sample;
pub(crate) use sampler::Sampler;
