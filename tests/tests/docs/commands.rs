//! Each command that the documentation shows is run by a test, is marked with what a test lacks, or is held against the program that it names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tart_kubelet_tests::pages::{Marker, ShellBlock, pages, shell_blocks, workspace};
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;

/// The tests that take their commands from the pages.
const RUNNERS: [&str; 2] = [
    "the_documented_commands_install_change_upgrade_and_uninstall",
    "the_documented_commands_let_cluster_api_see_the_nodes",
];

/// What a command was held against.
#[derive(Debug, PartialEq, Eq)]
enum Held {
    /// The program, the chart or the workspace, and nothing was wrong.
    Checked,
    /// Nothing: there is no such program where tests run.
    Unknown,
}

/// What commands are held against.
struct Programs {
    kubectl: PathBuf,
    agent: PathBuf,
    provider: PathBuf,
    makefile: String,
    schema: Value,
    /// Help that was read before.
    help: BTreeMap<Vec<String>, String>,
}

/// A command line as its words, without quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, c) if c.is_whitespace() => words.push(std::mem::take(&mut word)),
            (_, c) => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a text has a word, and not only a longer one.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let next = text[at + word.len()..].chars().next();
        !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '-')
    })
}

impl Programs {
    async fn new() -> Result<Self> {
        let read =
            |path: &str| std::fs::read_to_string(workspace().join(path)).with_context(|| path.to_owned());
        let kubectl = programs::control_plane(&Sandbox::shared()?, &["kubectl"]).await?.join("kubectl");
        Ok(Self {
            kubectl,
            agent: programs::agent()?,
            provider: programs::provider()?,
            makefile: read("Makefile")?,
            schema: serde_json::from_str(&read("packaging/chart/values.schema.json")?)?,
            help: BTreeMap::new(),
        })
    }

    /// Holds one command against what it names.
    fn check(&mut self, page: &str, line: &str) -> Result<Held> {
        let all = words(line);
        let mut rest = all.as_slice();
        // Somewhere else, or as another user, it is the same command.
        loop {
            rest = match rest {
                [ssh, _, more @ ..] if ssh == "ssh" && !more.is_empty() && !more[0].starts_with('-') => more,
                [sudo, more @ ..] if sudo == "sudo" => more,
                _ => break,
            };
        }
        let (program, arguments) = rest.split_first().context("an empty command")?;
        match program.as_str() {
            "tart-kubelet" => self.own(&self.agent.clone(), arguments),
            "tart-provider" => self.own(&self.provider.clone(), arguments),
            "kubectl" => self.kubectl(page, arguments),
            "helm" => self.helm(page, arguments),
            "make" => self.make(arguments),
            "cargo" => cargo(arguments),
            _ => Ok(Held::Unknown),
        }
    }

    /// A program of the workspace: its sub-commands and flags are in its help.
    fn own(&mut self, program: &Path, arguments: &[String]) -> Result<Held> {
        let mut call = vec![program.display().to_string()];
        let mut rest = arguments.iter().peekable();
        while let Some(word) = rest.next_if(|word| !word.starts_with('-')) {
            let help = self.help(&call)?;
            let Some((_, commands)) = help.split_once("\nCommands:\n") else { break };
            let commands = commands.split("\n\n").next().unwrap_or_default();
            let is_one = commands.lines().any(|line| {
                line.strip_prefix("  ").is_some_and(|line| {
                    line.split_whitespace().next() == Some(word) && !line.starts_with(' ')
                })
            });
            ensure!(is_one, "there is no command {word}:{commands}");
            call.push(word.clone());
        }
        let help = self.help(&call)?;
        for flag in arguments.iter().filter(|word| word.starts_with('-') && word.len() > 1) {
            let name = flag.split('=').next().unwrap_or_default();
            let is_known = has_word(&help, name) && help.contains(&format!(" {name}"));
            ensure!(is_known, "there is no flag {name}");
        }
        Ok(Held::Checked)
    }

    fn help(&mut self, call: &[String]) -> Result<String> {
        if let Some(known) = self.help.get(call) {
            return Ok(known.clone());
        }
        let output = Command::new(&call[0]).args(&call[1..]).arg("--help").output()?;
        ensure!(output.status.success(), "`{} --help` fails", call.join(" "));
        let text = String::from_utf8(output.stdout)?;
        self.help.insert(call.to_vec(), text.clone());
        Ok(text)
    }

    /// kubectl reads its flags before it prints its help.
    fn kubectl(&self, page: &str, arguments: &[String]) -> Result<Held> {
        let is_end = |word: &String| word.starts_with('>') || ["|", "&&", "--"].contains(&word.as_str());
        let end = arguments.iter().position(is_end);
        let arguments = &arguments[..end.unwrap_or(arguments.len())];
        let output = Command::new(&self.kubectl).args(arguments).arg("--help").output()?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && complaint.trim().is_empty(), "{complaint}");
        // Help of kubectl itself is the answer to an unknown command.
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            !said.contains("kubectl controls the Kubernetes cluster manager"),
            "there is no such command"
        );
        files(page, arguments.iter().map(String::as_str))?;
        Ok(Held::Checked)
    }

    /// The chart and its values; tests of the chart run helm.
    fn helm(&self, page: &str, arguments: &[String]) -> Result<Held> {
        let verb = arguments.first().map(String::as_str).unwrap_or_default();
        match verb {
            "install" | "upgrade" | "uninstall" | "rollback" => {
                ensure!(arguments.iter().any(|word| word == "-n"), "it does not say in which namespace");
            }
            "show" => {}
            other => bail!("helm {other} is not known to this test"),
        }
        ensure!(
            !arguments.iter().any(|word| word == "--reuse-values"),
            "values that are new would be missing"
        );
        if verb == "upgrade" {
            ensure!(
                arguments.iter().any(|word| word == "--reset-then-reuse-values"),
                "it forgets what was set"
            );
        }
        for value in arguments.windows(2).filter(|pair| pair[0] == "--set").map(|pair| &pair[1]) {
            let (path, _) = value.split_once('=').with_context(|| format!("{value} sets nothing"))?;
            let mut at = &self.schema;
            for step in path.split('.') {
                at = &at["properties"][step];
            }
            ensure!(at.is_object(), "the chart has no value {path}");
        }
        files(page, arguments.iter().map(String::as_str))?;
        Ok(Held::Checked)
    }

    fn make(&self, arguments: &[String]) -> Result<Held> {
        for word in arguments {
            if let Some((variable, _)) = word.split_once('=') {
                ensure!(self.makefile.contains(&format!("$({variable})")), "make does not read {variable}");
            } else {
                ensure!(self.makefile.contains(&format!("\n{word}: ")), "there is no target {word}");
            }
        }
        Ok(Held::Checked)
    }
}

/// The two programs. Their packages have other names: a build of the package `tart-kubelet` makes none.
fn cargo(arguments: &[String]) -> Result<Held> {
    ensure!(!arguments.iter().any(|word| word == "-p"), "name the program by --bin");
    for program in arguments.windows(2).filter(|pair| pair[0] == "--bin").map(|pair| &pair[1]) {
        ensure!(
            ["tart-kubelet", "tart-provider"].contains(&program.as_str()),
            "there is no program {program}"
        );
    }
    Ok(Held::Checked)
}

/// Files of the workspace are there, and others are made by the page.
fn files<'a>(page: &str, arguments: impl Iterator<Item = &'a str>) -> Result<()> {
    let arguments: Vec<_> = arguments.collect();
    for (at, word) in arguments.iter().enumerate() {
        let is_named = at > 0 && matches!(arguments[at - 1], "-f" | "--filename" | "--values");
        if word.starts_with("packaging/") || word.starts_with("examples/") {
            ensure!(workspace().join(word).exists(), "{word} is not there");
        } else if is_named && *word != "-" {
            ensure!(page.contains(&format!("`{word}`")), "the page does not say what {word} is");
        }
    }
    Ok(())
}

/// The names of all tests.
fn tests() -> Result<String> {
    fn read(directory: &Path, text: &mut String) -> Result<()> {
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                read(&path, text)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                *text += &std::fs::read_to_string(&path)?;
            }
        }
        Ok(())
    }
    let mut text = String::new();
    read(&workspace().join("tests/tests"), &mut text)?;
    Ok(text)
}

fn check(programs: &mut Programs, tests: &str, page: &str, block: &ShellBlock) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(Marker::RunBy(test)) = &block.marker
        && !(RUNNERS.contains(&test.as_str()) && tests.contains(&format!("fn {test}(")))
    {
        wrong.push(format!("{}: there is no test {test} that runs blocks of pages", block.place));
    }
    for command in block.commands() {
        match programs.check(page, &command) {
            Ok(Held::Unknown) if block.marker.is_none() => {
                wrong.push(format!(
                    "{}: `{command}` is run by no test, and the block has no marker",
                    block.place
                ));
            }
            Ok(_) => {}
            Err(error) => wrong.push(format!("{}: `{command}`: {error:#}", block.place)),
        }
    }
    wrong
}

#[tokio::test]
async fn every_command_is_run_by_a_test_or_marked_or_right_as_far_as_its_program_can_tell() -> Result<()> {
    let (mut programs, tests, mut wrong, mut blocks) = (Programs::new().await?, tests()?, Vec::new(), 0);
    for page in pages()?.into_iter().chain([workspace().join("examples/README.md")]) {
        let text = std::fs::read_to_string(&page)?;
        for block in shell_blocks(&page)? {
            blocks += 1;
            wrong.extend(check(&mut programs, &tests, &text, &block));
        }
    }
    ensure!(blocks > 30, "only {blocks} blocks were found");
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test]
async fn wrong_commands_are_found() -> Result<()> {
    let mut programs = Programs::new().await?;
    for wrong in [
        "sudo tart-kubelet joyn 10.0.0.1:6443",
        "ssh HOST sudo tart-kubelet leave --drian",
        "tart-kubelet images lists",
        "tart-provider host apply --ssh m1@mac --tart-archiv t",
        "kubectl get pods --everywhere",
        "kubectl gett pods",
        "kubectl apply -f examples/no-such.yaml",
        "kubectl apply -f mine.yaml",
        "helm upgrade macs packaging/chart -n macs --reset-then-reuse-values --set macosFleet.replika=2",
        "helm upgrade macs packaging/chart -n macs --reuse-values",
        "helm uninstall macs",
        "make dmo",
        "make demo CHEK=1",
        "cargo build --bin tart-kubelett",
        "cargo build -p tart-kubelet",
    ] {
        let said = programs.check("", wrong);
        ensure!(said.is_err(), "{wrong}: {said:?}");
    }
    ensure!(programs.check("", "brew install tart")? == Held::Unknown, "it knows Homebrew");
    Ok(())
}
