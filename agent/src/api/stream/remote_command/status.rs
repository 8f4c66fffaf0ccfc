//! How a command ended, for the client: what the kubelet writes to the error stream.

use serde_json::json;

use super::Version;

/// The end of a command, or of the try to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandStatus {
    /// Its exit code.
    Exit(i32),
    /// The agent could not run it, or lost it. The words begin in lower case, as in `error executing command in container: …`.
    Failed(String),
}

impl CommandStatus {
    /// Absent where an end without words is a good one.
    pub(super) fn message(&self, version: Version) -> Option<Vec<u8>> {
        let text = match self {
            Self::Exit(0) => String::new(),
            Self::Exit(code) => {
                format!(
                    "command terminated with non-zero exit code: command terminated with exit code {code}"
                )
            }
            Self::Failed(words) => words.clone(),
        };
        if version < Version::V4 {
            return (!text.is_empty()).then(|| text.into_bytes());
        }
        let object = match self {
            Self::Exit(0) => json!({ "metadata": {}, "status": "Success" }),
            Self::Exit(code) => json!({
                "metadata": {},
                "status": "Failure",
                "message": text,
                "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Self::Failed(words) => json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("Internal error occurred: {words}"),
                "reason": "InternalError",
                "details": { "causes": [{ "message": words }] },
                "code": 500,
            }),
        };
        Some(object.to_string().into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(status: &CommandStatus) -> serde_json::Value {
        serde_json::from_slice(&status.message(Version::V4).unwrap()).unwrap()
    }

    #[test]
    fn from_v4_on_the_exit_code_is_a_cause_of_a_status() {
        assert_eq!(object(&CommandStatus::Exit(0))["status"], "Success");
        let failed = object(&CommandStatus::Exit(137));
        assert_eq!(failed["reason"], "NonZeroExitCode");
        assert_eq!(failed["details"]["causes"][0], json!({ "reason": "ExitCode", "message": "137" }));
        let broken = object(&CommandStatus::Failed("error executing command in container: no".into()));
        assert_eq!((&broken["reason"], &broken["code"]), (&json!("InternalError"), &json!(500)));
        assert_eq!(broken["message"], "Internal error occurred: error executing command in container: no");
    }

    #[test]
    fn before_v4_a_failure_is_text_and_a_success_is_nothing() {
        let text =
            |status: CommandStatus| status.message(Version::V3).map(|it| String::from_utf8(it).unwrap());
        assert_eq!(text(CommandStatus::Exit(0)), None);
        assert!(text(CommandStatus::Exit(3)).unwrap().ends_with("exit code 3"));
        assert_eq!(text(CommandStatus::Failed("no".into())), Some("no".into()));
    }
}
