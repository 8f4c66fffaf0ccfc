//! What is run on a Mac by hand or over SSH, with strict stand-ins for the programs of macOS.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;

const PREFERENCES: &str = "/Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist";
/// Something else that is set for bootpd.
const OTHER: &str = "\"detect_other_dhcp_server\" = 1;";

/// `defaults`, for one key of one file: it prints as the real one does, and refuses whatever is not asked for in exactly this way.
const DEFAULTS: &str = r#"#!/bin/sh
echo "$*" >>"$MAC/calls"
case "$#:$*" in
"3:read $PREFERENCES bootpd")
	if ! [ -s "$MAC/bootpd" ]; then
		echo "$(date) defaults[1:2] The domain/default pair of ($PREFERENCES, bootpd) does not exist" >&2
		exit 1
	fi
	echo "{"
	sed 's/^/    /' "$MAC/bootpd"
	echo "}"
	;;
"7:write $PREFERENCES bootpd -dict-add DHCPLeaseTimeSecs -int $7")
	if [ -e "$MAC/fails" ]; then
		echo "Could not write domain $PREFERENCES; exiting" >&2
		exit 1
	fi
	if ! [ -e "$MAC/deaf" ]; then
		touch "$MAC/bootpd"
		sed -i.old '/DHCPLeaseTimeSecs/d' "$MAC/bootpd"
		echo "DHCPLeaseTimeSecs = $7;" >>"$MAC/bootpd"
	fi
	;;
*)
	echo "Command line interface to a user's defaults." >&2
	exit 255
	;;
esac
"#;

/// A Mac as far as the script can see.
struct Host {
    dir: PathBuf,
    script: PathBuf,
}

impl Host {
    fn new() -> Result<Self> {
        let dir = Sandbox::shared()?.directory("host")?;
        let stand_ins = [
            ("defaults", DEFAULTS.to_owned()),
            ("uname", "#!/bin/sh\n[ \"$*\" = -s ] && cat \"$MAC/system\"\n".to_owned()),
            ("id", "#!/bin/sh\n[ \"$*\" = -u ] && cat \"$MAC/user\"\n".to_owned()),
        ];
        std::fs::create_dir(dir.join("bin"))?;
        for (name, text) in stand_ins {
            programs::write(&dir.join("bin").join(name), &text)?;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
        let host = Self { dir, script: root.join("packaging/host/dhcp-lease-time.sh") };
        host.set("system", "Darwin\n")?;
        host.set("user", "0\n")?;
        Ok(host)
    }

    fn set(&self, file: &str, content: &str) -> Result<()> {
        Ok(std::fs::write(self.dir.join(file), content)?)
    }

    fn bootpd(&self) -> String {
        std::fs::read_to_string(self.dir.join("bootpd")).unwrap_or_default()
    }

    /// How often something was written.
    fn writes(&self) -> usize {
        let calls = std::fs::read_to_string(self.dir.join("calls")).unwrap_or_default();
        calls.lines().filter(|call| call.starts_with("write ")).count()
    }

    fn command(&self, shell: &[&str]) -> Result<Command> {
        let path = std::env::var("PATH")?;
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).env("PREFERENCES", PREFERENCES).env("MAC", &self.dir);
        command.env("PATH", format!("{}:{path}", self.dir.join("bin").display()));
        Ok(command)
    }

    fn run(&self, shell: &[&str], arguments: &[&str]) -> Result<Said> {
        let mut command = self.command(shell)?;
        Ok(command.arg(&self.script).args(arguments).stdin(Stdio::null()).output()?.into())
    }

    /// As over SSH: the script comes in by standard input.
    fn stream(&self, script: &[u8], arguments: &[&str]) -> Result<Said> {
        let mut command = self.command(&["sh", "-s", "--"])?;
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        child.stdin.take().context("no standard input")?.write_all(script)?;
        Ok(child.wait_with_output()?.into())
    }
}

#[derive(Debug)]
struct Said {
    code: Option<i32>,
    words: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let words = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        Self { code: output.status.code(), words: words.concat() }
    }
}

impl Said {
    #[track_caller]
    fn expect(&self, code: i32, words: &str) {
        assert_eq!((self.code, self.words.contains(words)), (Some(code), true), "{words}: {self:?}");
        assert_eq!(self.words.lines().count(), 1, "{self:?}");
    }
}

#[test]
fn the_lease_time_is_set_once() -> Result<()> {
    for shell in [&["sh"][..], &["bash"], &["bash", "--posix"]] {
        let host = Host::new()?;
        host.set("bootpd", &format!("{OTHER}\n"))?;
        host.run(shell, &[])?.expect(0, "were lent to VMs for 86400 s, and are for 600 s from now on");
        assert_eq!(host.bootpd(), format!("{OTHER}\nDHCPLeaseTimeSecs = 600;\n"));
        host.run(shell, &[])?.expect(0, "for 600 s already; nothing was changed");
        host.run(shell, &["600"])?.expect(0, "nothing was changed");
        assert_eq!(host.writes(), 1);
        host.run(shell, &["900"])?.expect(0, "were lent to VMs for 600 s, and are for 900 s");
        assert_eq!(host.bootpd(), format!("{OTHER}\nDHCPLeaseTimeSecs = 900;\n"));
        // To see that there is nothing to do takes no rights.
        host.set("user", "501\n")?;
        host.run(shell, &["900"])?.expect(0, "nothing was changed");
    }
    Ok(())
}

#[test]
fn what_cannot_be_done_is_refused_in_words() -> Result<()> {
    let host = Host::new()?;
    for number in ["", "ten", "59", "86401", "-5", "0600", "1e3", "600 ", "99999999999999999999"] {
        host.run(&["sh"], &[number])?.expect(2, "is no number of seconds from 60 to 86400");
    }
    host.run(&["sh"], &["600", "900"])?.expect(2, "usage: ");
    host.set("system", "Linux\n")?;
    host.run(&["sh"], &[])?.expect(2, "this is Linux");
    host.set("system", "Darwin\n")?;
    host.set("user", "501\n")?;
    host.run(&["sh"], &[])?.expect(1, "run this with sudo");
    assert_eq!((host.writes(), host.bootpd()), (0, String::new()));

    host.set("user", "0\n")?;
    host.set("deaf", "")?;
    host.run(&["sh"], &[])?.expect(1, "has lease time `` after `600` was written to it");
    host.set("fails", "")?;
    let said = host.run(&["sh"], &[])?;
    ensure!(said.code == Some(1) && said.words.contains("`defaults` could not write /Library"), "{said:?}");
    Ok(())
}

#[test]
fn a_script_that_arrives_in_part_does_nothing() -> Result<()> {
    let host = Host::new()?;
    let script = std::fs::read(&host.script)?;
    let lines: Vec<usize> =
        script.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
    let (_last, others) = lines.split_last().context("an empty script")?;
    for end in others {
        host.stream(&script[..*end], &["900"])?;
    }
    assert_eq!(host.writes(), 0);
    host.stream(&script, &["900"])?.expect(0, "for 900 s from now on");
    assert_eq!(host.bootpd(), "DHCPLeaseTimeSecs = 900;\n");
    Ok(())
}

/// What the image has is what the chart and the provider expect there.
#[test]
fn image_chart_and_provider_agree() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let read = |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    let (image, deployment) =
        (read("packaging/image/Containerfile")?, read("packaging/chart/templates/deployment.yaml")?);
    let agent = "/opt/tart-kubelet/tart-kubelet-darwin-arm64";
    ensure!(image.contains(&format!(" {agent}\n")), "the image has no agent at {agent}");
    let help = Command::new(programs::provider()?).args(["manager", "--help"]).output()?;
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    ensure!(help.contains(&format!("[default: {agent}]")), "the provider does not look at {agent}:\n{help}");
    for (image_says, chart_says) in
        [("USER 65532:65532", "runAsUser: 65532"), ("USER 65532:65532", "runAsGroup: 65532")]
    {
        ensure!(image.contains(image_says) && deployment.contains(chart_says), "{image_says}: {chart_says}");
    }
    ensure!(
        image.contains("FROM scratch") && deployment.contains("readOnlyRootFilesystem: true"),
        "not minimal"
    );
    Ok(())
}

/// The release says what it leaves out, and its formula is filled in.
#[test]
fn a_release_is_built_from_an_agent_that_was_built_elsewhere() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let copy = Sandbox::shared()?.directory("release")?;
    let copied = Command::new("cp")
        .arg("-R")
        .args(["Cargo.toml", "LICENSE", "README.md", "packaging"].map(|name| root.join(name)))
        .arg(&copy)
        .status()?;
    ensure!(copied.success(), "cannot copy the workspace");
    // What is neither here nor everywhere: a cargo that only prints a bill, a rustc without other targets, no helm, no buildah.
    std::fs::create_dir(copy.join("bin"))?;
    programs::write(&copy.join("bin/cargo"), "#!/bin/sh\n[ \"$1\" = run ] && echo '{}'\n")?;
    programs::write(&copy.join("bin/rustc"), "#!/bin/sh\necho /nonexistent\n")?;
    programs::write(
        &copy.join("agent"),
        "#!/bin/sh\n[ \"$1\" != man ] || echo page >\"$2/tart-kubelet.1\"\n[ \"$1\" != completions ] || echo \"$2\"\n",
    )?;
    let run = |agent: &str| {
        Command::new("sh")
            .arg(copy.join("packaging/release/build"))
            .env("PATH", format!("{}:/usr/bin:/bin", copy.join("bin").display()))
            .env("AGENT", agent)
            .env_remove("MACOS_CARGO")
            .output()
            .map(Said::from)
    };
    let said = run(&copy.join("agent").display().to_string())?;
    ensure!(said.code == Some(0), "{said:?}");
    for words in
        ["the provider for amd64: rustup target add x86_64-unknown-linux-musl", "the image: no provider"]
    {
        ensure!(said.words.contains(words), "it does not say `{words}`: {said:?}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let archive = format!("tart-kubelet-{version}-darwin-arm64.tar.gz");
    let sums = std::fs::read_to_string(copy.join("dist/SHA256SUMS"))?;
    let sum = sums.lines().find_map(|line| line.strip_suffix(&archive)).context("no checksum")?.trim();
    let formula = std::fs::read_to_string(copy.join("dist/tart-kubelet.rb"))?;
    ensure!(formula.contains(&format!("sha256 \"{sum}\"")) && !formula.contains('@'), "{formula}");
    ensure!(formula.contains(&format!("/v{version}/{archive}\"")), "{formula}");
    // Homebrew reads it with Ruby, which few other machines have.
    if let Ok(ruby) = Command::new("ruby").arg("-c").arg(copy.join("dist/tart-kubelet.rb")).output() {
        let said = Said::from(ruby);
        ensure!(said.code == Some(0), "{said:?}");
    }

    let listed = Command::new("tar").arg("-tzf").arg(copy.join("dist").join(&archive)).output()?;
    let listed = String::from_utf8(listed.stdout)?;
    for file in
        ["tart-kubelet", "man/tart-kubelet.1", "completions/_tart-kubelet", "completions/tart-kubelet.bash"]
    {
        ensure!(listed.lines().any(|line| line == format!("tart-kubelet/{file}")), "no {file} in:\n{listed}");
    }
    ensure!(
        formula.contains("man1.install") && formula.contains("generate_completions_from_executable"),
        "{formula}"
    );

    let said = run("")?;
    ensure!(said.code == Some(0) && said.words.contains("cannot build for aarch64-apple-darwin"), "{said:?}");
    ensure!(!copy.join("dist/tart-kubelet.rb").exists(), "a formula without an agent");
    Ok(())
}

#[test]
fn a_tag_is_the_version_of_the_workspace() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let check =
        |tag: &str| Command::new(root.join("packaging/release/check")).arg(tag).output().map(Said::from);
    let right = check(&format!("v{}", env!("CARGO_PKG_VERSION")))?;
    ensure!(right.code == Some(0) && right.words.is_empty(), "{right:?}");
    for tag in ["v99.0.0", env!("CARGO_PKG_VERSION"), "v", ""] {
        check(tag)?.expect(1, "the version in Cargo.toml is");
    }
    Ok(())
}

/// Every target that make is asked for in CI is there, and nothing is published untested.
#[test]
fn workflows_run_what_there_is_and_a_release_waits_for_the_tests() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let read = |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    let (ci, release, makefile) =
        (read(".github/workflows/ci.yml")?, read(".github/workflows/release.yml")?, read("Makefile")?);
    let mut targets = Vec::new();
    for text in [&ci, &release] {
        for rest in text
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'))
            .flat_map(|line| line.split("make ").skip(1))
        {
            targets.extend(rest.split([' ', '}', '\n']).next());
        }
        // Two versions of one action would be an oversight.
        let checkouts = text.matches("actions/checkout@").count();
        ensure!(checkouts == text.matches("actions/checkout@v6.0.0\n").count(), "{text}");
    }
    for target in &targets {
        ensure!(makefile.contains(&format!("\n{target}: ")), "make has no {target}");
    }
    for target in ["test-provider", "test-chart", "test-image"] {
        ensure!(targets.contains(&target), "no job runs {target}: {targets:?}");
    }
    let jobs = [
        "uses: ./.github/workflows/ci.yml",
        "needs: [tests, provider]",
        "packaging/release/check \"$GITHUB_REF_NAME\"",
    ];
    for words in jobs {
        ensure!(release.contains(words), "the release lacks `{words}`");
    }
    ensure!(ci.contains("  workflow_call:\n"), "a release cannot run the tests");
    Ok(())
}
