//! The parameter of [`Fault::RunDies`](super::Fault::RunDies): when and how `tart run` ends.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::duration;

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// By itself, with this exit code.
    Code(u8),
    /// By this signal.
    Signal(Signal),
}

/// `[DURATION] [exit CODE | signal NAME] [: MESSAGE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunExit {
    /// How long after its start.
    pub after: Duration,
    /// Exit code 1 if the parameter says nothing.
    pub kind: ExitKind,
    /// What the process says on stderr.
    pub message: Option<String>,
}

impl RunExit {
    /// Reads the parameter.
    pub fn parse(text: &str) -> Option<Self> {
        let (text, message) = match text.split_once(':') {
            Some((text, message)) => (text, Some(message.trim().to_owned())),
            None => (text, None),
        };
        let words: Vec<_> = text.split_whitespace().collect();
        let (after, rest) = match words.split_first() {
            Some((word, rest)) if *word != "exit" && *word != "signal" => (duration(word)?, rest),
            _ => (Duration::ZERO, words.as_slice()),
        };
        let kind = match rest {
            [] => ExitKind::Code(1),
            ["exit", code] => ExitKind::Code(code.parse().ok()?),
            ["signal", name] => {
                ExitKind::Signal(format!("SIG{}", name.trim_start_matches("SIG")).parse().ok()?)
            }
            _ => return None,
        };
        Some(Self { after, kind, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_run_has_a_time_a_kind_and_a_message() {
        for (text, expected) in [
            ("", Some((Duration::ZERO, ExitKind::Code(1)))),
            ("2s", Some((Duration::from_secs(2), ExitKind::Code(1)))),
            ("20ms exit 3", Some((Duration::from_millis(20), ExitKind::Code(3)))),
            ("signal KILL", Some((Duration::ZERO, ExitKind::Signal(Signal::SIGKILL)))),
            ("1 signal SIGSEGV", Some((Duration::from_secs(1), ExitKind::Signal(Signal::SIGSEGV)))),
            ("soon", None),
        ] {
            let expected = expected.map(|(after, kind)| RunExit { after, kind, message: None });
            assert_eq!(RunExit::parse(text), expected, "{text:?}");
        }
        let told = RunExit::parse("1s exit 2: Error: no space").unwrap();
        let message = Some("Error: no space".into());
        assert_eq!(told, RunExit { after: Duration::from_secs(1), kind: ExitKind::Code(2), message });
    }
}
