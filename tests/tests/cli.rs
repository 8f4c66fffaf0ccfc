//! The command lines of both programs: what they teach, what programs and shells read of them, and their exit codes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::mac::Mac;
use tart_kubelet_tests::mac_host::MacHost;
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn both() -> Result<[PathBuf; 2]> {
    Ok([programs::agent()?, programs::provider()?])
}

/// What a program prints that succeeds.
fn printed(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    ensure!(output.status.success(), "{} {arguments:?}: {output:?}", program.display());
    Ok(String::from_utf8(output.stdout)?)
}

/// The commands in a help text.
fn commands(help: &str) -> Vec<String> {
    let (_, after) = help.split_once("\nCommands:\n").unwrap_or_default();
    let lines = after.lines().take_while(|line| !line.is_empty());
    // A line that goes on is indented further.
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// All commands of a program with their long help, such as `["images", "pull"]`.
fn helps(program: &Path) -> Result<Vec<(Vec<String>, String)>> {
    let mut found = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(command) = open.pop() {
        let words: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let help = printed(program, &words)?;
        open.extend(commands(&help).into_iter().map(|name| [&command[..], &[name]].concat()));
        found.push((command, help));
    }
    ensure!(found.len() > 5, "{} has commands: {found:?}", program.display());
    Ok(found)
}

fn name(program: &Path) -> Result<String> {
    Ok(program.file_name().context("a name")?.to_string_lossy().into_owned())
}

#[test]
fn every_command_teaches_by_examples() -> Result<()> {
    for program in both()? {
        let name = name(&program)?;
        for (command, help) in helps(&program)? {
            let (_, examples) = help
                .split_once("\nExamples:")
                .with_context(|| format!("{name} {command:?} has no examples"))?;
            let line = [&[name.clone()][..], &command].concat().join(" ");
            ensure!(examples.contains(&line), "no example of `{line}` in:\n{examples}");
        }
    }
    Ok(())
}

#[test]
fn the_documentation_has_the_commands_of_the_programs() -> Result<()> {
    let page = std::fs::read_to_string(workspace().join("docs/cli.md"))?;
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<&str> =
        cells.filter(|cell| cell.starts_with("tart-") && !cell.contains(" --")).collect();
    let mut known = BTreeSet::new();
    for program in both()? {
        for (command, _) in helps(&program)? {
            if !command.is_empty() {
                known.insert([&[name(&program)?][..], &command].concat().join(" "));
            }
        }
    }
    assert_eq!(documented, known.iter().map(String::as_str).collect());
    Ok(())
}

/// `tart-kubelet 0.1.0 (abcdef0 2026-11-18)`, and without a repository only the release.
#[test]
fn the_version_has_the_commit() -> Result<()> {
    for program in both()? {
        let said = printed(&program, &["--version"])?;
        let release = format!("{} {}", name(&program)?, env!("CARGO_PKG_VERSION"));
        let commit = said.trim_end().strip_prefix(&release).with_context(|| said.clone())?;
        if !workspace().join(".git").exists() {
            continue;
        }
        let words = commit.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')'));
        let (hash, day) = words.and_then(|words| words.split_once(' ')).with_context(|| said.clone())?;
        ensure!(hash.len() == 7 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{said}");
        ensure!(day.len() == 10 && day.split('-').count() == 3, "{said}");
    }
    Ok(())
}

/// What bash offers for the last of some words.
fn offered(program: &Path, words: &[&str]) -> Result<BTreeSet<String>> {
    let name = name(program)?;
    let list = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let last = words.len() - 1;
    let previous = words[last - 1];
    // The script says itself which function completes the program.
    let script = format!(
        "source <('{}' completions bash) && COMP_WORDS=({list}) && COMP_CWORD={last} && \
         registered=$(complete -p '{name}') && function=${{registered#*-F }} && \
         ${{function%% *}} '{name}' '{}' '{previous}' && printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        program.display(),
        words[last],
    );
    Ok(printed(Path::new("bash"), &["--norc", "-c", &script])?.lines().map(str::to_owned).collect())
}

#[test]
fn a_shell_completes_commands_and_flags() -> Result<()> {
    let [agent, provider] = both()?;
    for (program, words, expected) in [
        (&agent, &["tart-kubelet", "im"][..], "images"),
        (&agent, &["tart-kubelet", "images", "p"], "pull"),
        (&agent, &["tart-kubelet", "gc", "--dry"], "--dry-run"),
        (&agent, &["tart-kubelet", "doctor", "--output", ""], "json"),
        (&provider, &["tart-provider", "host", "ro"], "roll"),
    ] {
        let offered = offered(program, words)?;
        ensure!(offered.contains(expected), "{words:?}: {offered:?}");
    }
    let all = offered(&agent, &["tart-kubelet", ""])?;
    ensure!(!all.contains("shim") && all.contains("join") && all.contains("--version"), "{all:?}");
    for program in both()? {
        for shell in ["zsh", "fish"] {
            ensure!(
                printed(&program, &["completions", shell])?.contains("man pages"),
                "{shell} is told nothing"
            );
        }
    }
    Ok(())
}

#[test]
fn every_command_has_a_man_page() -> Result<()> {
    let directory = Sandbox::shared()?.directory("man")?.join("man1");
    let mut expected = BTreeSet::new();
    for program in both()? {
        printed(&program, &["man", &directory.display().to_string()])?;
        for (command, _) in helps(&program)? {
            expected.insert([&[name(&program)?][..], &command].concat().join("-") + ".1");
        }
    }
    let names =
        std::fs::read_dir(&directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    assert_eq!(names.collect::<Result<BTreeSet<_>>>()?, expected);
    let page = std::fs::read_to_string(directory.join("tart-kubelet-images-pull.1"))?;
    ensure!(page.contains("tart\\-kubelet images pull") && page.contains("docker\\-config"), "{page}");
    let refused = Command::new(programs::agent()?).args(["man", "/dev/null/man"]).output()?;
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    Ok(())
}

/// Runs a sub-command of an agent on a simulated Mac, without a cluster.
fn run(agent: &Agent, mac: &Mac, words: &[&str]) -> Result<Output> {
    let mut command = mac.command(programs::agent()?);
    command.args(words).arg(format!("--state-dir={}", agent.state_dir().display()));
    command.arg(format!("--tart-binary={}", mac.tart_binary().display()));
    Ok(command.output()?)
}

#[test]
fn images_are_objects_for_programs_and_an_image_that_is_not_there_is_code_1() -> Result<()> {
    let mac = Mac::new(&Sandbox::shared()?)?;
    if !mac.is_simulated() {
        return Ok(());
    }
    let agent = Agent::new(&mac, "cli", Path::new("/nonexistent"))?;
    let (image, missing) = ("registry.test/macos/here:1", "registry.test/macos/missing:1");
    mac.add_image(image, &json!({"cpu": 6}))?;

    let pulled = run(&agent, &mac, &["images", "pull", "-o=json", image, missing])?;
    assert_eq!(pulled.status.code(), Some(1), "{pulled:?}");
    let text = String::from_utf8(pulled.stdout)?;
    let events = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Value>, _>>()
        .with_context(|| text.clone())?;
    let find = |event: &str| events.iter().find(|line| line["event"] == event).with_context(|| text.clone());
    assert_eq!(find("begun")?["image"], image);
    let digest = find("pulled")?["digest"].as_str().context("no digest")?.to_owned();
    ensure!(digest.starts_with("registry.test/macos/here@sha256:"), "{digest}");
    let failed = find("failed")?;
    ensure!(failed["image"] == missing && failed["error"].is_string(), "{failed}");

    let listed = run(&agent, &mac, &["images", "list", "-o=json"])?;
    let images: Value = serde_json::from_slice(&listed.stdout).with_context(|| format!("{listed:?}"))?;
    let here = images.as_array().into_iter().flatten().find(|line| line["name"] == image);
    let here = here.with_context(|| images.to_string())?;
    ensure!(here["digest"] == digest.as_str() && here["sizeBytes"].is_u64(), "{here}");
    assert_eq!((&here["pulledBy"], &here["neededBy"]), (&"agent".into(), &Value::Null));

    // As lines, where no terminal is.
    let again = run(&agent, &mac, &["images", "pull", image])?;
    let text = String::from_utf8(again.stdout)?;
    assert_eq!(again.status.code(), Some(0), "{text}");
    ensure!(text.starts_with(&format!("pulling {image}\n")) && !text.contains('\x1b'), "{text:?}");
    let failed = run(&agent, &mac, &["images", "pull", missing])?;
    assert_eq!((failed.status.code(), failed.stderr.is_empty()), (Some(1), false));
    Ok(())
}

/// On a terminal the line is drawn over.
#[test]
fn a_pull_is_a_bar_on_a_terminal() -> Result<()> {
    let mac = Mac::new(&Sandbox::shared()?)?;
    // macOS' `script` has other flags.
    if !mac.is_simulated() || cfg!(target_os = "macos") {
        return Ok(());
    }
    let agent = Agent::new(&mac, "cli", Path::new("/nonexistent"))?;
    mac.add_image("registry.test/macos/bar:1", &json!({}))?;
    let line = format!(
        "'{}' images pull registry.test/macos/bar:1 '--state-dir={}' '--tart-binary={}'",
        programs::agent()?.display(),
        agent.state_dir().display(),
        mac.tart_binary().display(),
    );
    let output = mac.command("script").args(["-q", "-e", "-c", &line, "/dev/null"]).output()?;
    let shown = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{shown}");
    ensure!(shown.contains("registry.test/macos/bar:1 [......"), "{shown:?}");
    ensure!(
        shown.contains("\r\x1b[Kregistry.test/macos/bar:1 is registry.test/macos/bar@sha256:"),
        "{shown:?}"
    );
    Ok(())
}

/// A Mac without a user at its screen cannot run VMs.
#[tokio::test]
async fn a_broken_mac_is_code_1_of_doctor() -> Result<()> {
    let Some(mac) = MacHost::new(&Sandbox::shared()?)?.start().await? else { return Ok(()) };
    let program = std::fs::read(programs::agent()?)?;
    let upload = "cat >tart-kubelet && chmod 755 tart-kubelet && codesign --force --sign - tart-kubelet";
    mac.ssh_with_input(upload, &program).await?.ok()?;
    let said = mac.ssh("./tart-kubelet doctor -o json").await?;
    let findings: Value = serde_json::from_str(&said.stdout).with_context(|| said.stdout.clone())?;
    let is_broken = findings.as_array().into_iter().flatten().any(|finding| finding["level"] == "broken");
    assert_eq!((said.code(), is_broken), (1, true), "{findings}");
    let said = mac.ssh("./tart-kubelet doctor").await?;
    ensure!(said.code() == 1 && said.stdout.contains("BROKEN"), "{}", said.stdout);
    Ok(())
}
