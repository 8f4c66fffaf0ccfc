//! When an image is pulled.

/// A container's `imagePullPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PullPolicy {
    /// Before each start.
    Always,
    /// When it is not there.
    IfNotPresent,
    /// Not at all.
    Never,
}
