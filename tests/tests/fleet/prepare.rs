//! A Mac as it comes from its maker: a key, a password, and nothing else.

use anyhow::{Result, ensure};
use tart_kubelet_tests::mac_host::MacHost;
use tart_kubelet_tests::sandbox::Sandbox;

use super::scene::provider;

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
