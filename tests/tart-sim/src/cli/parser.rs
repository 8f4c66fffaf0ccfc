//! Reads a command line by its grammar, and refuses it in the words of Swift's argument parser.

use std::collections::VecDeque;

use super::grammar::{Command, Count, Opt, Value};
use crate::error::{Error, Result};

/// What a command line said, before it is given types.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    flags: Vec<&'static str>,
    values: Vec<(&'static str, String)>,
    positionals: VecDeque<String>,
}

/// What to do with a command line that is not an error.
#[derive(Debug)]
pub(crate) enum Request {
    /// Carry it out.
    Execute(Parsed),
    /// Print the help; the flag says whether hidden options too.
    Help(bool),
    /// Print the version.
    Version,
}

impl Parsed {
    /// Whether the flag was given.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.flags.contains(&name)
    }

    /// The last value of an option.
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        self.values.iter().rev().find(|(option, _)| *option == name).map(|(_, value)| value.clone())
    }

    /// All values of an option that repeats.
    pub(crate) fn values(&self, name: &str) -> Vec<String> {
        self.values.iter().filter(|(option, _)| *option == name).map(|(_, value)| value.clone()).collect()
    }

    /// The value of a numeric option; the parser has checked that it is one.
    pub(crate) fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.value(name)?.parse().ok()
    }

    /// The next positional argument; empty only if the grammar made it optional.
    pub(crate) fn next(&mut self) -> String {
        self.positionals.pop_front().unwrap_or_default()
    }

    /// The positional arguments that are left.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        self.positionals.drain(..).collect()
    }
}

/// Reads the words after the command's name.
pub(crate) fn parse(command: &'static Command, words: impl IntoIterator<Item = String>) -> Result<Request> {
    let mut parser = Parser { command, parsed: Parsed::default() };
    let mut words: VecDeque<String> = words.into_iter().collect();
    let passthrough_after =
        command.arguments.iter().position(|argument| argument.count == Count::Rest).unwrap_or(usize::MAX);
    while let Some(word) = words.pop_front() {
        if parser.parsed.positionals.len() >= passthrough_after {
            parser.parsed.positionals.push_back(word);
            parser.parsed.positionals.extend(words.drain(..));
        } else if word == "--" {
            parser.parsed.positionals.extend(words.drain(..));
        } else if word == "--help" || word == "-h" || word == "--help-hidden" {
            return Ok(Request::Help(word == "--help-hidden"));
        } else if word == "--version" {
            return Ok(Request::Version);
        } else if let Some(long) = word.strip_prefix("--") {
            parser.long(long, &mut words)?;
        } else if word.len() > 1 && word.starts_with('-') {
            parser.short(&word, &mut words)?;
        } else {
            parser.parsed.positionals.push_back(word);
        }
    }
    parser.check_positionals()?;
    parser.fill_in_defaults();
    Ok(Request::Execute(parser.parsed))
}

struct Parser {
    command: &'static Command,
    parsed: Parsed,
}

impl Parser {
    fn long(&mut self, word: &str, rest: &mut VecDeque<String>) -> Result<()> {
        let (name, attached) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
        if let Some(option) = self.command.options().find(|option| option.name == name && !option.only_short)
        {
            return self.option(option, attached, rest);
        }
        let inverted = self.command.options().find(|option| {
            option.value == Value::Inversion && name.strip_prefix("no-").is_some_and(|n| n == option.name)
        });
        match inverted {
            Some(option) => {
                self.parsed.values.push((option.name, "false".into()));
                Ok(())
            }
            None => Err(Error::usage(format!("Unknown option '--{name}'"))),
        }
    }

    /// `-q`, `-t 5`, `-t5`, `-t=5`, or several flags at once as in `-it`.
    fn short(&mut self, word: &str, rest: &mut VecDeque<String>) -> Result<()> {
        let mut letters = word[1..].chars();
        while let Some(letter) = letters.next() {
            let Some(option) = self.command.options().find(|option| option.short == Some(letter)) else {
                return Err(Error::usage(format!("Unknown option '{word}'")));
            };
            let attached = letters.as_str();
            if option.value == Value::Flag || attached.is_empty() {
                self.option(option, None, rest)?;
            } else {
                let value = attached.strip_prefix('=').unwrap_or(attached);
                return self.option(option, Some(value.to_owned()), rest);
            }
        }
        Ok(())
    }

    fn option(
        &mut self,
        option: &'static Opt,
        attached: Option<String>,
        rest: &mut VecDeque<String>,
    ) -> Result<()> {
        let value = match (option.value, attached) {
            (Value::Flag | Value::Inversion, Some(value)) => {
                let name = option.display();
                return Err(Error::usage(format!(
                    "The option '{name}' does not take any value, but '{value}' was specified."
                )));
            }
            (Value::Flag, None) => {
                self.parsed.flags.push(option.name);
                return Ok(());
            }
            (Value::Inversion, None) => "true".into(),
            (_, Some(value)) => value,
            (_, None) => match rest.front() {
                Some(next) if !next.starts_with('-') || next == "-" => rest.pop_front().unwrap_or_default(),
                _ => return Err(Error::usage(format!("Missing value for '{}'", option.display()))),
            },
        };
        check_value(option, &value)?;
        self.parsed.values.push((option.name, value));
        Ok(())
    }

    fn check_positionals(&self) -> Result<()> {
        let given = self.parsed.positionals.len();
        let needed =
            self.command.arguments.iter().filter(|argument| argument.count != Count::Optional).count();
        if given < needed {
            let missing = self.command.arguments[given].display();
            return Err(Error::usage(format!("Missing expected argument '{missing}'")));
        }
        let unbounded = self.command.arguments.iter().any(|a| matches!(a.count, Count::Many | Count::Rest));
        let extra: Vec<_> = self
            .parsed
            .positionals
            .iter()
            .skip(self.command.arguments.len())
            .map(|word| format!("'{word}'"))
            .collect();
        match extra.as_slice() {
            _ if unbounded => Ok(()),
            [] => Ok(()),
            [one] => Err(Error::usage(format!("Unexpected argument {one}"))),
            many => Err(Error::usage(format!("{} unexpected arguments: {}", many.len(), many.join(", ")))),
        }
    }

    fn fill_in_defaults(&mut self) {
        for option in self.command.options() {
            if let (Some(default), None) = (option.default, self.parsed.value(option.name)) {
                self.parsed.values.push((option.name, default.into()));
            }
        }
    }
}

fn check_value(option: &Opt, value: &str) -> Result<()> {
    let problem = match option.value {
        Value::Number(_, most) if value.parse::<u64>().is_ok_and(|number| number <= most) => return Ok(()),
        Value::Number(..) => String::new(),
        Value::OneOf(_, words) if !words.contains(&value) => {
            let words: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
            let choice = match words.split_last() {
                Some((last, [])) => last.clone(),
                Some((last, [one])) => format!("{one} or {last}"),
                Some((last, others)) => format!("{}, or {last}", others.join(", ")),
                None => String::new(),
            };
            format!(". Please provide one of {choice}.")
        }
        _ => return Ok(()),
    };
    Err(Error::usage(format!("The value '{value}' is invalid for '{}'{problem}", option.display())))
}
