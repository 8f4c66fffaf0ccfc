//! `launchctl`: asks launchd, and says in Apple's words what it answered.

mod errors;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mac_sim::control::{Domain, Refusal, Reply, Request, ask};
use mac_sim::fault::{Fault, FaultDirectory, REFUSED};
use mac_sim::settings::SIMULATOR;
use nix::unistd::geteuid;

/// What `launchctl` prints when its arguments name no service.
const NO_SERVICE: &str = "Unrecognized target specifier. <service-target> takes a form of <domain-target>/<service-id>.\n\
    Please refer to `man launchctl` for explanation of the <domain-target> specifiers.";

/// Why `launchctl` does not even ask.
enum Usage {
    /// The target is none.
    Target(&'static str),
    /// The arguments are not those of the command.
    Arguments(&'static str),
    /// There is no such command.
    Command(String),
    /// The command exists, but not here.
    NotSimulated(String),
}

/// A command, and how its refusal begins.
struct Asked {
    request: Request,
    verb: Verb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Print,
    Quiet,
    Bootstrap,
    Bootout,
    Kickstart { prints_pid: bool },
    Kill,
    List,
}

/// Runs `launchctl` with these arguments.
pub(super) fn main(words: &[String]) -> ExitCode {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    if let ["error", number] = words.as_slice() {
        return print_error(number);
    }
    let asked = match parse(&words) {
        Ok(asked) => asked,
        Err(usage) => return refuse_usage(&usage),
    };
    let (domain, label) = subject(&asked.request);
    let answered = match ask(&Path::new(SIMULATOR).join("launchd.sock"), &asked.request, None) {
        Ok(answered) => answered,
        Err(error) => {
            eprintln!("mac-sim: launchd does not answer: {error}");
            return ExitCode::from(REFUSED);
        }
    };
    match answered {
        Ok(reply) => {
            tell(&reply, asked.verb);
            ExitCode::SUCCESS
        }
        Err(refusal) => {
            refuse(&refusal, asked.verb, domain, &label);
            ExitCode::from(refusal.code)
        }
    }
}

fn parse(words: &[&str]) -> Result<Asked, Usage> {
    let asked = |request, verb| Ok(Asked { request, verb });
    match words {
        ["print", target] => match job(target) {
            Some((domain, label)) => asked(Request::Print(domain, label), Verb::Print),
            None => asked(Request::PrintDomain(domain(target).ok_or(Usage::Target("print"))?), Verb::Print),
        },
        ["print-disabled", target] => {
            let domain = domain(target).ok_or(Usage::Target("print-disabled"))?;
            asked(Request::PrintDisabled(domain), Verb::Print)
        }
        ["list"] => asked(Request::List(own_domain()), Verb::List),
        ["list", label] => asked(Request::ListJob(own_domain(), (*label).to_owned()), Verb::List),
        ["enable", target] => {
            let (domain, label) = job(target).ok_or(Usage::Target("enable"))?;
            asked(Request::SetEnabled(domain, label, true), Verb::Quiet)
        }
        ["disable", target] => {
            let (domain, label) = job(target).ok_or(Usage::Target("disable"))?;
            asked(Request::SetEnabled(domain, label, false), Verb::Quiet)
        }
        ["bootstrap", target, path] => {
            let domain = domain(target).ok_or(Usage::Target("bootstrap"))?;
            asked(Request::Bootstrap(domain, absolute(path)), Verb::Bootstrap)
        }
        ["bootout", target, path] => {
            let domain = domain(target).ok_or(Usage::Target("bootout"))?;
            asked(Request::BootoutPath(domain, absolute(path)), Verb::Bootout)
        }
        ["bootout", target] => {
            let (domain, label) = job(target).ok_or(Usage::Target("bootout"))?;
            asked(Request::Bootout(domain, label), Verb::Bootout)
        }
        ["kickstart", options @ .., target] => kickstart(options, target),
        ["kill", signal, target] => {
            let (domain, label) = job(target).ok_or(Usage::Target("kill"))?;
            let signal = errors::signal(signal).ok_or(Usage::Arguments("kill"))?;
            asked(Request::Kill(domain, label, signal), Verb::Kill)
        }
        [
            "bootstrap" | "bootout" | "kickstart" | "kill" | "enable" | "disable" | "print"
            | "print-disabled",
            ..,
        ] => Err(Usage::Arguments("service-target")),
        [
            known @ ("load" | "unload" | "start" | "stop" | "asuser" | "blame" | "limit" | "managername"
            | "setenv"),
            ..,
        ] => Err(Usage::NotSimulated((*known).to_owned())),
        [] => Err(Usage::Arguments("")),
        [other, ..] => Err(Usage::Command((*other).to_owned())),
    }
}

fn kickstart(options: &[&str], target: &str) -> Result<Asked, Usage> {
    let (mut kill, mut prints_pid) = (false, false);
    for option in options {
        let letters = option.strip_prefix('-').filter(|letters| !letters.is_empty());
        for letter in letters.ok_or(Usage::Target("kickstart"))?.chars() {
            match letter {
                'k' => kill = true,
                'p' => prints_pid = true,
                _ => return Err(Usage::Arguments("kickstart")),
            }
        }
    }
    let (domain, label) = job(target).ok_or(Usage::Target("kickstart"))?;
    Ok(Asked { request: Request::Kickstart { domain, label, kill }, verb: Verb::Kickstart { prints_pid } })
}

fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path))
}

/// The domain that `launchctl list` shows.
fn own_domain() -> Domain {
    if geteuid().is_root() { Domain::System } else { Domain::Gui(geteuid().as_raw()) }
}

/// Reads `system`, `user/UID` or `gui/UID`.
fn domain(text: &str) -> Option<Domain> {
    match text.trim_end_matches('/').split('/').collect::<Vec<_>>().as_slice() {
        ["system"] => Some(Domain::System),
        ["user", uid] => uid.parse().ok().map(Domain::User),
        ["gui", uid] => uid.parse().ok().map(Domain::Gui),
        _ => None,
    }
}

/// Reads a domain and a label.
fn job(text: &str) -> Option<(Domain, String)> {
    let (front, label) = text.rsplit_once('/')?;
    (!label.is_empty()).then_some((domain(front)?, label.to_owned()))
}

/// The job that a request is about.
fn subject(request: &Request) -> (Domain, String) {
    match request {
        Request::Print(domain, label)
        | Request::ListJob(domain, label)
        | Request::SetEnabled(domain, label, _)
        | Request::Bootout(domain, label)
        | Request::Kill(domain, label, _)
        | Request::Kickstart { domain, label, .. } => (*domain, label.clone()),
        Request::PrintDomain(domain)
        | Request::PrintDisabled(domain)
        | Request::List(domain)
        | Request::Bootstrap(domain, _)
        | Request::BootoutPath(domain, _) => (*domain, String::new()),
        _ => (Domain::System, String::new()),
    }
}

fn tell(reply: &Reply, verb: Verb) {
    let mut stdout = io::stdout();
    // A reader that has gone needs nothing.
    let _ = match (reply, verb) {
        (Reply::Text(text), _) => stdout.write_all(text.as_bytes()),
        (Reply::Pid(pid), Verb::Kickstart { prints_pid: true }) if stdout.is_terminal() => {
            writeln!(stdout, "service spawned with pid: {pid}")
        }
        (Reply::Pid(pid), Verb::Kickstart { prints_pid: true }) => writeln!(stdout, "{pid}"),
        (Reply::Pid(_) | Reply::Done, _) => Ok(()),
    };
}

fn refuse(refusal: &Refusal, verb: Verb, domain: Domain, label: &str) {
    if !refusal.detail.is_empty() {
        eprintln!("{}", refusal.detail);
    }
    if refusal.code == REFUSED {
        return;
    }
    let number = format!("{}: {}", refusal.code, errors::text(refusal.code).unwrap_or("Unknown error"));
    match (verb, refusal.code) {
        (Verb::List, 113) => {
            eprintln!("Could not find service \"{label}\" in domain for {}", domain_words(domain))
        }
        (Verb::Bootstrap, _) => {
            eprintln!("Bootstrap failed: {number}");
            if !geteuid().is_root() {
                eprintln!("Try re-running the command as root for richer errors.");
            }
        }
        (Verb::Bootout, _) => eprintln!("Boot-out failed: {number}"),
        (Verb::Kill, 3) => eprintln!("No process to signal."),
        (_, 112) => {
            bad_request();
            eprintln!("Could not find domain for {}", domain_words(domain));
        }
        (_, 113) => {
            bad_request();
            eprintln!("Could not find service \"{label}\" in domain for {}", domain_words(domain));
        }
        (Verb::Kickstart { .. }, _) => eprintln!("Could not kickstart service \"{label}\": {number}"),
        _ => eprintln!("{}", errors::text(refusal.code).unwrap_or("Unknown error")),
    }
}

/// Older releases do not say it.
fn bad_request() {
    let flavour = FaultDirectory::of_this_mac().parameter(Fault::Flavour);
    if flavour.ok().flatten().as_deref() != Some("old") {
        eprintln!("Bad request.");
    }
}

fn domain_words(domain: Domain) -> String {
    match domain {
        Domain::System => "system".to_owned(),
        Domain::User(uid) => format!("uid: {uid}"),
        Domain::Gui(uid) => format!("user gui: {uid}"),
    }
}

fn refuse_usage(usage: &Usage) -> ExitCode {
    match usage {
        Usage::Target(command) => {
            eprintln!("{NO_SERVICE}\nUsage: launchctl {command} <service-target>");
            ExitCode::from(64)
        }
        Usage::Arguments(command) => {
            eprintln!("Usage: launchctl {command}");
            ExitCode::from(64)
        }
        Usage::Command(command) => {
            eprintln!(
                "Unrecognized subcommand: {command}\nUsage: launchctl <subcommand> ... | help [subcommand]"
            );
            ExitCode::FAILURE
        }
        Usage::NotSimulated(command) => {
            eprintln!("mac-sim: launchctl {command} is not simulated");
            ExitCode::from(REFUSED)
        }
    }
}

fn print_error(number: &str) -> ExitCode {
    let Ok(number) = number.parse::<u8>() else {
        eprintln!("Usage: launchctl error [posix|mach|bootstrap] <code>");
        return ExitCode::from(64);
    };
    println!("{number}: {}", errors::text(number).unwrap_or("unknown error code"));
    ExitCode::SUCCESS
}
