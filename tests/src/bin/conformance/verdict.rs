//! What a run of the suite says about the agent, and about the documentation.

use std::collections::BTreeMap;
use std::fmt;

use crate::known::Known;
use crate::report::{Outcome, Spec};

/// How much of a spec's failure is shown; its log has the rest.
const SHOWN_LINES: usize = 6;

/// The outcome of a run, compared with what is known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    selected: usize,
    passed: usize,
    /// Under each heading of the documentation: the selected specs that are known not to pass.
    known: BTreeMap<String, usize>,
    /// Specs that did not pass, though no table has them, and why.
    surprises: Vec<(String, String)>,
    /// Specs that passed, though a table has them.
    better: Vec<String>,
}

impl Verdict {
    /// Compares the specs that were selected with those that ran.
    pub(crate) fn new(known: &Known, selected: &[String], ran: &[Spec]) -> Self {
        let counts = known.count(selected).into_iter();
        let mut verdict = Self {
            selected: selected.len(),
            known: counts.map(|(heading, count)| (heading.to_owned(), count)).collect(),
            ..Self::default()
        };
        for name in selected {
            let spec = ran.iter().find(|spec| spec.name == *name);
            match (spec.map(|spec| spec.outcome), known.has(name)) {
                (Some(Outcome::Passed), is_known) => {
                    verdict.passed += 1;
                    if is_known {
                        verdict.better.push(name.clone());
                    }
                }
                (_, true) => {}
                (_, false) => {
                    let reason = spec.map_or("it did not run", |spec| spec.reason.as_str());
                    verdict.surprises.push((name.clone(), reason.to_owned()));
                }
            }
        }
        verdict
    }

    /// Whether the documentation tells the truth.
    pub(crate) fn is_as_documented(&self) -> bool {
        self.surprises.is_empty() && self.better.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, reason) in &self.surprises {
            writeln!(f, "FAILED  {name}")?;
            for line in reason.lines().filter(|line| !line.trim().is_empty()).take(SHOWN_LINES) {
                writeln!(f, "        {line}")?;
            }
        }
        for name in &self.better {
            writeln!(f, "PASSED, though docs/conformance.md says that it does not: {name}")?;
        }
        write!(f, "{} of {} specs pass", self.passed, self.selected)?;
        for (heading, count) in &self.known {
            write!(f, "; {count} in docs/conformance.md: {heading}")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, outcome: Outcome) -> Spec {
        Spec { name: name.to_owned(), outcome, reason: "why".to_owned() }
    }

    #[test]
    fn a_run_is_as_documented_when_exactly_the_known_specs_do_not_pass() {
        let known = Known::of(&["bad", "unlike"]);
        let selected = ["good", "bad"].map(str::to_owned);
        for (ran, as_documented, passed) in [
            (vec![spec("good", Outcome::Passed)], true, 1),
            (vec![spec("good", Outcome::Passed), spec("bad", Outcome::Failed)], true, 1),
            (vec![spec("good", Outcome::Passed), spec("bad", Outcome::Passed)], false, 2),
            (vec![spec("good", Outcome::Failed)], false, 0),
            (vec![spec("good", Outcome::Skipped)], false, 0),
            (vec![], false, 0),
        ] {
            let verdict = Verdict::new(&known, &selected, &ran);
            assert_eq!((verdict.is_as_documented(), verdict.passed), (as_documented, passed), "{ran:?}");
        }
    }

    #[test]
    fn the_verdict_counts_and_names() {
        let known = Known::of(&["bad"]);
        let selected = ["good", "bad", "ugly"].map(str::to_owned);
        let ran = [spec("good", Outcome::Passed), spec("ugly", Outcome::Failed)];
        let text = Verdict::new(&known, &selected, &ran).to_string();
        assert_eq!(text, "FAILED  ugly\n        why\n1 of 3 specs pass; 1 in docs/conformance.md: To come\n");
    }
}
