//! A setting of macOS that one command reads and another one writes.

use launchd::{Call, CallOutput, HostError};
use serde::Serialize;

use super::{COMMAND_DEADLINE, Change, PartError, Remote, succeeded};

/// A setting.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Setting {
    /// What people call it.
    pub(crate) what: &'static str,
    /// Whose it is.
    pub(crate) of: SettingOf,
    /// The command that prints it. It fails when the setting has never been made.
    pub(crate) read: Vec<String>,
    /// How the value is found in what the command prints.
    pub(crate) reading: Reading,
    /// The value.
    pub(crate) wanted: String,
    /// The command that sets it.
    pub(crate) write: Vec<String>,
}

/// Whose a setting is.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) enum SettingOf {
    /// The Mac's.
    Mac,
    /// The user's.
    User,
}

/// How a value is found in what a command prints.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) enum Reading {
    /// All of it.
    Whole,
    /// The word after this one, at the beginning of a line: `pmset -g`. A Mac that does not print it has no such setting.
    Word(&'static str),
    /// The value of this key in a dictionary: `defaults read`.
    Key(&'static str),
    /// The elements of an array, with spaces in between: `defaults read`.
    Elements,
}

impl Setting {
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let argv: Vec<&str> = self.read.iter().map(String::as_str).collect();
        let output = self.call(mac, &argv).await?;
        let value = if output.is_success() { self.reading.value(&output.stdout) } else { Value::Unset };
        let is = match value {
            Value::Unknown => return Ok(Vec::new()),
            Value::Is(is) if is == self.wanted => return Ok(Vec::new()),
            Value::Is(is) => is,
            Value::Unset => "not set".to_owned(),
        };
        Ok(vec![Change::new(self.what, is, &self.wanted)])
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        let argv: Vec<&str> = self.write.iter().map(String::as_str).collect();
        let output = self.call(mac, &argv).await?;
        succeeded(Call::new(&argv, COMMAND_DEADLINE), output).map(drop)
    }

    async fn call<R: Remote>(&self, mac: &R, argv: &[&str]) -> Result<CallOutput, HostError> {
        let call = Call::new(argv, COMMAND_DEADLINE);
        match self.of {
            SettingOf::Mac => mac.run(call).await,
            SettingOf::User => mac.run_as_user(call).await,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Value {
    Is(String),
    /// It was never set.
    Unset,
    /// This Mac has no such setting.
    Unknown,
}

impl Reading {
    fn value(self, printed: &str) -> Value {
        let text = |text: &str| Value::Is(text.trim_matches('"').to_owned());
        match self {
            Self::Whole => text(printed.trim()),
            Self::Word(word) => {
                let mut lines = printed.lines().map(str::split_whitespace);
                let value =
                    lines.find_map(|mut words| (words.next() == Some(word)).then(|| words.next()).flatten());
                value.map_or(Value::Unknown, text)
            }
            Self::Key(key) => {
                let value = printed.lines().find_map(|line| {
                    let (name, value) = line.trim().trim_end_matches(';').split_once(" = ")?;
                    (name.trim_matches('"') == key).then(|| value.trim())
                });
                value.map_or(Value::Unset, text)
            }
            Self::Elements => {
                let lines = printed.lines().map(|line| line.trim().trim_end_matches(',').trim_matches('"'));
                let elements: Vec<&str> = lines.filter(|line| !matches!(*line, "" | "(" | ")")).collect();
                Value::Is(elements.join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_in_what_macos_prints() {
        let is = |text: &str| Value::Is(text.to_owned());
        assert_eq!(Reading::Whole.value("mac-1\n"), is("mac-1"));
        let pmset = "System-wide power settings:\nCurrently in use:\n sleep                1 (sleep prevented by x)\n disksleep            0\n";
        assert_eq!(Reading::Word("sleep").value(pmset), is("1"));
        assert_eq!(Reading::Word("disksleep").value(pmset), is("0"));
        assert_eq!(Reading::Word("powernap").value(pmset), Value::Unknown);
        assert_eq!(
            Reading::Key("DHCPLeaseTimeSecs").value("{\n    DHCPLeaseTimeSecs = 600;\n}\n"),
            is("600")
        );
        assert_eq!(Reading::Key("b").value("{\n    \"b\" = \"600\";\n}\n"), is("600"));
        assert_eq!(Reading::Key("c").value("{\n}\n"), Value::Unset);
        let array = "(\n    \"10.0.0.0/8\",\n    \"192.168.0.0/16\"\n)\n";
        assert_eq!(Reading::Elements.value(array), is("10.0.0.0/8 192.168.0.0/16"));
    }
}
