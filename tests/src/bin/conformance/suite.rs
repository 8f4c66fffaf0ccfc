//! Upstream's suite as programs: `e2e.test` has the specs, `ginkgo` runs several at once.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::{process, programs};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::report::{self, Outcome, Spec};

const PROGRAMS: [&str; 3] = ["e2e.test", "ginkgo", "agnhost"];

/// Every kubelet must pass the specs with the first tag; those with the others are for some kubelets, or disturb each other.
const REQUIRED: &str = r"\[NodeConformance\]";
const NOT_REQUIRED: &str = "LinuxOnly|Feature|Serial|Slow|Disruptive";

const LIST_DEADLINE: Duration = Duration::from_mins(2);
/// Longer than all specs together take on a busy machine.
const RUN_DEADLINE: Duration = Duration::from_hours(3);

/// Which specs are meant.
pub(crate) enum Selection {
    /// Those that every kubelet must pass.
    Required,
    /// Those whose names match.
    Focus(String),
}

impl Selection {
    /// The flags of ginkgo's for it, which are named differently in the program itself.
    fn flags(&self, prefix: &str) -> Vec<String> {
        match self {
            Self::Required => {
                vec![format!("--{prefix}focus={REQUIRED}"), format!("--{prefix}skip={NOT_REQUIRED}")]
            }
            Self::Focus(expression) => vec![format!("--{prefix}focus={expression}")],
        }
    }
}

/// The programs of the suite, and the directory for what they write.
pub(crate) struct Suite {
    sandbox: Sandbox,
    programs: PathBuf,
    output: PathBuf,
}

impl Suite {
    /// Finds the programs, building those that are missing.
    pub(crate) async fn find(sandbox: &Sandbox, output: PathBuf) -> Result<Self> {
        let programs = programs::control_plane(sandbox, &PROGRAMS).await?;
        Ok(Self { sandbox: sandbox.clone(), programs, output })
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    pub(crate) fn output(&self) -> &Path {
        &self.output
    }

    /// The names of all images that the suite uses.
    pub(crate) async fn images(&self) -> Result<Vec<String>> {
        let mut command = self.command("e2e.test");
        command.arg("--list-images");
        let text = process::run(command, "", LIST_DEADLINE).await?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The names of the selected specs.
    pub(crate) async fn list(&self, selection: &Selection) -> Result<Vec<String>> {
        let report = self.sandbox.directory("specs")?.join("report.json");
        let mut command = self.command("e2e.test");
        command.args(["--provider=skeleton", "--kubeconfig=/dev/null", "--ginkgo.dry-run"]);
        command.args(selection.flags("ginkgo.")).arg(format!("--ginkgo.json-report={}", report.display()));
        process::run(command, "", LIST_DEADLINE).await?;
        let mut specs = report::read(&report)?;
        // In a dry run each spec that would run has passed.
        specs.retain(|spec| spec.outcome == Outcome::Passed);
        let mut names: Vec<_> = specs.into_iter().map(|spec| spec.name).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Runs the selected specs but those that are left out, some at once, and tells of each when it ends.
    pub(crate) async fn run(
        &self,
        selection: &Selection,
        left_out: &[String],
        processes: u16,
        kubeconfig: &Path,
    ) -> Result<Vec<Spec>> {
        let report = self.output.join("report.json");
        let _ = std::fs::remove_file(&report);
        let mut command = self.command("ginkgo");
        command.args([
            format!("--procs={processes}"),
            format!("--timeout={}s", RUN_DEADLINE.as_secs()),
            format!("--output-dir={}", self.output.display()),
            "--json-report=report.json".to_owned(),
            "--junit-report=junit.xml".to_owned(),
            "--no-color".to_owned(),
            "-v".to_owned(),
        ]);
        command.args(selection.flags(""));
        command.args(left_out.iter().map(|name| format!("--skip={}$", escaped(name))));
        command.arg(self.program("e2e.test")).arg("--");
        command.args(["--provider=skeleton".to_owned(), format!("--kubeconfig={}", kubeconfig.display())]);
        let ended = self.follow(command).await?;
        ensure!(
            report.exists(),
            "the suite ended without a report ({ended}): see {}",
            self.output.join("e2e.log").display()
        );
        // Its exit code says that a spec failed, which the report says too.
        report::read(&report)
    }

    /// Runs ginkgo to its end, with its output in a log.
    async fn follow(&self, mut command: Command) -> Result<std::process::ExitStatus> {
        let mut log = File::create(self.output.join("e2e.log")).context("cannot write e2e.log")?;
        command.stdout(Stdio::piped()).stderr(log.try_clone()?);
        let mut child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start ginkgo")?;
        let stdout = child.stdout.take().context("its output is not a pipe")?;
        let mut lines = BufReader::new(stdout).lines();
        let mut ended = None;
        while let Some(line) = lines.next_line().await? {
            writeln!(log, "{line}").context("cannot write e2e.log")?;
            // The name of a spec follows the line that says how it ended.
            if let Some(how) = ended.take() {
                println!("{how} {line}");
            } else if line.starts_with("• [") {
                ended = Some(line);
            }
        }
        child.wait().await.context("cannot hear from ginkgo")
    }

    fn command(&self, program: &str) -> Command {
        self.sandbox.command(self.program(program))
    }
}

/// A regular expression that matches this text.
fn escaped(text: &str) -> String {
    let mut expression = String::new();
    for letter in text.chars() {
        if letter.is_ascii_punctuation() {
            expression.push('\\');
        }
        expression.push(letter);
    }
    expression
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_spec_is_taken_literally() {
        assert_eq!(escaped("[sig-node] a (b) *c*"), r"\[sig\-node\] a \(b\) \*c\*");
    }
}
