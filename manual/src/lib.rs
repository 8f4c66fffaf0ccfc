//! What both programs tell a shell and `man` about themselves, from the definition of their command lines.

use std::io;
use std::path::Path;

use clap::{Command, ValueEnum};

/// A shell that can complete commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash 4 or later
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// The script by which a shell completes a program's commands and flags.
pub fn completions(mut program: Command, shell: Shell) -> Vec<u8> {
    use clap_complete::aot::{Shell as Known, generate};
    let shell = match shell {
        Shell::Bash => Known::Bash,
        Shell::Zsh => Known::Zsh,
        Shell::Fish => Known::Fish,
    };
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    generate(shell, &mut program, name, &mut script);
    script
}

/// Writes a man page for the program and for each of its commands into a directory, which is made if it is missing.
pub fn write_pages(program: Command, directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(program, directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;
    use std::collections::BTreeSet;

    fn program() -> Command {
        let pull = Command::new("pull").arg(Arg::new("quiet").long("quiet"));
        Command::new("program")
            .subcommand(Command::new("images").subcommand(pull))
            .subcommand(Command::new("shim").hide(true))
    }

    #[test]
    fn each_shell_is_told_the_commands_and_flags() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completions(program(), *shell)).unwrap();
            assert!(script.contains("images") && script.contains("quiet"), "{shell:?}: {script}");
        }
    }

    #[test]
    fn each_command_that_is_shown_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let pages = directory.path().join("man");
        write_pages(program(), &pages).unwrap();
        let names = std::fs::read_dir(&pages).unwrap();
        let names: BTreeSet<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(
            names.iter().map(String::as_str).collect::<Vec<_>>(),
            ["program-images-pull.1", "program-images.1", "program.1"]
        );
        let page = std::fs::read_to_string(pages.join("program-images-pull.1")).unwrap();
        assert!(page.contains(".TH") && page.contains("quiet"), "{page}");
    }
}
