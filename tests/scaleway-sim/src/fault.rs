//! Faults: what happens to calls, instead of what they ask for. A rule is one line, such as `update-server 2 throttle 1`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http::StatusCode;

use crate::api::Call;

/// What happens to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// It is refused with this HTTP status, in the shape that Scaleway has for it.
    Error(StatusCode),
    /// It is refused with 429 and this `Retry-After`, in seconds.
    Throttle(u64),
    /// A gateway answers 502 with a page of HTML.
    Gateway,
    /// It is carried out after this time.
    Slow(Duration),
    /// It is carried out, and the connection ends without an answer.
    Cut,
    /// It is not carried out, and the connection ends without an answer.
    Lose,
    /// The connection ends without an answer, and the call is carried out when the test says so.
    Hold,
}

impl Effect {
    /// The words of each effect, its parameter, and what it does: the README's table.
    #[cfg(test)]
    const TABLE: &[(&str, &str, &str)] = &[
        (
            "error",
            "an HTTP status from 400 to 599",
            "the call is refused with it, in the shape that Scaleway has for it",
        ),
        ("throttle", "seconds", "the call is refused with 429, and `Retry-After` says these seconds"),
        ("gateway", "–", "a gateway answers 502 with a page of HTML"),
        ("slow", "milliseconds", "the call is carried out after this time"),
        ("cut", "–", "the call is carried out, and the connection ends without an answer"),
        ("lose", "–", "the call is not carried out, and the connection ends without an answer"),
        (
            "hold",
            "–",
            "the connection ends without an answer; the call is carried out when `World::deliver_held` or `POST /simulator/held` says so",
        ),
    ];
}

/// What happens to some calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Which calls.
    pub call: Call,
    /// How many of them; `None` for all.
    pub times: Option<u32>,
    /// What happens.
    pub effect: Effect,
}

/// A line that is no rule. A mistyped rule would otherwise be a test that cannot fail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no fault; it is CALL [TIMES] EFFECT [PARAMETER], such as `update-server 2 throttle 1`")]
pub struct BadRule(String);

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(line: &str) -> Result<Self, BadRule> {
        parse(line).ok_or_else(|| BadRule(line.to_owned()))
    }
}

fn parse(line: &str) -> Option<Rule> {
    let mut words = line.split_whitespace().peekable();
    let call = Call::from_word(words.next()?)?;
    let times = words.peek().and_then(|word| word.parse().ok());
    if times.is_some() {
        words.next();
    }
    let (effect, parameter) = (words.next()?, words.next());
    let effect = match (effect, parameter) {
        ("error", Some(status)) => {
            let status = StatusCode::from_bytes(status.as_bytes()).ok()?;
            (status.is_client_error() || status.is_server_error()).then_some(Effect::Error(status))?
        }
        ("throttle", Some(seconds)) => Effect::Throttle(seconds.parse().ok()?),
        ("slow", Some(millis)) => Effect::Slow(Duration::from_millis(millis.parse().ok()?)),
        ("gateway", None) => Effect::Gateway,
        ("cut", None) => Effect::Cut,
        ("lose", None) => Effect::Lose,
        ("hold", None) => Effect::Hold,
        _ => return None,
    };
    (words.next().is_none() && times != Some(0)).then_some(Rule { call, times, effect })
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.call.word())?;
        if let Some(times) = self.times {
            write!(f, " {times}")?;
        }
        match &self.effect {
            Effect::Error(status) => write!(f, " error {}", status.as_u16()),
            Effect::Throttle(seconds) => write!(f, " throttle {seconds}"),
            Effect::Gateway => f.write_str(" gateway"),
            Effect::Slow(time) => write!(f, " slow {}", time.as_millis()),
            Effect::Cut => f.write_str(" cut"),
            Effect::Lose => f.write_str(" lose"),
            Effect::Hold => f.write_str(" hold"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_written_as_it_is_read() {
        for line in [
            "update-server 2 throttle 1",
            "get-server error 403",
            "list-servers gateway",
            "reinstall-server 1 cut",
            "update-server lose",
            "reboot-server slow 20",
            "update-server 1 hold",
        ] {
            assert_eq!(line.parse::<Rule>().unwrap().to_string(), line);
        }
    }

    #[test]
    fn a_line_that_is_no_rule_is_refused() {
        for line in [
            "",
            "update-server",
            "rename cut",
            "update-server 0 cut",
            "get-server error 200",
            "get-server cut 1",
            "get-server slow",
            "get-server error 403 x",
        ] {
            assert!(line.parse::<Rule>().is_err(), "{line}");
        }
    }

    #[test]
    fn the_readme_lists_every_call_and_effect() {
        let readme = include_str!("../README.md");
        for (word, parameter, effect) in Effect::TABLE {
            assert!(readme.contains(&format!("| `{word}` | {parameter} | {effect} |\n")), "{word}");
            let parameter = if word == &"error" {
                " 500"
            } else if parameter == &"–" {
                ""
            } else {
                " 1"
            };
            assert!(format!("get-server {word}{parameter}").parse::<Rule>().is_ok(), "{word}");
        }
        for call in Call::ALL {
            assert!(readme.contains(&format!("| `{}` |", call.word())), "{}", call.word());
        }
    }
}
