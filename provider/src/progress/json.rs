//! How Macs fared, for programs. The names of fields and their words stay the same from release to release.

use serde::Serialize;

use crate::error_chain::chain;
use crate::host::{Mode, Outcome, Report, Step};
use crate::rollout::Fared;
use crate::ssh::Fingerprint;

/// All Macs that the command line names, in its order.
#[derive(Debug, Serialize)]
pub(crate) struct Macs<'a> {
    pub(crate) macs: Vec<Mac<'a>>,
}

/// How one Mac fared.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mac<'a> {
    /// The name of the Node.
    node: &'a str,
    /// `user@host:port`.
    address: String,
    /// The hash that tells two configurations apart.
    configuration: String,
    result: MacResult,
    /// Why nothing could be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// The Mac's host key, if it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_key: Option<String>,
    steps: Vec<StepResult<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum MacResult {
    /// It was as it should be.
    Unchanged,
    /// A plan would change it.
    Differs,
    /// It was changed, and is as it should be.
    Changed,
    /// A step failed.
    Failed,
    /// Nothing could be done.
    Refused,
    /// Another Mac failed before.
    NotBegun,
}

#[derive(Debug, Serialize)]
struct StepResult<'a> {
    name: &'static str,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<Difference<'a>>,
}

/// One difference between the Mac and what it should be like.
#[derive(Debug, Serialize)]
struct Difference<'a> {
    what: &'a str,
    is: &'a str,
    wanted: &'a str,
    /// The lines that differ, for text that people read.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    lines: &'a [String],
}

/// What was seen of a Mac that was reached.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) host_key: Fingerprint,
    pub(crate) report: Report,
}

impl<'a> Mac<'a> {
    pub(crate) fn new(
        (node, address, configuration): (&'a str, String, String),
        (fared, mode): (&'a Fared, &Mode),
        (steps, seen): (&'a [Step], Option<&'a Seen>),
    ) -> Self {
        let changes = seen.is_some_and(|seen| seen.report.changed() > 0);
        let (result, error) = match fared {
            Fared::Refused(words) => (MacResult::Refused, Some(words.as_str())),
            Fared::NotBegun => (MacResult::NotBegun, None),
            Fared::Failed => (MacResult::Failed, None),
            Fared::Well if !changes => (MacResult::Unchanged, None),
            Fared::Well if matches!(mode, Mode::Plan) => (MacResult::Differs, None),
            Fared::Well => (MacResult::Changed, None),
        };
        let outcomes = seen.map(|seen| seen.report.0.as_slice()).unwrap_or_default();
        let steps = steps.iter().zip(outcomes).map(|(step, outcome)| StepResult::new(step.name, outcome));
        let host_key = seen.map(|seen| seen.host_key.to_string());
        Self { node, address, configuration, result, error, host_key, steps: steps.collect() }
    }
}

impl<'a> StepResult<'a> {
    fn new(name: &'static str, outcome: &'a Outcome) -> Self {
        let (result, error, changes) = match outcome {
            Outcome::Unchanged => ("unchanged", None, &[][..]),
            Outcome::Planned(changes) => ("differs", None, changes.as_slice()),
            Outcome::Changed(changes) => ("changed", None, changes.as_slice()),
            Outcome::Failed(error) => ("failed", Some(chain(error)), &[][..]),
            Outcome::Skipped => ("skipped", None, &[][..]),
        };
        let changes = changes.iter().map(|change| Difference {
            what: &change.what,
            is: &change.is,
            wanted: &change.wanted,
            lines: &change.lines,
        });
        Self { name, result, error, changes: changes.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Inputs, prepare_steps};
    use serde_json::{Value, json};

    fn mac(fared: &Fared, mode: &Mode, seen: Option<&Seen>) -> Value {
        let steps = prepare_steps("m1");
        let names = ("mac-1", "m1@10.0.0.1:22".to_owned(), "0123".to_owned());
        serde_json::to_value(Macs { macs: vec![Mac::new(names, (fared, mode), (&steps, seen))] }).unwrap()
    }

    #[test]
    fn a_mac_that_was_not_reached_has_no_steps() {
        let refused = mac(&Fared::Refused("no answer".to_owned()), &Mode::Plan, None);
        let expected = json!({"macs": [{
            "node": "mac-1", "address": "m1@10.0.0.1:22", "configuration": "0123", "result": "refused",
            "error": "no answer", "steps": [],
        }]});
        assert_eq!(refused, expected);
        assert_eq!(mac(&Fared::NotBegun, &Mode::Plan, None)["macs"][0]["result"], "notBegun");
    }

    #[test]
    fn the_result_of_a_mac_follows_from_its_steps() {
        let host_key: Fingerprint = format!("SHA256:{}", "A".repeat(43)).parse().unwrap();
        let apply = Mode::Apply(Inputs::default());
        let result = |outcome, fared: &Fared, mode: &Mode| {
            let seen = Seen { host_key: host_key.clone(), report: Report(vec![outcome]) };
            let mac = mac(fared, mode, Some(&seen));
            let word = |value: &Value| value.as_str().unwrap().to_owned();
            (word(&mac["macs"][0]["result"]), word(&mac["macs"][0]["steps"][0]["result"]))
        };
        let words = |mac: &str, step: &str| (mac.to_owned(), step.to_owned());
        assert_eq!(result(Outcome::Unchanged, &Fared::Well, &apply), words("unchanged", "unchanged"));
        assert_eq!(
            result(Outcome::Planned(Vec::new()), &Fared::Well, &Mode::Plan),
            words("differs", "differs")
        );
        assert_eq!(result(Outcome::Changed(Vec::new()), &Fared::Well, &apply), words("changed", "changed"));
        assert_eq!(result(Outcome::Skipped, &Fared::Failed, &apply), words("failed", "skipped"));
    }
}
