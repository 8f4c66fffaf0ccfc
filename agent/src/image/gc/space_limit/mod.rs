//! How often images are deleted for one requester.
//!
//! One rule holds for all: what was deleted once has to be enough. If it was not, something else fills the disk, and a requester that
//! asks again and again would cost all images. Requesters differ in when they may ask again:
//!
//! - an image, after a delay that doubles ([`image`]);
//! - the VMs of a Pod, once a VM had space ([`vm`]);
//! - the volumes of a Pod, once they had space ([`volumes`]).
//!
//! A step of a worker that fails asks once per failure. The log of a container that runs asks whenever the disk is full, and goes on.

pub(super) mod image;
mod vm;
mod volumes;

pub(crate) use vm::VmSpaceLimit;
pub(crate) use volumes::VolumeSpaceLimit;
