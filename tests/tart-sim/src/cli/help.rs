//! Usage lines and help screens in the layout of Swift's argument parser.

use std::fmt::Write as _;

use super::grammar::{Argument, Command, Count, Opt, Value};

/// The column at which descriptions start.
const INDENT: usize = 26;

/// The lines after the message of a usage error.
pub(crate) fn usage(command: Option<&Command>) -> String {
    match command {
        Some(command) => {
            let name = command.name;
            format!("Usage: {}\n  See 'tart {name} --help' for more information.", synopsis(command, false))
        }
        None => "Usage: tart <subcommand>\n  See 'tart --help' for more information.".into(),
    }
}

/// The help screen of a command.
pub(crate) fn command(command: &Command, show_hidden: bool) -> String {
    let mut text = format!("OVERVIEW: {}\n\nUSAGE: {}\n", command.about, synopsis(command, show_hidden));
    if !command.arguments.is_empty() {
        text.push_str("\nARGUMENTS:\n");
        for argument in command.arguments {
            row(&mut text, &format!("<{}>", argument.name), argument.about);
        }
    }
    text.push_str("\nOPTIONS:\n");
    for option in command.options().filter(|option| show_hidden || !option.hidden) {
        let about = match option.default {
            Some(default) => format!("{} (default: {default})", option.about),
            None => option.about.into(),
        };
        row(&mut text, &label(option), &about);
    }
    row(&mut text, "--version", "Show the version.");
    row(&mut text, "-h, --help", "Show help information.");
    text
}

/// The help screen of the program.
pub(crate) fn program<'a>(commands: impl Iterator<Item = &'a Command>) -> String {
    let mut text = String::from("USAGE: tart <subcommand>\n\nOPTIONS:\n");
    row(&mut text, "--version", "Show the version.");
    row(&mut text, "-h, --help", "Show help information.");
    text.push_str("\nSUBCOMMANDS:\n");
    for command in commands.filter(|command| !command.hidden) {
        row(&mut text, command.name, command.about);
    }
    text.push_str("\n  See 'tart help <subcommand>' for detailed help.\n");
    text
}

fn synopsis(command: &Command, show_hidden: bool) -> String {
    let mut line = format!("tart {}", command.name);
    // Options come before the rest argument: what follows it belongs to the guest's command.
    let rest = command.arguments.iter().any(|argument| argument.count == Count::Rest);
    if !rest {
        arguments(&mut line, command.arguments);
    }
    for option in command.options().filter(|option| show_hidden || !option.hidden) {
        let name = match option.value {
            Value::Inversion => format!("--{0}|--no-{0}", option.name),
            _ => option.display(),
        };
        // Writing to a string cannot fail.
        let _ = if option.repeats { write!(line, " [{name} ...]") } else { write!(line, " [{name}]") };
    }
    if rest {
        arguments(&mut line, command.arguments);
    }
    line
}

fn arguments(line: &mut String, arguments: &[Argument]) {
    for argument in arguments {
        let _ = match argument.count {
            Count::Optional => write!(line, " [{}]", argument.display()),
            _ => write!(line, " {}", argument.display()),
        };
    }
}

fn label(option: &Opt) -> String {
    match (option.short, option.value) {
        (Some(_), _) if option.only_short => option.display(),
        (Some(short), _) => format!("-{short}, {}", option.display()),
        (None, Value::Inversion) => format!("--{0}/--no-{0}", option.name),
        (None, _) => option.display(),
    }
}

fn row(text: &mut String, label: &str, about: &str) {
    // A label that is too long has a line of its own.
    let _ = if label.len() + 2 < INDENT {
        writeln!(text, "  {label:width$}{about}", width = INDENT - 2)
    } else {
        writeln!(text, "  {label}\n{:INDENT$}{about}", "")
    };
}
