//! What the tests of the simulated Mac have in common.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tart_kubelet_tests::mac_host::{MacHost, MacHostBuilder, Outcome};
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::wait::eventually;

/// The label of the jobs of these tests.
pub(crate) const LABEL: &str = "dev.example.job";
/// Where their property lists are.
pub(crate) const PLIST: &str = "/Library/LaunchDaemons/dev.example.job.plist";
/// Longer than any condition takes to come true on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// A Mac in a sandbox of its own; `None` where there can be none.
pub(crate) async fn start(change: impl Fn(MacHostBuilder) -> MacHostBuilder) -> Result<Option<Mac>> {
    let sandbox = Sandbox::new()?;
    let Some(host) = change(MacHost::new(&sandbox)?).start().await? else { return Ok(None) };
    let mac = Mac { host };
    mac.allow_sudo().await?;
    Ok(Some(mac))
}

/// A Mac whose user needs no password for `sudo`.
pub(crate) struct Mac {
    pub(crate) host: MacHost,
}

impl Mac {
    /// Lets the user become root without a password, as a host's set-up does.
    async fn allow_sudo(&self) -> Result<()> {
        let input = format!("{}\nm1 ALL=(ALL) NOPASSWD: ALL\n", self.host.password());
        let script = "sudo -S tee /etc/sudoers.d/m1-nopasswd >/dev/null && sudo -n chmod 440 /etc/sudoers.d/m1-nopasswd";
        self.host.ssh_with_input(script, input.as_bytes()).await?.ok().map(drop)
    }

    /// Runs a script.
    pub(crate) async fn sh(&self, script: &str) -> Result<Outcome> {
        self.host.ssh(script).await
    }

    /// Checks the exit code, stdout and stderr of a script.
    pub(crate) async fn check(&self, script: &str, code: i32, stdout: &str, stderr: &str) -> Result<()> {
        let outcome = self.sh(script).await?;
        let found = (outcome.code(), outcome.stdout.as_str(), outcome.stderr.as_str());
        ensure!(
            found == (code, stdout, stderr),
            "{script}\nexpected {:?}\nfound    {found:?}\n{}",
            (code, stdout, stderr),
            self.host.log()?
        );
        Ok(())
    }

    /// Puts a job's property list where it belongs.
    pub(crate) async fn write_job(&self, program: &[&str], keys: &str) -> Result<()> {
        let arguments: String = program.iter().map(|word| format!("<string>{word}</string>")).collect();
        let list = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<plist version=\"1.0\"><dict><key>Label</key><string>{LABEL}</string>\
             <key>ProgramArguments</key><array>{arguments}</array>{keys}</dict></plist>\n"
        );
        let script = format!(
            "sudo -n tee {PLIST} >/dev/null && sudo -n chown root:wheel {PLIST} && sudo -n chmod 644 {PLIST}"
        );
        self.host.ssh_with_input(&script, list.as_bytes()).await?.ok().map(drop)
    }

    /// Loads the job.
    pub(crate) async fn bootstrap(&self) -> Result<()> {
        self.check(&format!("sudo -n launchctl bootstrap system {PLIST}"), 0, "", "").await
    }

    /// What launchd prints of the job.
    pub(crate) async fn print(&self) -> Result<String> {
        self.sh(&format!("launchctl print system/{LABEL}")).await?.ok()
    }

    /// A line of what launchd prints of the job, without its name.
    pub(crate) async fn field(&self, name: &str) -> Result<String> {
        let printed = self.print().await?;
        let head = format!("\t{name} = ");
        let found = printed.lines().find_map(|line| line.strip_prefix(&head));
        Ok(found.with_context(|| format!("no {name} in {printed}"))?.to_owned())
    }

    /// Waits until a line of what launchd prints of the job is as expected.
    pub(crate) async fn wait_for(&self, name: &str, expected: &str) -> Result<()> {
        eventually(&format!("{name} = {expected}"), DEADLINE, async || {
            let found = self.field(name).await?;
            ensure!(found == expected, "it is {found}");
            Ok(())
        })
        .await
        .with_context(|| self.host.log().unwrap_or_default())
    }

    /// Waits until the job is not loaded.
    pub(crate) async fn wait_until_gone(&self) -> Result<()> {
        eventually("the job to go", DEADLINE, async || {
            let code = self.sh(&format!("launchctl print system/{LABEL}")).await?.code();
            ensure!(code == 113, "launchctl ended with {code}");
            Ok(())
        })
        .await
    }
}
