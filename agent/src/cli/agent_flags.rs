//! The agent's flags as they were given, to be put into its job.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};

use super::AgentArgs;

/// Flags that name credentials: an installation puts these where the agent's job finds them.
const CREDENTIALS: &[&str] = &["kubeconfig", "bootstrap_kubeconfig"];

/// Whether a flag was given on the command line.
pub(crate) fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// The agent's flags that were given, by the command line or the environment, but for those of credentials.
pub(crate) fn given(matches: &ArgMatches) -> Vec<String> {
    let agent = AgentArgs::augment_args(Command::new("agent"));
    let mut flags = Vec::new();
    for argument in agent.get_arguments() {
        let (id, Some(long)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        let is_given =
            matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
        if !is_given || CREDENTIALS.contains(&id) {
            continue;
        }
        if !argument.get_action().takes_values() {
            flags.push(format!("--{long}"));
            continue;
        }
        let values = matches.get_raw(id).into_iter().flatten();
        flags.extend(values.map(|value| format!("--{long}={}", value.to_string_lossy())));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_flags_that_were_given_are_those_of_the_job() {
        let line = "tart-kubelet join api:6443 --token-file=- --max-pods 1 --disable-vm-gc --allowed-host-path=/a \
                    --allowed-host-path /b:ro --node-labels=a=b,c=d --vm-gc-interval=7m";
        let matches = Cli::command().get_matches_from(line.split_whitespace());
        let flags = given(matches.subcommand_matches("join").unwrap());
        assert_eq!(
            flags.iter().map(String::as_str).collect::<std::collections::BTreeSet<_>>(),
            [
                "--max-pods=1",
                "--disable-vm-gc",
                "--allowed-host-path=/a",
                "--allowed-host-path=/b:ro",
                "--node-labels=a=b,c=d",
                "--vm-gc-interval=7m",
            ]
            .into()
        );
        // The agent takes them as they are.
        let agent = Cli::parse_from(std::iter::once("tart-kubelet".to_owned()).chain(flags)).agent;
        assert!(agent.disable_vm_gc && agent.max_pods == 1 && agent.allowed_host_path.len() == 2);
    }
}
