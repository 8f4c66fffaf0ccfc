//! Events that are written once per change, and not at every look at the same state.

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LastReported<T>(Option<T>);

impl<T: PartialEq> LastReported<T> {
    /// Continues after a value that was reported before, for instance by an earlier agent.
    pub(crate) fn after(value: T) -> Self {
        Self(Some(value))
    }

    /// Remembers a value. True if it is the first one or differs from the last: it is to be reported then.
    pub(crate) fn is_new(&mut self, value: T) -> bool {
        let is_new = self.0.as_ref() != Some(&value);
        self.0 = Some(value);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_new_once() {
        let mut last = LastReported::default();
        let values = ["a", "a", "b", "a", "a"].map(|value| last.is_new(value));
        assert_eq!(values, [true, false, true, true, false]);
        assert!(!LastReported::after("a").is_new("a"));
        assert!(LastReported::after("a").is_new("b"));
    }
}
