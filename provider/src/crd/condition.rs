//! Conditions in a status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A condition, as Kubernetes has it. `severity` is of the contract v1beta1: it is read and never written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What the condition is about.
    #[serde(rename = "type")]
    pub type_: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// How bad it is that it does not hold; only of objects that are older than this provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<String>,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The generation of the object that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the status last changed.
    pub last_transition_time: Time,
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// It does.
    True,
    /// It does not.
    False,
    /// It is not known.
    Unknown,
}

/// A condition by its type.
pub fn find_condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|one| one.type_ == type_)
}

/// Sets a condition. The time changes only with the status.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: ConditionStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let known = conditions.iter().position(|one| one.type_ == type_);
    let since = known.map(|at| &conditions[at]).filter(|one| one.status == status);
    let condition = Condition {
        type_: type_.to_owned(),
        status,
        severity: None,
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()).filter(|message| !message.is_empty()),
        observed_generation: None,
        last_transition_time: since.map_or(Time(now), |one| one.last_transition_time.clone()),
    };
    match known {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_condition_changes_only_with_its_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut all = Vec::new();
        set_condition(&mut all, "Ready", ConditionStatus::False, "Waits", "for a host", at(1));
        set_condition(&mut all, "Other", ConditionStatus::True, "Yes", "", at(1));
        set_condition(&mut all, "Ready", ConditionStatus::False, "Adopts", "", at(2));
        let ready = find_condition(&all, "Ready").unwrap();
        assert_eq!((ready.last_transition_time.0, ready.reason.as_deref()), (at(1), Some("Adopts")));
        set_condition(&mut all, "Ready", ConditionStatus::True, "Ready", "", at(3));
        assert_eq!(find_condition(&all, "Ready").unwrap().last_transition_time.0, at(3));
        assert_eq!(all.len(), 2);
    }
}
