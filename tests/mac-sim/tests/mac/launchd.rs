//! launchd and `launchctl`.

use anyhow::{Result, ensure};
use tart_kubelet_tests::mac_host::Fault;

use crate::host::{LABEL, PLIST, start};

#[tokio::test]
async fn a_job_is_loaded_printed_and_booted_out() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let not_found = format!("Bad request.\nCould not find service \"{LABEL}\" in domain for system\n");
    mac.check(&format!("launchctl print system/{LABEL}"), 113, "", &not_found).await?;
    mac.check(
        &format!("sudo -n launchctl bootout system/{LABEL}"),
        3,
        "",
        "Boot-out failed: 3: No such process\n",
    )
    .await?;

    mac.write_job(&["/bin/sleep", "1000"], "<key>RunAtLoad</key><true/>").await?;
    mac.bootstrap().await?;
    mac.wait_for("state", "running").await?;
    let printed = mac.print().await?;
    let head = format!(
        "system/{LABEL} = {{\n\tactive count = 1\n\tpath = {PLIST}\n\ttype = LaunchDaemon\n\tstate = running\n\n\tprogram = /bin/sleep\n\targuments = {{\n\t\t/bin/sleep\n\t\t1000\n\t}}\n\n"
    );
    ensure!(printed.starts_with(&head), "{printed}");
    for line in [
        "\n\tminimum runtime = 10\n\texit timeout = 5\n\truns = 1\n\tpid = ",
        "\n\tlast exit code = (never exited)\n",
        "\n\tspawn type = daemon (3)\n",
    ] {
        ensure!(printed.contains(line), "no {line:?} in {printed}");
    }
    ensure!(
        printed.ends_with("\tproperties = runatload | inferred program | managed LWCR | has LWCR\n}\n"),
        "{printed}"
    );

    mac.check(
        &format!("sudo -n launchctl bootstrap system {PLIST}"),
        5,
        "",
        "Bootstrap failed: 5: Input/output error\n",
    )
    .await?;
    mac.host.set_fault(Fault::LoadedCode, "37")?;
    let loaded = format!(
        "{PLIST}: service already bootstrapped\nBootstrap failed: 37: Operation already in progress\n"
    );
    mac.check(&format!("sudo -n launchctl bootstrap system {PLIST}"), 37, "", &loaded).await?;
    mac.check(&format!("sudo -n launchctl bootout system/{LABEL}"), 0, "", "").await?;
    mac.wait_until_gone().await
}
