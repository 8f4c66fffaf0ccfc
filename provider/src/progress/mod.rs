//! What people see while a Mac is taken through its steps.

mod json;
mod upload_line;

pub(crate) use json::{Mac as MacJson, Macs as MacsJson, Seen};

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use crate::error_chain::chain;
use crate::host::{Mode, Outcome, Report};
use crate::rollout::Fared;
use crate::ssh::{OnUpload, quoted};

/// To the begin of the line, and delete what is there.
const ERASE_LINE: &str = "\r\x1b[K";

/// Prints how a Mac fares. A terminal or pipe that is gone keeps no Mac from its steps.
#[derive(Debug, Clone)]
pub(crate) struct Printer {
    /// The Mac's name, where several are taken at a time.
    name: Option<String>,
    /// Whether a person looks on at one Mac: the last line shows what goes on, and is drawn over by what comes next.
    has_live_line: bool,
    /// Whether a program gets the result at the end, and nothing before.
    is_silent: bool,
}

impl Printer {
    /// The printer for one Mac.
    pub(crate) fn of_one() -> Self {
        Self { name: None, has_live_line: std::io::stdout().is_terminal(), is_silent: false }
    }

    /// The printer for one of several Macs.
    pub(crate) fn of_several(name: &str) -> Self {
        Self { name: Some(name.to_owned()), has_live_line: false, is_silent: false }
    }

    /// The printer that prints nothing.
    pub(crate) fn silent() -> Self {
        Self { name: None, has_live_line: false, is_silent: true }
    }

    /// The Mac's name; empty where there is only one.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Prints lines.
    pub(crate) fn line(&self, text: &str) {
        if self.is_silent {
            return;
        }
        let mut out = std::io::stdout().lock();
        if self.has_live_line {
            let _ = write!(out, "{ERASE_LINE}");
        }
        for line in text.lines() {
            let _ = match &self.name {
                Some(name) => writeln!(out, "{name}: {line}"),
                None => writeln!(out, "{line}"),
            };
        }
        let _ = out.flush();
    }

    /// Shows which step runs, where a person looks on at one Mac.
    pub(crate) fn start(&self, name: &str) {
        if self.has_live_line {
            draw(&format!("  …        {name}"));
        }
    }

    /// Shows how far the copy of each file has come: as a bar that moves where a person looks on at one Mac, else by a line for each quarter.
    pub(crate) fn uploads(&self) -> OnUpload {
        let printer = self.clone();
        let last = Mutex::new(String::new());
        Box::new(move |upload| {
            let text =
                if printer.has_live_line { upload_line::bar(upload) } else { upload_line::quarter(upload) };
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if text.is_empty() || *last == text {
                return;
            }
            if printer.has_live_line {
                draw(&text);
            } else {
                printer.line(&text);
            }
            *last = text;
        })
    }

    /// Shows how a step went.
    pub(crate) fn outcome(&self, name: &str, outcome: &Outcome) {
        // Of several Macs, what is right is not worth a line.
        if self.name.is_some() && matches!(outcome, Outcome::Unchanged) {
            return;
        }
        self.line(&outcome_lines(name, outcome));
    }
}

/// Draws over the last line.
fn draw(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "{ERASE_LINE}{text}");
    let _ = out.flush();
}

/// How a step went, and what it changed.
fn outcome_lines(name: &str, outcome: &Outcome) -> String {
    let (word, changes) = match outcome {
        Outcome::Unchanged => ("ok", &[][..]),
        Outcome::Planned(changes) => ("differs", changes.as_slice()),
        Outcome::Changed(changes) => ("changed", changes.as_slice()),
        Outcome::Failed(error) => return format!("  failed   {name}: {}", chain(error)),
        Outcome::Skipped => ("skipped", &[][..]),
    };
    let mut lines = format!("  {word:8} {name}");
    for change in changes {
        let _ = write!(lines, "\n             {change}");
        for line in &change.lines {
            let _ = write!(lines, "\n               {line}");
        }
    }
    lines
}

/// One line about several Macs, with the names of those that are not as they should be.
pub(crate) fn summary_of_several(macs: &[(&str, &Fared)]) -> String {
    let named = |is: fn(&Fared) -> bool| {
        macs.iter().filter(|(_, fared)| is(fared)).map(|(name, _)| *name).collect::<Vec<_>>()
    };
    let well = named(|fared| *fared == Fared::Well);
    let failed = named(|fared| matches!(fared, Fared::Failed | Fared::Refused(_)));
    let not_begun = named(|fared| *fared == Fared::NotBegun);
    let mut words = format!("{} of {} Macs are done", well.len(), macs.len());
    if !failed.is_empty() {
        let _ = write!(words, "; failed: {}", failed.join(", "));
    }
    if !not_begun.is_empty() {
        let _ = write!(
            words,
            "; not begun: {} (--keep-going goes on in spite of a failure)",
            not_begun.join(", ")
        );
    }
    words
}

/// One line about all steps.
pub(crate) fn summary(report: &Report, mode: &Mode) -> String {
    let (changed, failed, skipped) = (report.changed(), report.failed(), report.skipped());
    let steps = |count| if count == 1 { "1 step".to_owned() } else { format!("{count} steps") };
    let mut words = match mode {
        _ if changed + failed + skipped == 0 => {
            return "nothing to change: the Mac is as it should be".to_owned();
        }
        Mode::Plan => format!("{} would change the Mac", steps(changed)),
        Mode::Apply(_) if failed == 0 => format!("done: {} changed the Mac", steps(changed)),
        Mode::Apply(_) => format!("not done: {} changed the Mac", steps(changed)),
    };
    if failed > 0 {
        let _ = write!(words, ", {} failed", steps(failed));
    }
    match mode {
        _ if skipped == 0 => (),
        Mode::Plan => {
            let _ = write!(words, "; {} can be looked at only after that", steps(skipped));
        }
        Mode::Apply(_) => {
            let _ = write!(words, ", {} were skipped", steps(skipped));
        }
    }
    if failed > 0 && matches!(mode, Mode::Apply(_)) {
        words.push_str("; run it again to go on");
    }
    words
}

/// What to do with a Mac that does not accept the key.
pub(crate) fn recovery(key: &str) -> String {
    // The key ends with a comment, which may be any text.
    let key = quoted(key);
    format!(
        "There are two ways to let it in:
  1. Open the Mac's screen over VNC, log in, and paste this into Terminal:
       mkdir -p ~/.ssh && chmod 700 ~/.ssh && echo {key} >>~/.ssh/authorized_keys && chmod 600 ~/.ssh/authorized_keys
  2. Reinstall the Mac with this key among the SSH keys of its project.
Then run the same command again."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Inputs;

    #[test]
    fn a_mac_that_is_right_is_said_to_be() {
        let words = summary(&Report::default(), &Mode::Apply(Inputs::default()));
        assert!(words.starts_with("nothing to change"), "{words}");
    }

    #[test]
    fn several_macs_are_told_in_one_line() {
        let macs = [("a", &Fared::Well), ("b", &Fared::Failed), ("c", &Fared::NotBegun)];
        let words = summary_of_several(&macs);
        assert!(words.starts_with("1 of 3 Macs are done; failed: b; not begun: c"), "{words}");
    }

    #[test]
    fn the_recovery_has_the_line_to_paste() {
        let words = recovery("ssh-ed25519 AAAA");
        assert!(
            words.contains("echo 'ssh-ed25519 AAAA' >>~/.ssh/authorized_keys") && words.contains("VNC"),
            "{words}"
        );
        let words = recovery("ssh-ed25519 AAAA the Mac's; rm -rf ~");
        assert!(words.contains(r"echo 'ssh-ed25519 AAAA the Mac'\''s; rm -rf ~' >>"), "{words}");
    }
}
