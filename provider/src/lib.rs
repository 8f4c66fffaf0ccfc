//! The provider: it puts the node agent on Macs, and rolls it.

pub mod host;
