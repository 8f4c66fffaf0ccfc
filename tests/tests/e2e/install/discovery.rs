//! `join` finds the cluster by a token and the hash of its CA, and takes no other for it.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::control_plane::{ControlPlane, JoinCommand};
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;

/// Runs `join --dry-run` with the token on stdin; returns whether it succeeded, and all that it printed.
fn dry_run(sandbox: &Sandbox, join: &JoinCommand, flags: &[&str]) -> Result<(bool, String)> {
    let mut command = sandbox.command(programs::agent()?);
    command
        .args(["join", &join.api_server, "--token-file=-", "--node-name=mac-dry", "--dry-run"])
        .args(flags);
    with_input(&mut command, &join.token)
}

fn with_input(command: &mut Command, input: &str) -> Result<(bool, String)> {
    use std::io::Write as _;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // A command that refuses its flags reads nothing.
    let _ = child.stdin.take().context("its stdin is not a pipe")?.write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

fn secret(join: &JoinCommand) -> &str {
    join.token.split('.').nth(1).unwrap_or_default()
}

#[tokio::test]
async fn join_accepts_the_cluster_of_the_token_and_the_hash() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let sandbox = control_plane.sandbox();
    let join = control_plane.join_command().await?;
    let hash = format!("--discovery-token-ca-cert-hash={}", join.ca_cert_hash);
    let other = format!("--discovery-token-ca-cert-hash=sha256:{}", "00".repeat(32));
    let skip = "--discovery-token-unsafe-skip-ca-verification";
    for flags in [&[hash.as_str()][..], &[&other, &hash], &[skip]] {
        let (succeeded, said) = dry_run(sandbox, &join, flags)?;
        ensure!(succeeded && said.contains("this Mac would join https://127.0.0.1:"), "{flags:?}: {said}");
        ensure!(!said.contains(secret(&join)), "the token's secret is shown: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn join_refuses_another_cluster_and_says_what_to_do() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let sandbox = control_plane.sandbox();
    let join = control_plane.join_command().await?;
    let hash = format!("--discovery-token-ca-cert-hash={}", join.ca_cert_hash);
    let other = format!("--discovery-token-ca-cert-hash=sha256:{}", "00".repeat(32));
    let expired = control_plane.expired_join_command().await?;
    let guessed = JoinCommand { token: format!("{}.{}", &join.token[..6], "0".repeat(16)), ..join.clone() };
    let elsewhere = JoinCommand { api_server: "127.0.0.1:1".to_owned(), ..join.clone() };
    let broken = JoinCommand { token: "hunter2".to_owned(), ..join.clone() };
    for (join, flags, words) in [
        (&join, &[other.as_str()][..], "this is another cluster, or an attacker poses as it"),
        (&join, &[&other], "compare with what `kubeadm token create --print-join-command` prints"),
        (&join, &[], "--discovery-token-ca-cert-hash"),
        (&expired, &[&hash], "it may have expired"),
        (&guessed, &[&hash], "is not signed with the token"),
        (&elsewhere, &[&hash], "can this Mac reach it?"),
        (&broken, &[&hash], "the token is none"),
        (&join, &[&hash, "--kubeconfig=/tmp/x"], "use `tart-kubelet install`"),
    ] {
        let (succeeded, said) = dry_run(sandbox, join, flags)?;
        ensure!(!succeeded && said.contains(words), "expected {words:?}: {said}");
        ensure!(!said.contains(secret(join)) || secret(join).is_empty(), "the secret is shown: {said}");
        ensure!(!said.contains("hunter2"), "the token is shown: {said}");
    }
    Ok(())
}
