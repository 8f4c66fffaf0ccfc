//! Collecting what nobody needs any more.

pub mod images;
