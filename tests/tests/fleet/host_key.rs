//! A Mac is known by its host key. Without flags it is the one that `ssh` would know, too.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::mac_host::MacHost;
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;
use tokio::io::AsyncWriteExt as _;

/// Prepares a Mac as a user with this home does, without a flag about host keys. Returns whether it succeeded, and what it said.
async fn prepare(mac: &MacHost, home: &Path) -> Result<(bool, String)> {
    let mut command = mac.sandbox().command(programs::find("tart-provider")?);
    command.args(["host", "prepare", "--password-stdin", "-i"]).arg(mac.private_key());
    command.arg(format!("--ssh={}@{}", mac.user(), mac.address())).env("HOME", home);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
    let mut stdin = child.stdin.take().context("its stdin is not a pipe")?;
    stdin.write_all(format!("{}\n", mac.password()).as_bytes()).await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

#[tokio::test]
async fn the_host_key_of_a_new_mac_is_kept_and_another_one_behind_its_address_gets_no_password() -> Result<()>
{
    let sandbox = Sandbox::new()?;
    let Some(mac) = MacHost::new(&sandbox)?.start().await? else { return Ok(()) };
    let Some(other) = MacHost::new(&sandbox)?.start().await? else { return Ok(()) };
    let home = sandbox.directory("home")?;
    let known_hosts = home.join(".ssh/known_hosts");

    let (succeeded, said) = prepare(&mac, &home).await?;
    ensure!(succeeded && said.contains(mac.host_key_fingerprint()) && said.contains("known_hosts"), "{said}");
    let key = std::fs::read_to_string(mac.known_hosts())?;
    let key: Vec<&str> = key.split_whitespace().take(3).collect();
    let kept = std::fs::read_to_string(&known_hosts)?;
    ensure!(kept.contains(&key.join(" ")), "{kept}");
    let (succeeded, said) = prepare(&mac, &home).await?;
    ensure!(succeeded && !said.contains("is new here"), "{said}");
    ensure!(std::fs::read_to_string(&known_hosts)? == kept, "the key was added twice");

    // Another machine has had the address.
    let theirs = std::fs::read_to_string(other.known_hosts())?;
    let theirs: Vec<&str> = theirs.split_whitespace().take(3).collect();
    std::fs::write(&known_hosts, format!("{} {} {}\n", key[0], theirs[1], theirs[2]))?;
    let calls = mac.calls()?.len();
    let (succeeded, said) = prepare(&mac, &home).await?;
    ensure!(!succeeded && said.contains("another machine answers there"), "{said}");
    for words in [mac.host_key_fingerprint(), other.host_key_fingerprint(), ".ssh/known_hosts"] {
        ensure!(said.contains(words), "{words}: {said}");
    }
    ensure!(mac.calls()?.len() == calls, "the Mac was given something to do");
    Ok(())
}
