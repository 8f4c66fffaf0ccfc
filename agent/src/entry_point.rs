//! The entry point of `tart-kubelet`: from the command line to the exit code.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::cli::pull_printer::PullPrinter;
use crate::cli::{
    AgentArgs, Cli, DoctorArgs, GcArgs, ImagesCommand, ListArgs, PullArgs, StatusArgs, SubCommand,
    gc_dry_run, images_list, images_pull, join,
};
use crate::error_chain::chain;
use crate::os::{log_file, open_files};
use crate::{agent, shim};

/// Runs what the command line asks for. `version` is the program's.
pub fn run(version: &'static str) -> ExitCode {
    let parsed = Cli::command().version(version).try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((cli, matches))
    });
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        // Help and version are what was asked for.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => return fail(&first_paragraph(&error.render().to_string())),
    };
    log_to_stderr();
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        return fail("the TLS provider was installed twice");
    }
    let ended = match cli.command {
        Some(SubCommand::Shim { dir }) => run_shim(&dir),
        Some(SubCommand::Gc(args)) => run_gc(&args),
        Some(SubCommand::Images(ImagesCommand::List(args))) => run_list(&args),
        Some(SubCommand::Images(ImagesCommand::Pull(args))) => match run_pull(&args) {
            Ok(true) => Ok(()),
            // The failures have been printed.
            Ok(false) => return ExitCode::FAILURE,
            Err(message) => Err(message),
        },
        Some(command @ (SubCommand::Join(_) | SubCommand::Install(_) | SubCommand::Leave(_))) => {
            run_join(&command, &matches)
        }
        Some(SubCommand::Doctor(args)) => match run_doctor(&args) {
            Ok(true) => Ok(()),
            // The report says what is broken.
            Ok(false) => return ExitCode::FAILURE,
            Err(message) => Err(message),
        },
        Some(SubCommand::Status(args)) => run_status(&args),
        Some(SubCommand::Completions { shell }) => print_completions(shell),
        Some(SubCommand::Man { directory }) => {
            let written = manual::write_pages(Cli::command().version(version), &directory);
            written.map_err(|error| format!("cannot write man pages into {}: {error}", directory.display()))
        }
        None => run_agent(cli.agent),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(&message),
    }
}

fn run_agent(args: AgentArgs) -> Result<(), String> {
    if let Some(path) = &args.log_file {
        let followed = log_file::follow(path.clone());
        followed.map_err(|error| format!("cannot write the log {}: {error}", path.display()))?;
    }
    open_files::raise_limit();
    let runtime = start(Builder::new_multi_thread().worker_threads(2))?;
    let ended = runtime.block_on(agent::run(args)).map_err(|error| chain(&error));
    // Every task that is still running is safe to repeat or owned by a shim.
    runtime.shutdown_background();
    ended
}

fn run_shim(dir: &Path) -> Result<(), String> {
    open_files::raise_limit();
    let runtime = start(&mut Builder::new_current_thread())?;
    let stdin =
        io::stdin().as_fd().try_clone_to_owned().map_err(|error| format!("no standard input: {error}"))?;
    let ended = runtime.block_on(shim::run(dir, File::from(stdin))).map_err(|error| chain(&error));
    // A disk that hangs would keep the process, and with it the VM's lock.
    runtime.shutdown_background();
    ended
}

#[expect(clippy::print_stdout, reason = "the table that was asked for")]
fn run_gc(args: &GcArgs) -> Result<(), String> {
    if !args.dry_run {
        let only = "`tart-kubelet gc` deletes nothing by hand: the agent collects by itself";
        return Err(format!("{only}; `tart-kubelet gc --dry-run` shows what it would delete, and why"));
    }
    let runtime = start(&mut Builder::new_current_thread())?;
    let table = runtime.block_on(gc_dry_run::table(args)).map_err(|error| chain(&error))?;
    print!("{table}");
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the table that was asked for")]
fn run_list(args: &ListArgs) -> Result<(), String> {
    print!("{}", images_list::table(args).map_err(|error| chain(&error))?);
    Ok(())
}

fn run_join(command: &SubCommand, matches: &ArgMatches) -> Result<(), String> {
    // The flags as they were given go into the agent's job.
    let given = matches.subcommand().map_or(matches, |(_, given)| given);
    let say = |words: &str| {
        // The terminal may be gone.
        let _ = writeln!(io::stdout(), "{words}");
    };
    let runtime = start(&mut Builder::new_current_thread())?;
    runtime.block_on(async {
        let work = async {
            match command {
                SubCommand::Join(args) => join::join(args, given, say).await,
                SubCommand::Install(args) => join::install_with_kubeconfig(args, given, say).await,
                SubCommand::Leave(args) => join::leave_cluster(args, say).await,
                _ => Ok(()),
            }
        };
        tokio::select! {
            done = work => done.map_err(|error| chain(&error)),
            ended = told_to_end() => Err(ended),
        }
    })
}

#[expect(clippy::print_stdout, reason = "the report that was asked for")]
fn run_doctor(args: &DoctorArgs) -> Result<bool, String> {
    let runtime = start(&mut Builder::new_current_thread())?;
    let (report, is_well) = runtime.block_on(join::doctor(args)).map_err(|error| chain(&error))?;
    print!("{report}");
    Ok(is_well)
}

#[expect(clippy::print_stdout, reason = "the report that was asked for")]
fn run_status(args: &StatusArgs) -> Result<(), String> {
    let runtime = start(&mut Builder::new_current_thread())?;
    print!("{}", runtime.block_on(join::status(args)).map_err(|error| chain(&error))?);
    Ok(())
}

fn run_pull(args: &PullArgs) -> Result<bool, String> {
    let runtime = start(&mut Builder::new_current_thread())?;
    let printer = PullPrinter::new(args.output);
    let pull = images_pull::pull(args, |event| printer.print(event));
    runtime.block_on(async {
        tokio::select! {
            pulled = pull => pulled.map_err(|error| chain(&error)),
            // Dropping the pull kills its tart.
            ended = told_to_end() => Err(ended),
        }
    })
}

fn print_completions(shell: manual::Shell) -> Result<(), String> {
    let script = manual::completions(&Cli::command(), "tart-kubelet", shell);
    io::stdout().write_all(&script).map_err(|error| format!("cannot print: {error}"))
}

/// Waits for a signal that ends a sub-command.
async fn told_to_end() -> String {
    let wait_for = async |kind, name| match signal(kind) {
        Ok(mut signal) => {
            signal.recv().await;
            format!("ended by {name}")
        }
        Err(error) => format!("cannot listen for signals: {error}"),
    };
    tokio::select! {
        ended = wait_for(SignalKind::interrupt(), "SIGINT") => ended,
        ended = wait_for(SignalKind::terminate(), "SIGTERM") => ended,
        ended = wait_for(SignalKind::hangup(), "SIGHUP") => ended,
    }
}

fn start(builder: &mut Builder) -> Result<Runtime, String> {
    builder.enable_all().build().map_err(|error| format!("cannot start: {error}"))
}

/// Prints in one line why the program ends.
fn fail(message: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "tart-kubelet: {message}");
    ExitCode::from(2)
}

/// Clap's first paragraph in one line; the rest is about `--help`.
fn first_paragraph(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

fn log_to_stderr() {
    let chosen = std::env::var("TART_KUBELET_LOG").ok().and_then(|text| text.parse().ok());
    let filter = chosen.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    // On a full disk tracing would panic when it cannot print its own error to standard error.
    let log = fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    if io::stderr().is_terminal() {
        registry().with(log).with(filter).init();
    } else {
        registry().with(log.with_ansi(false).json().flatten_event(true)).with(filter).init();
    }
}
