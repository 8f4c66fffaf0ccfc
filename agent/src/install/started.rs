//! What launchd has started as the agent, as `install` has noted it. The files on the disk do not tell: a run may have been broken off
//! after it wrote them.

use std::fmt::{self, Write as _};

use launchd::Outdated;
use sha2::{Digest, Sha256};

/// The file of the note. Only root can change it.
pub(crate) const NOTE: &str = "/var/db/dev.tuist.tart-kubelet.started";

/// What stands for credentials that the agent makes itself, and for a program that is being replaced.
const NONE: &str = "-";

/// Hashes of what the agent was started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Started {
    /// The program.
    pub(crate) program: String,
    /// The property list that launchd has loaded.
    pub(crate) definition: String,
    /// The kubeconfig, if the agent was given one.
    pub(crate) credentials: String,
}

impl Started {
    /// What is to be started.
    pub(crate) fn new(program: &str, definition: &[u8], credentials: Option<&str>) -> Self {
        Self {
            program: program.to_owned(),
            definition: hash(definition),
            credentials: credentials.map_or_else(|| NONE.to_owned(), |text| hash(text.as_bytes())),
        }
    }

    /// Reads a note; `None` if it is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let [program, definition, credentials] = words.try_into().ok()?;
        Some(Self { program, definition, credentials })
    }

    /// The same definition with a program of which nothing is known, as while it is replaced.
    pub(crate) fn with_unknown_program(&self) -> Self {
        Self { program: NONE.to_owned(), ..self.clone() }
    }

    /// What is outdated when the note says `noted`, although the files on the disk are right.
    pub(crate) fn outdated(&self, noted: Option<&Self>) -> Outdated {
        match noted {
            Some(noted) if noted == self => Outdated::Nothing,
            Some(noted) if noted.definition == self.definition => Outdated::Process,
            _ => Outdated::Definition,
        }
    }
}

impl fmt::Display for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {}", self.program, self.definition, self.credentials)
    }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_what_is_outdated() {
        let wanted = Started::new("abc", b"plist", Some("kubeconfig"));
        let noted = Started::parse(&wanted.to_string()).unwrap();
        assert_eq!(noted, wanted);
        assert_eq!(wanted.outdated(Some(&noted)), Outdated::Nothing);
        assert_eq!(wanted.outdated(None), Outdated::Definition);
        for (other, expected) in [
            (Started::new("abd", b"plist", Some("kubeconfig")), Outdated::Process),
            (Started::new("abc", b"plist", Some("rotated")), Outdated::Process),
            (Started::new("abc", b"plist", None), Outdated::Process),
            (Started::new("abc", b"other", Some("kubeconfig")), Outdated::Definition),
            (wanted.with_unknown_program(), Outdated::Process),
        ] {
            assert_eq!(wanted.outdated(Some(&other)), expected, "{other}");
        }
        assert_eq!(Started::parse("abc"), None);
        assert!(!wanted.to_string().contains("kubeconfig"));
    }
}
