//! A simulated `tart`: same commands, files, locks, messages and exit codes, without a Mac.

mod cli;
mod command;
mod error;
mod guest;
mod guest_agent;
mod home;
mod host;
mod interrupt;
mod oci;
mod output;
mod version;

use std::process::ExitCode;

use cli::Invocation;
use error::Error;
use host::command_faults::{self, Effect};
use host::faults;
use output::stdout;

fn main() -> ExitCode {
    if let Some(code) = guest::entry() {
        return code;
    }
    faults::check();
    let command = match cli::parse(std::env::args().skip(1)) {
        Ok(Invocation::Command(command)) => command,
        Ok(Invocation::Print(text)) => {
            // Programs look for tart with `--version`, so it has the faults of any command.
            if command_faults::apply("--version") == Effect::Proceed {
                stdout::write(&text);
            }
            return ExitCode::SUCCESS;
        }
        Err(cli::UsageError { message, usage }) => {
            eprintln!("Error: {message}\n{usage}");
            return ExitCode::from(64);
        }
    };
    let usage = cli::usage(&command);
    command::execute(command).unwrap_or_else(|error| {
        match &error {
            Error::Runtime { message, .. } => eprintln!("{message}"),
            Error::Other(message) => eprintln!("Error: {message}"),
            Error::Usage(message) => eprintln!("Error: {message}\n{usage}"),
        }
        ExitCode::from(error.exit_code())
    })
}
