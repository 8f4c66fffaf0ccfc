//! What people see while a Mac is taken through its steps.

use std::io::{IsTerminal, Write};

use crate::error_chain::chain;
use crate::host::{Mode, Outcome, Report};

/// Shows which step runs, where a person looks on.
pub(crate) fn print_start(out: &mut (impl Write + IsTerminal), name: &str) {
    if out.is_terminal() {
        let _ = write!(out, "  …        {name}\r");
        let _ = out.flush();
    }
}

/// Shows how a step went. A terminal or pipe that is gone keeps no Mac from its steps.
pub(crate) fn print_outcome(out: &mut impl Write, name: &str, outcome: &Outcome) {
    let (word, changes) = match outcome {
        Outcome::Unchanged => ("ok", &[][..]),
        Outcome::Planned(changes) => ("differs", changes.as_slice()),
        Outcome::Changed(changes) => ("changed", changes.as_slice()),
        Outcome::Failed(error) => {
            let _ = writeln!(out, "  failed   {name}: {}", chain(error));
            return;
        }
        Outcome::Skipped => ("skipped", &[][..]),
    };
    let _ = writeln!(out, "  {word:8} {name}");
    for change in changes {
        let _ = writeln!(out, "             {change}");
        for line in &change.lines {
            let _ = writeln!(out, "               {line}");
        }
    }
}

/// One line about all steps.
pub(crate) fn summary(report: &Report, mode: &Mode) -> String {
    let (changed, failed) = (report.changed(), report.failed());
    let steps = |count| if count == 1 { "1 step".to_owned() } else { format!("{count} steps") };
    match (mode, changed, failed) {
        (_, 0, 0) => "nothing to change: the Mac is as it should be".to_owned(),
        (Mode::Plan, _, 0) => format!("{} would change the Mac", steps(changed)),
        (Mode::Plan, ..) => {
            format!("{} would change the Mac, {} failed or were skipped", steps(changed), steps(failed))
        }
        (Mode::Apply(_), _, 0) => format!("done: {} changed the Mac", steps(changed)),
        (Mode::Apply(_), ..) => {
            format!(
                "not done: {} changed the Mac, {} failed or were skipped; run it again to go on",
                steps(changed),
                steps(failed)
            )
        }
    }
}

/// What to do with a Mac that does not accept the key.
pub(crate) fn recovery(key: &str) -> String {
    format!(
        "There are two ways to let it in:
  1. Open the Mac's screen over VNC, log in, and paste this into Terminal:
       mkdir -p ~/.ssh && chmod 700 ~/.ssh && echo '{key}' >>~/.ssh/authorized_keys && chmod 600 ~/.ssh/authorized_keys
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
    fn the_recovery_has_the_line_to_paste() {
        let words = recovery("ssh-ed25519 AAAA");
        assert!(
            words.contains("echo 'ssh-ed25519 AAAA' >>~/.ssh/authorized_keys") && words.contains("VNC"),
            "{words}"
        );
    }
}
