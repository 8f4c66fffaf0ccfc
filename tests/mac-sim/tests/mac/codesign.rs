//! Code signatures, and what the kernel does about them.

use anyhow::{Result, ensure};
use tart_kubelet_tests::programs;

use crate::host::{LABEL, start};

const PROGRAM: &str = "/usr/local/bin/job";

#[tokio::test]
async fn a_program_that_was_overwritten_in_place_is_killed() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    // Any compiled programs will do.
    let copy = |program: &str, to: &str| {
        format!("sudo -n sh -c 'mkdir -p /usr/local/bin && cat /bin/{program} >{to} && chmod 755 {to}'")
    };
    mac.sh(&copy("sleep", PROGRAM)).await?.ok()?;
    let unsigned = format!("{PROGRAM}: code object is not signed at all\nIn architecture: arm64\n");
    mac.check(&format!("codesign --verify {PROGRAM}"), 1, "", &unsigned).await?;
    let keys = "<key>RunAtLoad</key><true/><key>KeepAlive</key><true/><key>ThrottleInterval</key><integer>1</integer>";
    mac.write_job(&[PROGRAM, "1000"], keys).await?;
    mac.bootstrap().await?;
    mac.wait_for("last exit reason", "OS_REASON_CODESIGNING").await?;

    mac.check(&format!("sudo -n codesign --force --sign - {PROGRAM}"), 0, "", "").await?;
    mac.wait_for("state", "running").await?;
    let valid = format!("{PROGRAM}: valid on disk\n{PROGRAM}: satisfies its Designated Requirement\n");
    mac.check(&format!("codesign -v -v {PROGRAM}"), 0, "", &valid).await?;
    mac.check(
        &format!("sudo -n codesign --sign - {PROGRAM}"),
        1,
        "",
        &format!("{PROGRAM}: is already signed\n"),
    )
    .await?;

    // A running program cannot be overwritten here; on a Mac it can, and dies at its next page.
    mac.check(&format!("sudo -n launchctl kill KILL system/{LABEL}"), 0, "", "").await?;
    mac.sh(&format!("sudo -n launchctl bootout system/{LABEL}")).await?;
    mac.wait_until_gone().await?;
    mac.sh(&copy("cat", PROGRAM)).await?.ok()?;
    let modified = format!(
        "{PROGRAM}: invalid signature (code or signature have been modified)\nIn architecture: arm64\n"
    );
    mac.check(&format!("codesign --verify {PROGRAM}"), 1, "", &modified).await?;
    mac.bootstrap().await?;
    mac.wait_for("last exit reason", "OS_REASON_CODESIGNING").await?;

    // A new file that is signed and renamed has an inode that has never run.
    let new = "/usr/local/bin/.job.new";
    let script = format!(
        "{} && sudo -n codesign --force --sign - {new} && sudo -n mv {new} {PROGRAM}",
        copy("sleep", new)
    );
    mac.check(&script, 0, "", "").await?;
    mac.wait_for("state", "running").await?;
    let again = format!("{PROGRAM}: replacing existing signature\n");
    mac.check(&format!("sudo -n codesign --force --sign - {PROGRAM}"), 0, "", &again).await?;
    mac.check("codesign --force --sign - /nowhere", 1, "", "/nowhere: No such file or directory\n").await?;
    ensure!(mac.sh("codesign").await?.code() == 2, "a usage error");
    let shown = mac.sh(&format!("codesign -dv {PROGRAM}")).await?;
    ensure!(
        shown
            .stderr
            .starts_with(&format!("Executable={PROGRAM}\nIdentifier=job\nFormat=Mach-O thin (arm64)\n")),
        "{shown:?}"
    );
    Ok(())
}

#[tokio::test]
async fn launchd_starts_the_shipped_agent_that_came_over_ssh() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let agent = std::fs::read(programs::agent()?)?;
    let new = "/usr/local/bin/.tart-kubelet.new";
    let upload = format!(
        "sudo -n mkdir -p /usr/local/bin && sudo -n tee {new} >/dev/null && sudo -n chmod 755 {new} && shasum -a 256 {new}"
    );
    let sum = mac.host.ssh_with_input(&upload, &agent).await?.ok()?;
    ensure!(sum.ends_with(&format!("  {new}\n")) && sum.len() == 64 + 2 + new.len() + 1, "{sum}");
    let script = format!(
        "sudo -n codesign --force --sign - {new} && {new} --version && sudo -n mv {new} /usr/local/bin/tart-kubelet"
    );
    let version = mac.sh(&script).await?.ok()?;
    let keys = "<key>RunAtLoad</key><true/><key>StandardOutPath</key><string>/tmp/version</string><key>UserName</key><string>m1</string>";
    mac.write_job(&["/usr/local/bin/tart-kubelet", "--version"], keys).await?;
    mac.bootstrap().await?;
    mac.wait_for("last exit code", "0").await?;
    mac.check("cat /tmp/version", 0, &version, "").await
}

#[tokio::test]
async fn a_user_runs_vms() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    mac.host.add_image("registry.test/base:1", &serde_json::json!({}))?;
    let script = "export PATH=/opt/homebrew/bin:$PATH; tart clone registry.test/base:1 a >/dev/null && \
        { (tart run --no-graphics a >run.log 2>&1 &) ; \
        for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do tart exec a true 2>/dev/null && break; sleep 0.5; done; \
        tart exec a sh -c 'uname >/dev/null && sw_vers -productName'; tart list -q; }";
    let outcome = mac.sh(script).await?;
    let console =
        std::fs::read_to_string(mac.host.path("/Users/m1/.tart/vms/a/guest/console.log")).unwrap_or_default();
    ensure!(
        outcome.stdout == "macOS\na\nregistry.test/base:1\n" || outcome.stdout.starts_with("macOS\n"),
        "{outcome:?}\n{console}"
    );
    ensure!(!console.contains("no namespaces"), "{console}");
    Ok(())
}
