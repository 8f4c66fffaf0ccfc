//! What a fault's file may hold.

use std::fmt;
use std::time::Duration;

/// A kind of parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parameter {
    /// The file is empty.
    Nothing,
    /// Labels of jobs; none stands for all of them.
    Labels,
    /// One [`Call`] a line.
    Calls,
    /// See [`NthCall`].
    NthCall,
    /// See [`duration`].
    Duration,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A release of macOS.
    Version,
}

impl Parameter {
    /// Whether this text, without white space around it, is such a parameter.
    pub(super) fn accepts(self, text: &str) -> bool {
        match self {
            Self::Nothing => text.is_empty(),
            Self::Labels => true,
            Self::Calls => !text.is_empty() && text.lines().all(|line| Call::parse(line).is_some()),
            Self::NthCall => NthCall::parse(text).is_some(),
            Self::Duration => duration(text).is_some(),
            Self::Word(words) => words.contains(&text),
            Self::Version => !text.is_empty() && text.split('.').all(|part| part.parse::<u16>().is_ok()),
        }
    }
}

impl fmt::Display for Parameter {
    /// What the README and the refusals say of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Labels => f.write_str("labels of jobs; none for all"),
            Self::Calls => f.write_str("calls, one a line"),
            Self::NthCall => f.write_str("a number and a call, such as `3 sudo`"),
            Self::Duration => f.write_str("a duration"),
            Self::Word(words) => write!(f, "`{}`", words.join("`, `")),
            Self::Version => f.write_str("a version such as `26.6.2`"),
        }
    }
}

/// The start of a command line, such as `launchctl bootstrap`: the program's name and the arguments that follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call(Vec<String>);

impl Call {
    /// Reads the words of a line; `None` if there are none, or if the first is a path.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        (!words.first()?.contains('/')).then_some(Self(words))
    }

    /// Whether a command line begins so.
    pub fn is(&self, words: &[String]) -> bool {
        words.starts_with(&self.0)
    }
}

/// One of the calls to come, such as `3 sudo`: the third call of `sudo` from now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NthCall {
    /// Which of them; the next one is 1.
    pub number: u32,
    /// How it begins, as in the fault's file.
    pub text: String,
}

impl NthCall {
    /// Reads a number and a [`Call`].
    pub fn parse(text: &str) -> Option<Self> {
        let (number, text) = text.split_once(' ')?;
        let number = number.parse().ok().filter(|number| *number > 0)?;
        (text.lines().count() == 1 && Call::parse(text).is_some())
            .then(|| Self { number, text: text.to_owned() })
    }
}

/// Reads `20ms`, `1.5s` or plain seconds.
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_mean_nothing_are_refused() {
        for (parameter, good, bad) in [
            (Parameter::Nothing, "", "yes"),
            (Parameter::Calls, "launchctl bootstrap\nsudo", ""),
            (Parameter::Calls, "codesign", "/usr/bin/codesign"),
            (Parameter::NthCall, "3 sudo -n", "0 sudo"),
            (Parameter::NthCall, "1 codesign", "codesign"),
            (Parameter::Duration, "1.5s", "soon"),
            (Parameter::Word(&["old", "new"]), "old", "older"),
            (Parameter::Version, "26.6.2", "Tahoe"),
        ] {
            assert!(parameter.accepts(good), "{parameter:?}: {good:?}");
            assert!(!parameter.accepts(bad), "{parameter:?}: {bad:?}");
        }
    }

    #[test]
    fn a_call_is_the_start_of_a_command_line() {
        let words = ["launchctl", "kickstart", "-k", "system/a"].map(str::to_owned);
        for (call, is_hit) in
            [("launchctl", true), ("launchctl kickstart", true), ("launchctl bootstrap", false)]
        {
            assert_eq!(Call::parse(call).unwrap().is(&words), is_hit, "{call}");
        }
    }
}
