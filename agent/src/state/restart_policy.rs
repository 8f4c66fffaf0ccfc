//! A Pod's restart policy.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    /// Reads the field; the API server fills it in, so an absent one means its default.
    pub(crate) fn of(field: Option<&str>) -> Self {
        match field {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            _ => Self::Always,
        }
    }
}
