//! What a command line may consist of, as data.

use crate::version::{self, Release};

/// One subcommand.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) arguments: &'static [Argument],
    pub(crate) options: &'static [Opt],
    /// Hidden commands work, but the list of commands does not show them.
    pub(crate) hidden: bool,
    /// The first release that has it.
    pub(crate) since: Release,
}

/// How often an argument may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// Exactly once.
    One,
    /// Once or not at all.
    Optional,
    /// At least once.
    Many,
    /// Everything from here on, flags included.
    Rest,
}

/// A positional argument.
#[derive(Debug)]
pub(crate) struct Argument {
    pub(crate) name: &'static str,
    pub(crate) count: Count,
    pub(crate) about: &'static str,
}

/// What follows an option's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// Nothing.
    Flag,
    /// Nothing; `--no-<name>` is the opposite.
    Inversion,
    /// Any text.
    Text(&'static str),
    /// A number without sign, up to this one.
    Number(&'static str, u64),
    /// One of these words.
    OneOf(&'static str, &'static [&'static str]),
}

impl Value {
    /// The placeholder of the value, if there is one.
    pub(crate) fn placeholder(self) -> Option<&'static str> {
        match self {
            Self::Flag | Self::Inversion => None,
            Self::Text(name) | Self::Number(name, _) | Self::OneOf(name, _) => Some(name),
        }
    }
}

/// An option or flag.
#[derive(Debug)]
pub(crate) struct Opt {
    /// The long name, without dashes.
    pub(crate) name: &'static str,
    pub(crate) short: Option<char>,
    /// Whether the one-letter name is the only one.
    pub(crate) only_short: bool,
    pub(crate) value: Value,
    pub(crate) repeats: bool,
    pub(crate) hidden: bool,
    pub(crate) default: Option<&'static str>,
    pub(crate) about: &'static str,
    /// The first release that has it.
    pub(crate) since: Release,
}

impl Opt {
    /// A flag without value.
    pub(crate) const fn flag(name: &'static str, about: &'static str) -> Self {
        Self::new(name, Value::Flag, about)
    }

    /// An option with a value.
    pub(crate) const fn new(name: &'static str, value: Value, about: &'static str) -> Self {
        Self {
            name,
            short: None,
            only_short: false,
            value,
            repeats: false,
            hidden: false,
            default: None,
            about,
            since: (0, 0, 0),
        }
    }

    /// With a one-letter name.
    pub(crate) const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    /// With a one-letter name and no other.
    pub(crate) const fn only_short(self, short: char) -> Self {
        Self { short: Some(short), only_short: true, ..self }
    }

    /// With a value of its own when it is not given.
    pub(crate) const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    /// May be given more than once.
    pub(crate) const fn repeats(self) -> Self {
        Self { repeats: true, ..self }
    }

    /// Not shown.
    pub(crate) const fn hidden(self) -> Self {
        Self { hidden: true, ..self }
    }

    /// Unknown to releases before this one.
    pub(crate) const fn since(self, since: Release) -> Self {
        Self { since, ..self }
    }

    /// How messages name it: `--format <format>`.
    pub(crate) fn display(&self) -> String {
        let name = match self.short {
            Some(short) if self.only_short => format!("-{short}"),
            _ => format!("--{}", self.name),
        };
        match self.value.placeholder() {
            Some(placeholder) => format!("{name} <{placeholder}>"),
            None => name,
        }
    }
}

impl Argument {
    /// An argument that has to be given.
    pub(crate) const fn one(name: &'static str, about: &'static str) -> Self {
        Self { name, count: Count::One, about }
    }

    /// How messages and the usage name it: `<name>`, `<name> ...`.
    pub(crate) fn display(&self) -> String {
        match self.count {
            Count::One | Count::Optional => format!("<{}>", self.name),
            Count::Many | Count::Rest => format!("<{}> ...", self.name),
        }
    }
}

impl Command {
    /// The options that the simulated release has.
    pub(crate) fn options(&self) -> impl Iterator<Item = &'static Opt> {
        self.options.iter().filter(|option| version::at_least(option.since))
    }
}
