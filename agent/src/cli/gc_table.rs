//! The table of `tart-kubelet gc --dry-run`.

use serde::{Serialize, Serializer};

use crate::gc::orphan::{GcAction, JudgedSubject, Subject};
use crate::image::gc;
use crate::install::doctor::Format;
use crate::names::ImageDigest;
use crate::text_table::columns;

const HEAD: [&str; 4] = ["KIND", "NAME", "DECISION", "WHY"];

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    /// What it is, in one word.
    pub(crate) kind: &'static str,
    /// Its name.
    pub(crate) name: String,
    /// What becomes of it.
    #[serde(serialize_with = "word")]
    pub(crate) decision: GcAction,
    /// Why.
    pub(crate) why: String,
}

impl From<JudgedSubject> for Row {
    fn from(judged: JudgedSubject) -> Self {
        let kind = match judged.subject {
            Subject::Vm(_) | Subject::Base(_) | Subject::Other(_) => "VM",
            Subject::PodDir(_) => "state",
        };
        let (name, why) = (judged.subject.to_string(), judged.why());
        Self { kind, name, decision: judged.verdict.action(), why }
    }
}

impl Row {
    /// An image that the agent knows, with its base VM.
    pub(crate) fn image(digest: &ImageDigest, verdict: gc::ImageVerdict) -> Self {
        let (decision, why) = match verdict {
            gc::ImageVerdict::Delete => {
                (GcAction::Delete, "the disk is full, and it was not used for longest")
            }
            gc::ImageVerdict::Keep(reason) => (GcAction::Keep, reason.words()),
        };
        Self { kind: "image", name: digest.to_string(), decision, why: why.to_owned() }
    }

    /// An image that the agent did not pull.
    pub(crate) fn other_image(digest: &ImageDigest) -> Self {
        let why = "not pulled by this agent".to_owned();
        Self { kind: "image", name: digest.to_string(), decision: GcAction::Keep, why }
    }

    /// The same with `--disable-vm-gc`.
    #[must_use]
    pub(crate) fn disabled(self) -> Self {
        let why = if self.decision == GcAction::Delete {
            format!("--disable-vm-gc ({})", self.why)
        } else {
            self.why
        };
        Self { decision: GcAction::Keep, why, ..self }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
fn word<S: Serializer>(action: &GcAction, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(action.as_str())
}

/// The table, or an array of objects.
pub(crate) fn render(rows: &[Row], format: Format) -> String {
    match format {
        Format::Text => text(rows),
        Format::Json => serde_json::to_string_pretty(rows).unwrap_or_default() + "\n",
    }
}

fn text(rows: &[Row]) -> String {
    let row = |row: &Row| {
        [row.kind.to_owned(), row.name.clone(), row.decision.as_str().to_owned(), row.why.clone()]
    };
    let lines: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(rows.iter().map(row)).collect();
    columns(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gc::orphan::{KeepReason, OrphanVerdict};
    use crate::names::{Restart, VmName};
    use std::time::Duration;

    fn rows() -> Vec<Row> {
        let verdict = |subject, verdict| Row::from(JudgedSubject { subject, verdict });
        vec![
            verdict(Subject::Other("builder".into()), OrphanVerdict::Keep(KeepReason::Foreign)),
            verdict(
                Subject::Vm(VmName::new("a".parse().unwrap(), Restart(0))),
                OrphanVerdict::Delete { runs: true, age: Duration::from_hours(3) },
            ),
        ]
    }

    #[test]
    fn columns_are_aligned() {
        let expected = "KIND   NAME      DECISION   WHY\n\
             VM     builder   keep       not made by this agent\n\
             VM     tk-a-0    delete     no Pod of this Node has its UID, untouched for 3 h; it runs, and is stopped first\n";
        assert_eq!(render(&rows(), Format::Text), expected);
    }

    #[test]
    fn a_program_gets_the_same_as_objects() {
        let rows: serde_json::Value = serde_json::from_str(&render(&rows(), Format::Json)).unwrap();
        assert_eq!(
            rows[0],
            serde_json::json!({"kind": "VM", "name": "builder", "decision": "keep", "why": "not made by this agent"})
        );
        assert_eq!((&rows[1]["decision"], rows.as_array().unwrap().len()), (&"delete".into(), 2));
        assert_eq!(render(&[], Format::Json), "[]\n");
    }

    #[test]
    fn with_disable_vm_gc_everything_is_kept() {
        let kept: Vec<Row> = rows().into_iter().map(Row::disabled).collect();
        assert!(kept.iter().all(|row| row.decision == GcAction::Keep));
        assert!(kept[1].why.starts_with("--disable-vm-gc (no Pod"), "{kept:?}");
        assert_eq!(kept[0].why, "not made by this agent");
    }
}
