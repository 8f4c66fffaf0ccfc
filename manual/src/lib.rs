//! What both programs tell a shell and `man` about themselves, from the definition of their command lines.

use std::io;
use std::path::Path;

use clap::{Command, ValueEnum};
use clap_complete::aot::{Bash, Fish, Zsh, generate};
use clap_mangen::Man;

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

/// The script by which a shell completes a program's commands and flags, but for commands that are hidden.
pub fn completions(program: &Command, name: &'static str, shell: Shell) -> Vec<u8> {
    // The generators show hidden commands, too, and none can be taken away.
    let mut shown = Command::new(name)
        // No shell shows it, but it brings the flag.
        .version("")
        .args(program.get_arguments().cloned())
        .groups(program.get_groups().cloned())
        .subcommands(program.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
    let mut script = Vec::new();
    // Not by their enum of all shells: the program would have the code for each.
    match shell {
        Shell::Bash => {
            generate(Bash, &mut shown, name, &mut script);
            script = with_one_name(&script, name);
        }
        Shell::Zsh => generate(Zsh, &mut shown, name, &mut script),
        Shell::Fish => generate(Fish, &mut shown, name, &mut script),
    }
    script
}

/// bash's script with one name for the program. `clap_complete` 4.6.11 has two for a program with a dash in its name, `a__b` and
/// `a__subcmd__b`, and such a script completes no flag of a command.
fn with_one_name(script: &[u8], name: &str) -> Vec<u8> {
    let script = String::from_utf8_lossy(script);
    script.replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__")).into_bytes()
}

/// Writes a man page for the program and for each of its commands into a directory, which is made if it is missing.
pub fn write_pages(program: Command, directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let source = format!("{} {}", program.get_name(), program.get_version().unwrap_or_default());
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let mut open = vec![program];
    while let Some(command) = open.pop() {
        open.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
        let page = Man::new(command).source(&source).manual("tart-kubelet");
        let mut text = Vec::new();
        page.render(&mut text)?;
        std::fs::write(directory.join(page.get_filename()), text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;
    use std::collections::BTreeSet;

    fn program() -> Command {
        let pull = Command::new("pull").arg(Arg::new("quiet").long("quiet"));
        Command::new("a-program")
            .version("1.2.3")
            .arg(Arg::new("node").long("node"))
            .subcommand(Command::new("images").subcommand(pull))
            .subcommand(Command::new("shim").hide(true))
    }

    #[test]
    fn each_shell_is_told_the_commands_and_flags() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completions(&program(), "a-program", *shell)).unwrap();
            for word in ["images", "quiet", "node", "version"] {
                assert!(script.contains(word), "{shell:?} knows no {word}: {script}");
            }
            assert!(!script.contains("shim"), "{shell:?}: {script}");
            assert!(!script.contains("a__subcmd__program"), "{shell:?} has two names for it: {script}");
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
            ["a-program-images-pull.1", "a-program-images.1", "a-program.1"]
        );
        let page = std::fs::read_to_string(pages.join("a-program-images-pull.1")).unwrap();
        assert!(page.contains(".TH") && page.contains("a-program 1.2.3") && page.contains("quiet"), "{page}");
    }
}
