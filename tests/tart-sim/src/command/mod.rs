//! What each command does, one file for one command or for a few that belong together.

mod archive;
mod clone;
mod create;
mod exec;
mod ip;
mod list;
mod login;
mod names;
mod prune;
mod push;
mod run;
mod set;
mod stop;
mod suspend;
mod validation;

use std::process::ExitCode;

use crate::cli::{self, Command};
use crate::error::Result;
use crate::home::Home;
use crate::host::command_faults::{self, Effect};
use crate::interrupt;
use crate::oci::{self, RemoteName};
use crate::output::stdout;

/// Carries a command out.
pub(crate) fn execute(command: Command) -> Result<ExitCode> {
    // The commands about running VMs have signal handlers of their own.
    let about_running = matches!(
        command,
        Command::Run(_) | Command::Exec(_) | Command::Ip(_) | Command::Stop(_) | Command::Suspend(_)
    );
    if !about_running {
        interrupt::listen();
    }
    if command_faults::apply(command.name()) == Effect::Finished {
        return Ok(ExitCode::SUCCESS);
    }
    let home = Home::open()?;
    // `pull` and `clone` may go on with a directory in `tmp` that an earlier command left unfinished.
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
    validation::at_least_one_connection(args.concurrency)?;
    let name = RemoteName::parse(&args.remote_name)?;
    stdout::line(format!("pulling {name}..."));
    oci::pull(home, &name)
}
