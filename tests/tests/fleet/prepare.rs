//! A Mac as it comes from its maker: a key, a password, and nothing else.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::mac_host::MacHost;
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::ChildStdin;

use super::scene::provider;

/// A new Mac is prepared within a minute, also on a busy machine.
const PROVIDER_DEADLINE: Duration = Duration::from_mins(3);

#[tokio::test]
async fn prepare_gives_a_mac_passwordless_sudo_and_a_session_at_its_screen() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(mac) = MacHost::new(&sandbox)?.start().await? else { return Ok(()) };
    let stdin = ["--password-stdin".to_owned()];

    let wrong = provider(&mac, "prepare", &stdin, "wrong").await?.failed()?;
    ensure!(wrong.contains("the password of m1 is wrong; it was tried once"), "{wrong}");
    ensure!(mac.ssh("sudo -n true").await?.code() != 0, "sudo wants no password");

    provider(&mac, "prepare", &stdin, mac.password()).await?.ok()?;
    mac.ssh("sudo -n true").await?.ok()?;
    let session = mac.ssh("sudo -n launchctl print gui/501").await?.ok()?;
    ensure!(session.contains("session = Aqua"), "{session}");
    let again = provider(&mac, "prepare", &stdin, mac.password()).await?.ok()?;
    ensure!(again.contains("nothing to change"), "{again}");

    mac.reboot().await?;
    let session = mac.ssh("sudo -n launchctl print gui/501").await?.ok()?;
    ensure!(session.contains("session = Aqua"), "{session}");
    Ok(())
}

#[tokio::test]
async fn a_mac_that_refuses_the_key_is_told_how_to_let_it_in() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(mac) = MacHost::new(&sandbox)?.without_key().start().await? else { return Ok(()) };
    let refused =
        provider(&mac, "prepare", &["--password-stdin".to_owned()], mac.password()).await?.failed()?;
    ensure!(refused.contains("does not accept the SSH key ssh-ed25519 "), "{refused}");
    ensure!(refused.contains("VNC") && refused.contains(">>~/.ssh/authorized_keys"), "{refused}");
    Ok(())
}

/// `tart-provider host prepare` in a terminal of its own, and what it shows.
struct Terminal {
    child: tokio::process::Child,
    keys: ChildStdin,
    shown: String,
}

impl Terminal {
    fn open(mac: &MacHost) -> Result<Self> {
        let program = programs::find("tart-provider")?;
        let line = format!(
            "'{}' host prepare --ssh={}@{} --identity='{}' --known-hosts='{}'; echo \"code $?\"; stty -a",
            program.display(),
            mac.user(),
            mac.address(),
            mac.private_key().display(),
            mac.known_hosts().display()
        );
        let mut command = mac.sandbox().command("script");
        command.args(["-q", "-e", "-c", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let keys = child.stdin.take().context("its stdin is not a pipe")?;
        Ok(Self { child, keys, shown: String::new() })
    }

    /// Types at the prompt, and reads to the end.
    async fn type_at_prompt(mut self, keys: &str) -> Result<String> {
        let mut output = self.child.stdout.take().context("its stdout is not a pipe")?;
        let mut is_typed = false;
        let mut piece = [0; 4096];
        loop {
            let read = tokio::time::timeout(PROVIDER_DEADLINE, output.read(&mut piece)).await;
            let count = read.with_context(|| format!("it hangs: {}", self.shown))??;
            if count == 0 {
                return Ok(self.shown);
            }
            self.shown.push_str(&String::from_utf8_lossy(&piece[..count]));
            if !is_typed && self.shown.contains("password of m1@") {
                self.keys.write_all(keys.as_bytes()).await?;
                is_typed = true;
            }
        }
    }
}

#[tokio::test]
async fn the_password_is_asked_for_and_never_shown() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(mac) = MacHost::new(&sandbox)?.start().await? else { return Ok(()) };
    let given_up = Terminal::open(&mac)?.type_at_prompt("abc\u{3}").await?;
    ensure!(given_up.contains("interrupted") && !given_up.contains("abc"), "{given_up}");
    ensure!(
        given_up.contains("code 2") && given_up.contains(" echo "),
        "the terminal is left mute: {given_up}"
    );
    ensure!(mac.ssh("sudo -n true").await?.code() != 0, "sudo wants no password");

    let shown = Terminal::open(&mac)?.type_at_prompt(&format!("{}\n", mac.password())).await?;
    ensure!(shown.contains("code 0") && !shown.contains(mac.password()), "{shown}");
    mac.ssh("sudo -n true").await?.ok().map(drop)
}
