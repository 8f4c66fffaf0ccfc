//! Requests and answers: connections, heads, paths, and the change to a stream.

pub(super) mod connections;
pub(super) mod head;
pub(super) mod path;
pub(super) mod response;
pub(super) mod upgrade;
