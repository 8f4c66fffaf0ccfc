//! When an image is pulled.

/// A container's `imagePullPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PullPolicy {
    Always,
    #[default]
    IfNotPresent,
    Never,
}
