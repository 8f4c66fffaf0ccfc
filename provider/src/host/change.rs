//! A difference between a Mac and what it should be like, in words.

use std::fmt;

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// What it is about.
    pub(crate) what: String,
    /// How it is.
    pub(crate) is: String,
    /// How it should be.
    pub(crate) wanted: String,
    /// The lines that differ, for text that people read: `-` and `+` first.
    pub(crate) lines: Vec<String>,
}

impl Change {
    pub(crate) fn new(what: impl Into<String>, is: impl Into<String>, wanted: impl Into<String>) -> Self {
        Self { what: what.into(), is: is.into(), wanted: wanted.into(), lines: Vec::new() }
    }

    pub(crate) fn with_lines(self, old: &str, new: &str) -> Self {
        Self { lines: diff(old, new), ..self }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.what, self.is, self.wanted)
    }
}

/// The lines that are only in the old text, and those only in the new one, in the order of the texts.
fn diff(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    // longest[i][j]: the length of the longest common part of old[i..] and new[j..]. Both are as short as a property list.
    let mut longest = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            longest[i][j] = if old[i] == new[j] {
                longest[i + 1][j + 1] + 1
            } else {
                longest[i + 1][j].max(longest[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || longest[i + 1][j] >= longest[i][j + 1]) {
            lines.push(format!("-{}", old[i]));
            i += 1;
        } else {
            lines.push(format!("+{}", new[j]));
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_diff_shows_only_lines_that_differ() {
        assert_eq!(diff("a\nb\nc\n", "a\nx\nc\nd\n"), ["-b", "+x", "+d"]);
        assert_eq!(diff("", "a\n"), ["+a"]);
        assert_eq!(diff("a\n", "a\n"), [""; 0]);
    }

    proptest! {
        #[test]
        fn a_diff_turns_the_old_lines_into_the_new_ones(
            old in prop::collection::vec("[abc]", 0..8), new in prop::collection::vec("[abc]", 0..8),
        ) {
            let lines = diff(&old.join("\n"), &new.join("\n"));
            let count = |sign: char| lines.iter().filter(|line| line.starts_with(sign)).count();
            prop_assert_eq!(old.len() + count('+'), new.len() + count('-'));
            prop_assert_eq!(lines.is_empty(), old == new);
        }
    }
}
