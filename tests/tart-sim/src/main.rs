//! A simulated `tart`: same commands, files, locks, messages and exit codes, without a Mac.

mod archive;
mod cli;
mod clone;
mod config;
mod console;
mod copy;
mod create;
mod disturbance;
mod error;
mod exec;
mod faults;
mod file_lock;
mod foundation;
mod guest;
mod guest_agent;
mod home;
mod host;
mod identity;
mod image;
mod interrupt;
mod ip;
mod json;
mod leases;
mod list;
mod login;
mod mac;
mod names;
mod oci;
mod prune;
mod push;
mod run;
mod set;
mod space;
mod stop;
mod suspend;
mod table;
mod version;
mod vm_dir;

use std::process::ExitCode;

use cli::{Command, Invocation};
use disturbance::Effect;
use error::{Error, Result};
use home::Home;
use oci::RemoteName;

fn main() -> ExitCode {
    if let Some(code) = guest::entry() {
        return code;
    }
    faults::check();
    let command = match cli::parse(std::env::args().skip(1)) {
        Ok(Invocation::Command(command)) => command,
        Ok(Invocation::Print(text)) => {
            // `--version` is what others probe tart with, so it is disturbed as any command is.
            if disturbance::disturb("--version") == Effect::Proceed {
                console::write(&text);
            }
            return ExitCode::SUCCESS;
        }
        Err(cli::UsageError { message, usage }) => {
            eprintln!("Error: {message}\n{usage}");
            return ExitCode::from(64);
        }
    };
    let usage = cli::usage(&command);
    execute(command).unwrap_or_else(|error| {
        match &error {
            Error::Runtime { message, .. } => eprintln!("{message}"),
            Error::Other(message) => eprintln!("Error: {message}"),
            Error::Usage(message) => eprintln!("Error: {message}\n{usage}"),
        }
        ExitCode::from(error.exit_code())
    })
}

fn execute(command: Command) -> Result<ExitCode> {
    // The ones that deal with running VMs have their own idea of signals.
    let about_running = matches!(
        command,
        Command::Run(_) | Command::Exec(_) | Command::Ip(_) | Command::Stop(_) | Command::Suspend(_)
    );
    if !about_running {
        interrupt::listen();
    }
    if disturbance::disturb(command.name()) == Effect::Finished {
        return Ok(ExitCode::SUCCESS);
    }
    let home = Home::open()?;
    // These two may be in the middle of putting something together that they could go on with.
    if !matches!(command, Command::Pull(_) | Command::Clone(_))
        && let Err(error) = home.collect_garbage()
    {
        eprintln!("Failed to perform garbage collection: {error}");
    }
    match command {
        Command::Run(args) => return run::run(*args),
        Command::Exec(args) => return exec::exec(args),
        Command::Ip(args) => return ip::ip(&args),
        Command::Stop(args) => return stop::stop(&args),
        Command::Suspend(args) => return suspend::suspend(args),
        Command::Create(args) => create::create(&home, &args)?,
        Command::Clone(args) => clone::clone(&home, &args)?,
        Command::Set(args) => set::set(&home, &args)?,
        Command::Get(args) => list::get(&home, &args)?,
        Command::List(args) => list::list(&home, &args)?,
        Command::Login(args) => login::login(&args)?,
        Command::Logout { host } => login::logout(&host)?,
        Command::Pull(args) => pull(&home, &args)?,
        Command::Push(args) => push::push(&home, &args)?,
        Command::Import { path, name } => archive::import(&home, &path, &name)?,
        Command::Export { name, path } => archive::export(&home, &name, path.as_deref())?,
        Command::Prune(args) => prune::prune(&home, &args)?,
        Command::Rename { name, new_name } => names::rename(&home, &name, &new_name)?,
        Command::Delete { names } => names::delete(&home, &names)?,
        Command::Fqn { name } => names::fqn(&home, &name)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn pull(home: &Home, args: &cli::Pull) -> Result<()> {
    clone::at_least_one_connection(args.concurrency)?;
    let name = RemoteName::parse(&args.remote_name)?;
    console::line(format!("pulling {name}..."));
    oci::pull(home, &name)
}
