//! What a fault's file may hold.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::{Outage, RunExit};

/// The names by which faults know tart's commands.
pub const COMMANDS: &[&str] = &[
    "create",
    "clone",
    "run",
    "set",
    "get",
    "list",
    "login",
    "logout",
    "ip",
    "exec",
    "pull",
    "push",
    "import",
    "export",
    "prune",
    "rename",
    "stop",
    "delete",
    "suspend",
    "fqn",
    "--version",
];

/// The commands that need disk space.
const SPACE_COMMANDS: &[&str] = &["clone", "pull", "import", "set", "run"];

/// Stands for all commands.
const ALL: &str = "*";

/// A kind of parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parameter {
    /// The file is empty.
    Nothing,
    /// Names of commands; none, and `*`, stand for all of them.
    Commands,
    /// Names of commands that need disk space; none, and `*`, stand for all of them.
    SpaceCommands,
    /// Names of VMs; none, and `*`, stand for all of them.
    VmNames,
    /// Names of repositories, with their hosts; none, and `*`, stand for all of them.
    Repositories,
    /// See [`latencies`].
    Latencies,
    /// See [`release`].
    Release,
    /// One [`Outage`] a line.
    Outages,
    /// See [`RunExit`].
    RunExit,
    /// See [`duration`].
    Duration,
    /// A number, which may be fractional.
    Gigabytes,
    /// A whole number.
    Number,
    /// A whole number; all places if the file is empty.
    Places,
    /// See [`subnet`].
    Subnet,
    /// A line of text.
    Line,
    /// A line of text; the file may be empty.
    Reason,
}

impl Parameter {
    /// Whether this text, without white space around it, is such a parameter.
    pub(super) fn accepts(self, text: &str) -> bool {
        let words = |known: &[&str]| text.split_whitespace().all(|word| word == ALL || known.contains(&word));
        match self {
            Self::Nothing => text.is_empty(),
            Self::Commands => words(COMMANDS),
            Self::SpaceCommands => words(SPACE_COMMANDS),
            Self::VmNames | Self::Repositories | Self::Reason => true,
            Self::Latencies => latencies(text).is_some(),
            Self::Release => release(text).is_some(),
            Self::Outages => Outage::parse_lines(text).is_some(),
            Self::RunExit => RunExit::parse(text).is_some(),
            Self::Duration => duration(text).is_some(),
            Self::Gigabytes => text.parse::<f64>().is_ok_and(|number| number.is_finite() && number >= 0.0),
            Self::Number => text.parse::<u64>().is_ok(),
            Self::Places => text.is_empty() || text.parse::<usize>().is_ok(),
            Self::Subnet => subnet(text).is_some(),
            Self::Line => !text.is_empty(),
        }
    }
}

impl fmt::Display for Parameter {
    /// What the README and the refusals say of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Commands => "commands",
            Self::SpaceCommands => "commands (`clone`, `pull`, `import`, `set`, `run`)",
            Self::VmNames => "names of VMs",
            Self::Repositories => "names of repositories (default: all)",
            Self::Latencies => "`20ms`, `list=1s get=20ms`",
            Self::Release => "`2.30.0`, `SNAPSHOT`",
            Self::Outages => "outages, one a line",
            Self::RunExit => "`[DURATION] [exit CODE | signal NAME] [: MESSAGE]`",
            Self::Duration => "a duration",
            Self::Gigabytes => "GB",
            Self::Number => "a number",
            Self::Places => "a number (default: all places)",
            Self::Subnet => "`192.168.64`",
            Self::Line => "a line",
            Self::Reason => "a reason, or nothing",
        })
    }
}

/// Reads `20ms`, `1.5s` or plain seconds.
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    Duration::try_from_secs_f64(number.trim().parse::<f64>().ok()? * unit).ok()
}

/// How much longer commands take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    command: Option<String>,
    duration: Duration,
}

/// Reads one or more words: `20ms` is for all commands, `list=20ms` for one.
pub fn latencies(text: &str) -> Option<Vec<Latency>> {
    let latencies: Vec<_> = text.split_whitespace().map(Latency::parse).collect::<Option<_>>()?;
    (!latencies.is_empty()).then_some(latencies)
}

impl Latency {
    fn parse(word: &str) -> Option<Self> {
        let (command, length) = word.split_once('=').unwrap_or((ALL, word));
        let command = match command {
            ALL => None,
            command => Some(COMMANDS.contains(&command).then(|| command.to_owned())?),
        };
        Some(Self { command, duration: duration(length)? })
    }

    /// The latency of a command: the last one that is for it, or for all commands.
    pub fn of_command(latencies: &[Self], command: &str) -> Option<Duration> {
        let applies = |latency: &&Self| latency.command.as_deref().is_none_or(|name| name == command);
        latencies.iter().rev().find(applies).map(|latency| latency.duration)
    }
}

/// A release of tart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// Major, minor, patch.
    Numbered(u32, u32, u32),
    /// A development build, newer than any release.
    Snapshot,
}

/// Reads `2.30.0`, `2.30` or `SNAPSHOT`.
pub fn release(text: &str) -> Option<Release> {
    if text == "SNAPSHOT" {
        return Some(Release::Snapshot);
    }
    let numbers: Vec<u32> = text.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [major, minor] => Some(Release::Numbered(major, minor, 0)),
        [major, minor, patch] => Some(Release::Numbered(major, minor, patch)),
        _ => None,
    }
}

/// Reads the first three numbers of an address: `192.168.64`.
pub fn subnet(text: &str) -> Option<[u8; 3]> {
    let [first, second, third, _] = format!("{text}.0").parse::<Ipv4Addr>().ok()?.octets();
    Some([first, second, third])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit_or_is_in_seconds() {
        for (text, expected) in [
            ("20ms", Some(Duration::from_millis(20))),
            ("1.5s", Some(Duration::from_millis(1500))),
            ("2", Some(Duration::from_secs(2))),
            ("0.25", Some(Duration::from_millis(250))),
            ("-1", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(duration(text), expected, "{text:?}");
        }
    }

    #[test]
    fn latency_is_for_all_commands_or_for_one() {
        let of = |text, command| Latency::of_command(&latencies(text).unwrap(), command);
        let millis = |n| Some(Duration::from_millis(n));
        assert_eq!(of("20ms", "list"), millis(20));
        assert_eq!(of("20ms list=1s", "list"), millis(1000));
        assert_eq!(of("20ms list=1s", "get"), millis(20));
        assert_eq!(of("list=1s", "get"), None);
    }

    #[test]
    fn a_release_has_numbers_unless_it_is_a_snapshot() {
        assert_eq!(release("2.35.0"), Some(Release::Numbered(2, 35, 0)));
        assert_eq!(release("2.30"), Some(Release::Numbered(2, 30, 0)));
        assert_eq!(release("SNAPSHOT"), Some(Release::Snapshot));
        assert_eq!(release("snapshot"), None);
        assert!(Release::Snapshot > Release::Numbered(u32::MAX, 0, 0));
    }

    #[test]
    fn parameters_that_mean_nothing_are_refused() {
        for (parameter, good, bad) in [
            (Parameter::Nothing, "", "yes"),
            (Parameter::Commands, "list get", "list gte"),
            (Parameter::Commands, "*", "**"),
            (Parameter::Commands, "", "tk-vm"),
            (Parameter::SpaceCommands, "clone", "list"),
            (Parameter::Latencies, "list=1s", "lits=1s"),
            (Parameter::Latencies, "20ms", ""),
            (Parameter::Release, "2.30.0", ""),
            (Parameter::Outages, "stall\n404 only=registry.test", "stall\n404 olny=registry.test"),
            (Parameter::RunExit, "", "soon"),
            (Parameter::Duration, "1s", ""),
            (Parameter::Gigabytes, "87.5", "many"),
            (Parameter::Number, "2", ""),
            (Parameter::Places, "", "all"),
            (Parameter::Subnet, "192.168.64", "192.168.64.0"),
            (Parameter::Line, "? (192.168.64.1) at", ""),
        ] {
            assert!(parameter.accepts(good), "{parameter:?}: {good:?}");
            assert!(!parameter.accepts(bad), "{parameter:?}: {bad:?}");
        }
    }
}
