//! The command line, as types.

mod arguments;
mod commands;
mod grammar;
mod help;
mod parser;

pub(crate) use arguments::{
    Clone, Create, Exec, Format, Get, Ip, List, Login, Prune, Pull, Push, Resolver, Run, Set, Stop, Suspend,
};

use crate::error::{Error, Result};
use crate::version;
use commands::COMMANDS;
use parser::{Parsed, Request};

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Invocation {
    /// Print this on stdout.
    Print(String),
    /// Carry this out.
    Command(Command),
}

/// A refused command line: the message, and the text about usage that follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsageError {
    pub(crate) message: String,
    pub(crate) usage: String,
}

/// One command with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    Create(Create),
    Clone(Clone),
    Run(Box<Run>),
    Set(Set),
    Get(Get),
    List(List),
    Login(Login),
    Logout { host: String },
    Ip(Ip),
    Exec(Exec),
    Pull(Pull),
    Push(Push),
    Import { path: String, name: String },
    Export { name: String, path: Option<String> },
    Prune(Prune),
    Rename { name: String, new_name: String },
    Stop(Stop),
    Delete { names: Vec<String> },
    Suspend(Suspend),
    Fqn { name: String },
}

/// Reads the words after the program's name.
pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Invocation, UsageError> {
    let mut words = words.into_iter().peekable();
    let known = || COMMANDS.iter().filter(|command| version::at_least(command.since));
    let wants_help = words.next_if(|word| word == "help").is_some();
    let Some(word) = words.next() else {
        return Ok(Invocation::Print(help::program(known())));
    };
    let Some(command) = known().find(|command| command.name == word) else {
        return match word.as_str() {
            "--help" | "-h" | "--help-hidden" => Ok(Invocation::Print(help::program(known()))),
            "--version" => Ok(Invocation::Print(format!("{}\n", version::name()))),
            _ => Err(unknown_word(&word)),
        };
    };
    if wants_help {
        return Ok(Invocation::Print(help::command(command, false)));
    }
    let nothing_given = words.peek().is_none();
    let usage_error = |error: Error| UsageError {
        message: error.description().into(),
        // A command without any argument prints its whole help.
        usage: if nothing_given {
            format!("\n{}", help::command(command, false).trim_end())
        } else {
            help::usage(Some(command))
        },
    };
    match parser::parse(command, words).map_err(usage_error)? {
        Request::Help(hidden) => Ok(Invocation::Print(help::command(command, hidden))),
        Request::Version => Ok(Invocation::Print(format!("{}\n", version::name()))),
        Request::Execute(parsed) => typed(command.name, parsed).map(Invocation::Command).map_err(usage_error),
    }
}

/// What follows the message of a usage error of this command.
pub(crate) fn usage(command: &Command) -> String {
    help::usage(COMMANDS.iter().find(|grammar| grammar.name == command.name()))
}

fn unknown_word(word: &str) -> UsageError {
    let message = if word.starts_with('-') {
        format!("Unknown option '{word}'")
    } else {
        format!("Unexpected argument '{word}'")
    };
    UsageError { message, usage: help::usage(None) }
}

impl Command {
    /// The word on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Clone(_) => "clone",
            Self::Run(_) => "run",
            Self::Set(_) => "set",
            Self::Get(_) => "get",
            Self::List(_) => "list",
            Self::Login(_) => "login",
            Self::Logout { .. } => "logout",
            Self::Ip(_) => "ip",
            Self::Exec(_) => "exec",
            Self::Pull(_) => "pull",
            Self::Push(_) => "push",
            Self::Import { .. } => "import",
            Self::Export { .. } => "export",
            Self::Prune(_) => "prune",
            Self::Rename { .. } => "rename",
            Self::Stop(_) => "stop",
            Self::Delete { .. } => "delete",
            Self::Suspend(_) => "suspend",
            Self::Fqn { .. } => "fqn",
        }
    }
}

fn typed(command: &str, mut parsed: Parsed) -> Result<Command> {
    let format = match parsed.value("format").as_deref() {
        Some("json") => Format::Json,
        _ => Format::Text,
    };
    let concurrency = parsed.number("concurrency").unwrap_or(4);
    Ok(match command {
        "create" => Command::Create(Create {
            name: parsed.next(),
            from_ipsw: parsed.value("from-ipsw"),
            linux: parsed.flag("linux"),
            disk_size: parsed.number("disk-size").unwrap_or(50),
            asif: parsed.value("disk-format").as_deref() == Some("asif"),
        }),
        "clone" => Command::Clone(Clone {
            source_name: parsed.next(),
            new_name: parsed.next(),
            concurrency,
            prune_limit: parsed.number("prune-limit").unwrap_or(100),
        }),
        "run" => Command::Run(Box::new(run(&mut parsed))),
        "set" => Command::Set(Set {
            name: parsed.next(),
            cpu: parsed.number("cpu"),
            memory: parsed.number("memory"),
            display: parsed.value("display"),
            display_refit: parsed.value("display-refit").map(|value| value == "true"),
            random_mac: parsed.flag("random-mac"),
            random_serial: parsed.flag("random-serial"),
            disk: parsed.value("disk"),
            disk_size: parsed.number("disk-size"),
        }),
        "get" => Command::Get(Get { name: parsed.next(), format }),
        "list" => Command::List(List { source: parsed.value("source"), format, quiet: parsed.flag("quiet") }),
        "login" => Command::Login(Login {
            host: parsed.next(),
            username: parsed.value("username"),
            password_stdin: parsed.flag("password-stdin"),
            no_validate: parsed.flag("no-validate"),
        }),
        "logout" => Command::Logout { host: parsed.next() },
        "ip" => Command::Ip(Ip {
            name: parsed.next(),
            wait: parsed.number("wait").unwrap_or(0),
            resolver: resolver(&parsed.value("resolver").unwrap_or_default())?,
        }),
        "exec" => Command::Exec(Exec {
            name: parsed.next(),
            interactive: parsed.flag("interactive"),
            tty: parsed.flag("tty"),
            command: parsed.rest(),
        }),
        "pull" => Command::Pull(Pull { remote_name: parsed.next(), concurrency }),
        "push" => Command::Push(Push {
            local_name: parsed.next(),
            remote_names: parsed.rest(),
            concurrency,
            labels: parsed.values("label"),
            populate_cache: parsed.flag("populate-cache"),
        }),
        "import" => Command::Import { path: parsed.next(), name: parsed.next() },
        "export" => Command::Export { name: parsed.next(), path: parsed.rest().pop() },
        "prune" => Command::Prune(Prune {
            vms: parsed.value("entries").as_deref() == Some("vms"),
            older_than: parsed.number("older-than"),
            space_budget: parsed.number("space-budget").or_else(|| parsed.number("cache-budget")),
            gc: parsed.flag("gc"),
        }),
        "rename" => Command::Rename { name: parsed.next(), new_name: parsed.next() },
        "stop" => {
            Command::Stop(Stop { name: parsed.next(), timeout: parsed.number("timeout").unwrap_or(30) })
        }
        "delete" => Command::Delete { names: parsed.rest() },
        "suspend" => Command::Suspend(Suspend { name: parsed.next() }),
        _ => Command::Fqn { name: parsed.next() },
    })
}

fn run(parsed: &mut Parsed) -> Run {
    Run {
        name: parsed.next(),
        no_graphics: parsed.flag("no-graphics"),
        serial: parsed.flag("serial"),
        serial_path: parsed.value("serial-path"),
        no_audio: parsed.flag("no-audio"),
        no_clipboard: parsed.flag("no-clipboard"),
        recovery: parsed.flag("recovery"),
        vnc: parsed.flag("vnc"),
        vnc_experimental: parsed.flag("vnc-experimental"),
        disk: parsed.values("disk"),
        rosetta: parsed.value("rosetta"),
        dir: parsed.values("dir"),
        nested: parsed.flag("nested"),
        net_bridged: parsed.values("net-bridged"),
        net_softnet: parsed.flag("net-softnet"),
        net_softnet_allow: parsed.value("net-softnet-allow"),
        net_softnet_block: parsed.value("net-softnet-block"),
        net_softnet_expose: parsed.value("net-softnet-expose"),
        net_softnet_control_fd: parsed.number("net-softnet-control-fd"),
        net_host: parsed.flag("net-host"),
        root_disk_opts: parsed.value("root-disk-opts"),
        suspendable: parsed.flag("suspendable"),
        capture_system_keys: parsed.flag("capture-system-keys"),
        no_trackpad: parsed.flag("no-trackpad"),
        no_pointer: parsed.flag("no-pointer"),
        no_keyboard: parsed.flag("no-keyboard"),
        provisioning_opts: parsed.value("provisioning-opts"),
    }
}

fn resolver(word: &str) -> Result<Resolver> {
    match word {
        "dhcp" => Ok(Resolver::Dhcp),
        "arp" => Ok(Resolver::Arp),
        "agent" if version::at_least((2, 28, 0)) => Ok(Resolver::Agent),
        _ => {
            let known =
                if version::at_least((2, 28, 0)) { "'dhcp', 'arp', or 'agent'" } else { "'dhcp' or 'arp'" };
            Err(Error::usage(format!(
                "The value '{word}' is invalid for '--resolver <resolver>'. Please provide one of {known}."
            )))
        }
    }
}
