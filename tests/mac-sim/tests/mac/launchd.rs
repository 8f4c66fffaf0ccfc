//! launchd and `launchctl`.

use anyhow::{Result, ensure};
use tart_kubelet_tests::mac_host::Fault;
use tart_kubelet_tests::wait::eventually;

use crate::host::{DEADLINE, LABEL, Mac, PLIST, start};

const IGNORES_SIGTERM: &[&str] = &["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"];

#[tokio::test]
async fn a_job_is_loaded_printed_and_booted_out() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let not_found = format!("Bad request.\nCould not find service \"{LABEL}\" in domain for system\n");
    mac.check(&format!("launchctl print system/{LABEL}"), 113, "", &not_found).await?;
    mac.check(&format!("sudo -n launchctl kickstart -k system/{LABEL}"), 113, "", &not_found).await?;
    let nothing = "Boot-out failed: 3: No such process\n";
    mac.check(&format!("sudo -n launchctl bootout system/{LABEL}"), 3, "", nothing).await?;
    let by_path = "Boot-out failed: 5: Input/output error\n";
    mac.check(&format!("sudo -n launchctl bootout system {PLIST}"), 5, "", by_path).await?;

    mac.write_job(&["/bin/sleep", "1000"], "<key>RunAtLoad</key><true/>").await?;
    mac.bootstrap().await?;
    mac.wait_for("state", "running").await?;
    let printed = mac.print().await?;
    let head = format!(
        "system/{LABEL} = {{\n\tactive count = 1\n\tpath = {PLIST}\n\ttype = LaunchDaemon\n\tstate = running\n\n\
         \tprogram = /bin/sleep\n\targuments = {{\n\t\t/bin/sleep\n\t\t1000\n\t}}\n\n"
    );
    ensure!(printed.starts_with(&head), "{printed}");
    for line in [
        "\n\tminimum runtime = 10\n\texit timeout = 5\n\truns = 1\n\tpid = ",
        "\n\tlast exit code = (never exited)\n",
        "\n\tspawn type = daemon (3)\n",
        "\n\tjob state = running\n",
    ] {
        ensure!(printed.contains(line), "no {line:?} in {printed}");
    }
    let tail = "\tproperties = runatload | inferred program | managed LWCR | has LWCR\n}\n";
    ensure!(printed.ends_with(tail), "{printed}");

    let bootstrap = format!("sudo -n launchctl bootstrap system {PLIST}");
    mac.check(&bootstrap, 5, "", "Bootstrap failed: 5: Input/output error\n").await?;
    for (code, words) in [(17, "File exists"), (37, "Operation already in progress")] {
        mac.host.set_fault(Fault::LoadedCode, &code.to_string())?;
        let loaded = format!("{PLIST}: service already bootstrapped\nBootstrap failed: {code}: {words}\n");
        mac.check(&bootstrap, code, "", &loaded).await?;
    }
    mac.check(&format!("sudo -n launchctl bootout system/{LABEL}"), 0, "", "").await?;
    mac.wait_until_gone().await
}

#[tokio::test]
async fn a_job_that_ignores_sigterm_stays_until_it_is_killed() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let keys = "<key>RunAtLoad</key><true/><key>ExitTimeOut</key><integer>4</integer>";
    mac.write_job(IGNORES_SIGTERM, keys).await?;
    mac.bootstrap().await?;
    mac.wait_for("state", "running").await?;
    let script = format!(
        "sudo -n launchctl bootout system/{LABEL}; echo $?; launchctl print system/{LABEL} | grep '^\tstate'; \
         sudo -n launchctl bootstrap system {PLIST}; echo $?"
    );
    mac.check(&script, 0, "0\n\tstate = SIGTERMed\n5\n", "Bootstrap failed: 5: Input/output error\n").await?;
    mac.wait_until_gone().await?;

    mac.host.set_fault(Fault::Flavour, "old")?;
    mac.bootstrap().await?;
    mac.wait_for("state", "running").await?;
    let progress = "Boot-out failed: 36: Operation now in progress\n";
    mac.check(&format!("sudo -n launchctl bootout system/{LABEL}"), 36, "", progress).await?;
    mac.wait_until_gone().await?;
    let not_found = format!("Could not find service \"{LABEL}\" in domain for system\n");
    mac.check(&format!("launchctl print system/{LABEL}"), 113, "", &not_found).await
}

#[tokio::test]
async fn the_process_group_ends_with_the_job_unless_it_is_abandoned() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let script = "sleep 1000 & echo $! >/tmp/same; \
        perl -MPOSIX -e 'POSIX::setsid(); exec qw(sleep 1000)' & echo $! >/tmp/own; wait";
    let alive = "kill -0 $(cat /tmp/same) 2>/dev/null && echo same; kill -0 $(cat /tmp/own) && echo own";
    for (keys, expected) in [("", "own\n"), ("<key>AbandonProcessGroup</key><true/>", "same\nown\n")] {
        let keys = format!("<key>RunAtLoad</key><true/><key>UserName</key><string>m1</string>{keys}");
        mac.write_job(&["/bin/sh", "-c", &script.replace('&', "&amp;").replace('>', "&gt;")], &keys).await?;
        mac.bootstrap().await?;
        eventually("the job's children", DEADLINE, async || {
            mac.sh("ps -o command= -p $(cat /tmp/own) | grep '^sleep 1000'").await?.ok()
        })
        .await?;
        mac.check(&format!("sudo -n launchctl bootout system/{LABEL}"), 0, "", "").await?;
        mac.wait_until_gone().await?;
        mac.check(alive, 0, expected, "").await?;
        mac.sh("rm -f /tmp/same /tmp/own").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_job_that_ends_is_started_again_after_its_throttle() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let keys = "<key>KeepAlive</key><true/><key>ThrottleInterval</key><integer>3</integer>";
    mac.write_job(&["/bin/sh", "-c", "exit 75"], keys).await?;
    mac.bootstrap().await?;
    mac.wait_for("last exit code", "75: EX_TEMPFAIL").await?;
    mac.wait_for("state", "spawn scheduled").await?;
    eventually("the next start", DEADLINE, async || {
        let runs: u32 = mac.field("runs").await?.parse()?;
        ensure!(runs > 1, "it has run {runs} times");
        Ok(())
    })
    .await?;
    let crashes: u32 = mac.field("successive crashes").await?.parse()?;
    ensure!(crashes > 0, "it has crashed {crashes} times");
    mac.check(
        &format!("sudo -n launchctl list {LABEL} | grep Exit"),
        0,
        "\t\"LastExitStatus\" = 19200;\n",
        "",
    )
    .await?;
    mac.check(&format!("sudo -n launchctl bootout system/{LABEL}"), 0, "", "").await?;
    mac.wait_until_gone().await?;

    let on_failure = "<key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>\
        <key>ThrottleInterval</key><integer>1</integer>";
    mac.write_job(&["/bin/sh", "-c", "exit 0"], on_failure).await?;
    mac.bootstrap().await?;
    mac.wait_for("last exit code", "0").await?;
    mac.check(
        &format!("launchctl print system/{LABEL} | grep -e '^.state' -e '^.runs' -e '^.job state'"),
        0,
        "\tstate = not running\n\truns = 1\n\tjob state = exited\n",
        "",
    )
    .await
}

#[tokio::test]
async fn a_job_has_the_environment_limits_and_files_of_its_list() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let keys = "<key>RunAtLoad</key><true/><key>UserName</key><string>m1</string>\
        <key>EnvironmentVariables</key><dict><key>A</key><string>b &amp; c</string></dict>\
        <key>WorkingDirectory</key><string>/Users/m1</string>\
        <key>StandardOutPath</key><string>/var/log/job.log</string><key>StandardErrorPath</key><string>/var/log/job.log</string>\
        <key>SoftResourceLimits</key><dict><key>NumberOfFiles</key><integer>1000</integer></dict>";
    let program = [
        "/bin/sh",
        "-c",
        "id -un; pwd; echo $A; echo $PATH; echo ${HOME:-no home}; ulimit -n; grep SigBlk /proc/self/status; echo error &gt;&amp;2",
    ];
    mac.write_job(&program, keys).await?;
    // launchd opens it as the job's user, who may not write there.
    mac.bootstrap().await?;
    mac.wait_for("last exit code", "78: EX_CONFIG").await?;
    mac.sh("echo before | sudo -n tee /var/log/job.log && sudo -n chown m1:staff /var/log/job.log")
        .await?
        .ok()?;
    mac.check(&format!("sudo -n launchctl kickstart system/{LABEL}"), 0, "", "").await?;
    mac.wait_for("last exit code", "0").await?;
    let log = "before\nm1\n/Users/m1\nb & c\n/usr/bin:/bin:/usr/sbin:/sbin\nno home\n1000\nSigBlk:\t0000000000000000\nerror\n";
    mac.check("cat /var/log/job.log", 0, log, "").await?;
    mac.check("grep SigBlk /proc/self/status", 0, "SigBlk:\t0000000000000000\n", "").await?;
    let found = std::fs::read_to_string(mac.host.path("/var/log/job.log"))?;
    ensure!(found == log, "{found}");
    for (name, value) in
        [("username", "m1"), ("stdout path", "/var/log/job.log"), ("working directory", "/Users/m1")]
    {
        ensure!(mac.field(name).await? == value, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_list_that_changes_has_no_effect_until_it_is_loaded_again() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    mac.write_job(&["/bin/sleep", "1000"], "<key>RunAtLoad</key><true/>").await?;
    mac.bootstrap().await?;
    mac.wait_for("state", "running").await?;
    mac.write_job(&["/bin/sleep", "2000"], "<key>RunAtLoad</key><true/>").await?;
    let first = mac.field("pid").await?;
    let script = format!("sudo -n launchctl kickstart -kp system/{LABEL}");
    let second = mac.sh(&script).await?.ok()?;
    ensure!(second.trim() != first && second.trim() == mac.field("pid").await?, "{first} {second}");
    ensure!(mac.print().await?.contains("\t\t1000\n"), "the old definition is gone");
    ensure!(mac.field("last terminating signal").await? == "Terminated: 15", "kickstart -k ends it");
    // Without -k nothing happens to a job that runs.
    mac.check(&format!("sudo -n launchctl kickstart -p system/{LABEL}"), 0, &second, "").await?;
    mac.check(&format!("sudo -n launchctl bootout system/{LABEL}"), 0, "", "").await?;
    mac.wait_until_gone().await?;
    mac.bootstrap().await?;
    ensure!(mac.print().await?.contains("\t\t2000\n"), "the new definition is not there");
    Ok(())
}

#[tokio::test]
async fn a_list_that_cannot_be_loaded_is_refused_in_launchds_words() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let bootstrap = format!("sudo -n launchctl bootstrap system {PLIST}");
    let refused = async |change: &str, code: i32, words: &str| -> Result<()> {
        mac.write_job(&["/bin/sleep", "1000"], "").await?;
        mac.sh(&format!("sudo -n {change}")).await?.ok()?;
        let words = format!("{PLIST}: {words}\nBootstrap failed: {code}: {words}\n");
        mac.check(&bootstrap, code, "", &words).await
    };
    refused(&format!("chmod 666 {PLIST}"), 122, "Path had bad ownership/permissions").await?;
    refused(&format!("chown m1:staff {PLIST}"), 122, "Path had bad ownership/permissions").await?;
    refused(&format!("sed -i '' 's/<string>/<strin>/' {PLIST}"), 109, "Invalid property list").await?;
    refused(&format!("sed -i '' 's/>Label</>Lable</' {PLIST}"), 110, "Invalid or missing service identifier")
        .await?;
    refused(&format!("rm {PLIST}"), 2, "No such file or directory").await?;

    mac.write_job(&["/bin/sleep", "1000"], "").await?;
    let as_user =
        "Bootstrap failed: 5: Input/output error\nTry re-running the command as root for richer errors.\n";
    mac.check(&format!("launchctl bootstrap system {PLIST}"), 5, "", as_user).await?;
    mac.bootstrap().await?;
    mac.check(
        &format!("launchctl bootout system/{LABEL}"),
        1,
        "",
        "Boot-out failed: 1: Operation not permitted\n",
    )
    .await?;
    let protected =
        "Boot-out failed: 150: Operation not permitted while System Integrity Protection is engaged\n";
    mac.check("sudo -n launchctl bootout system/com.openssh.sshd", 150, "", protected).await?;
    mac.check("launchctl error 122", 0, "122: Path had bad ownership/permissions\n", "").await?;
    mac.check(
        "launchctl frobnicate",
        1,
        "",
        "Unrecognized subcommand: frobnicate\nUsage: launchctl <subcommand> ... | help [subcommand]\n",
    )
    .await?;
    let outcome = mac.sh("launchctl kickstart dev.example").await?;
    ensure!(
        outcome.code() == 64 && outcome.stderr.starts_with("Unrecognized target specifier."),
        "{outcome:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_label_stays_disabled_until_it_is_enabled() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    mac.write_job(&["/bin/sleep", "1000"], "<key>RunAtLoad</key><true/>").await?;
    mac.check(&format!("sudo -n launchctl disable system/{LABEL}"), 0, "", "").await?;
    let bootstrap = format!("sudo -n launchctl bootstrap system {PLIST}");
    mac.check(&bootstrap, 5, "", "Bootstrap failed: 5: Input/output error\n").await?;
    mac.host.set_fault(Fault::DisabledCode, "119")?;
    let disabled = format!("{PLIST}: Service is disabled\nBootstrap failed: 119: Service is disabled\n");
    mac.check(&bootstrap, 119, "", &disabled).await?;
    mac.host.reboot().await?;
    let printed = format!("\n\tdisabled services = {{\n\t\t\"{LABEL}\" => disabled\n\t}}\n");
    mac.check("launchctl print-disabled system", 0, &printed, "").await?;
    mac.check(&format!("sudo -n launchctl enable system/{LABEL}"), 0, "", "").await?;
    mac.bootstrap().await
}

#[tokio::test]
async fn a_boot_loads_the_lists_and_clears_what_a_boot_clears() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    mac.write_job(&["/bin/sleep", "1000"], "<key>RunAtLoad</key><true/>").await?;
    let session = mac.sh("touch /tmp/gone ~/kept; sysctl -n kern.bootsessionuuid").await?.ok()?;
    let address = mac.host.address();
    mac.host.reboot().await?;
    ensure!(address == mac.host.address(), "another port");
    mac.wait_for("state", "running").await?;
    mac.check("ls /tmp; ls", 0, "Library\nkept\n", "").await?;
    ensure!(mac.sh("sysctl -n kern.bootsessionuuid").await?.ok()? != session, "the same session");

    // The command may end with the connection.
    let _ = mac.sh("sudo -n shutdown -r now").await?;
    mac.host.wait_for_boot().await?;
    mac.wait_for("runs", "1").await?;

    mac.host.set_fault(Fault::BtmDeny, LABEL)?;
    mac.host.reboot().await?;
    ensure!(mac.sh(&format!("launchctl print system/{LABEL}")).await?.code() == 113, "it was loaded");
    mac.bootstrap().await?;
    mac.check(&format!("sudo -n launchctl kickstart system/{LABEL}"), 0, "", "").await?;
    ensure!(mac.field("runs").await? == "0", "it was started");
    Ok(())
}

#[tokio::test]
async fn faults_of_jobs_hit_as_they_say() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let keys = "<key>KeepAlive</key><true/><key>ThrottleInterval</key><integer>1</integer>";
    mac.write_job(&["/bin/sleep", "1000"], keys).await?;
    mac.host.set_fault(Fault::NeverSpawn, LABEL)?;
    mac.host.set_fault(Fault::RefusedCode, "109")?;
    let refused = mac.sh(&format!("sudo -n launchctl bootstrap system {PLIST}")).await?;
    ensure!(refused.code() == 109 && refused.stderr.contains("109: Invalid property list"), "{refused:?}");
    mac.bootstrap().await?;
    let lines = format!("launchctl print system/{LABEL} | grep -e '^.state' -e '^.runs' -e '^.last'");
    mac.check(&lines, 0, "\tstate = not running\n\truns = 0\n\tlast exit code = (never exited)\n", "")
        .await?;
    mac.check(&format!("sudo -n launchctl kickstart system/{LABEL}"), 0, "", "").await?;
    ensure!(mac.field("state").await? == "running", "kickstart does not start it");

    mac.host.set_fault(Fault::KickstartIdle, LABEL)?;
    let pid = mac.field("pid").await?;
    mac.check(&format!("sudo -n launchctl kickstart -k system/{LABEL}"), 0, "", "").await?;
    ensure!(mac.field("pid").await? == pid, "kickstart -k has ended it");
    mac.host.clear_fault(Fault::KickstartIdle)?;
    mac.check(&format!("sudo -n launchctl kickstart -k system/{LABEL}"), 0, "", "").await?;
    ensure!(mac.field("pid").await? != pid, "kickstart -k has not ended it");

    mac.host.set_fault(Fault::SpawnThrottle, "1000s")?;
    mac.check(&format!("sudo -n launchctl kill TERM system/{LABEL}"), 0, "", "").await?;
    mac.wait_for("state", "spawn scheduled").await?;
    mac.check(&format!("sudo -n launchctl kickstart system/{LABEL}"), 0, "", "").await?;
    mac.wait_for("state", "running").await?;

    mac.host.set_fault(Fault::BtmExhausted, "")?;
    mac.check(&format!("sudo -n launchctl kill KILL system/{LABEL}"), 0, "", "").await?;
    mac.wait_for("last terminating signal", "Killed: 9").await?;
    mac.wait_for("state", "not running").await?;
    mac.check(&format!("sudo -n launchctl kill 9 system/{LABEL}"), 3, "", "No process to signal.\n").await?;

    mac.host.set_fault(Fault::CodesignKill, "")?;
    mac.check(&format!("sudo -n launchctl kickstart system/{LABEL}"), 0, "", "").await?;
    mac.wait_for("last exit reason", "OS_REASON_CODESIGNING").await?;

    mac.host.set_fault(Fault::SlowBootout, "4s")?;
    mac.check(
        &format!("sudo -n launchctl bootout system/{LABEL}; launchctl print system/{LABEL} | grep -c state"),
        0,
        "4\n",
        "",
    )
    .await?;
    mac.wait_until_gone().await
}

#[tokio::test]
async fn a_user_has_a_session_after_auto_login_with_the_right_password() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let no_domain = "Bad request.\nCould not find domain for user gui: 501\n";
    mac.check("sudo -n launchctl print gui/501", 112, "", no_domain).await?;
    let agent = "~/Library/LaunchAgents/dev.example.job.plist";
    mac.write_job(&["/bin/sleep", "1000"], "<key>RunAtLoad</key><true/>").await?;
    mac.sh(&format!("cp {PLIST} {agent}")).await?.ok()?;
    let unsupported = "Bootstrap failed: 125: Domain does not support specified action\nTry re-running the command as root for richer errors.\n";
    mac.check(&format!("launchctl bootstrap gui/501 {agent}"), 125, "", unsupported).await?;

    log_in(&mac, "wrong").await?;
    mac.sh("sudo -n launchctl kickstart -k system/com.apple.loginwindow").await?.ok()?;
    eventually("the password to be sealed", DEADLINE, async || {
        let kept = std::fs::read(mac.host.path("/etc/kcpassword"))?;
        ensure!(disguise(&kept) == b"<sealed>", "it is {kept:?}");
        Ok(())
    })
    .await?;
    mac.check("sudo -n launchctl print gui/501", 112, "", no_domain).await?;

    log_in(&mac, mac.host.password()).await?;
    mac.sh("sudo -n launchctl kickstart -k system/com.apple.loginwindow").await?.ok()?;
    let session = async || -> Result<()> {
        let printed = mac.sh("sudo -n launchctl print gui/501").await?.ok()?;
        ensure!(printed.contains("\n\tsession = Aqua\n"), "{printed}");
        Ok(())
    };
    eventually("a session", DEADLINE, session).await?;
    mac.check("stat -f %Su /dev/console", 0, "m1\n", "").await?;
    // The agents of the user are loaded with the session.
    eventually("the agent", DEADLINE, async || {
        let printed = mac.sh(&format!("launchctl print gui/501/{LABEL}")).await?.ok()?;
        ensure!(
            printed.contains("\n\tstate = running\n") && printed.contains("type = LaunchAgent"),
            "{printed}"
        );
        Ok(())
    })
    .await?;
    mac.host.reboot().await?;
    eventually("a session after a reboot", DEADLINE, session).await?;
    mac.host.set_fault(Fault::HeadlessBoot, "")?;
    mac.host.reboot().await?;
    mac.wait_for("state", "running").await?;
    mac.check("sudo -n launchctl print gui/501", 112, "", no_domain).await?;
    mac.sh("sudo -n launchctl kickstart -k system/com.apple.loginwindow").await?.ok()?;
    eventually("a session after loginwindow is kicked", DEADLINE, session).await
}

/// Sets auto-login up with a password.
async fn log_in(mac: &Mac, password: &str) -> Result<()> {
    let mut plain = password.as_bytes().to_vec();
    plain.resize((plain.len() / 11 + 1) * 11, 0);
    let script = "sudo -n tee /etc/kcpassword >/dev/null && sudo -n chmod 600 /etc/kcpassword && \
        sudo -n defaults write /Library/Preferences/com.apple.loginwindow autoLoginUser m1";
    mac.host.ssh_with_input(script, &disguise(&plain)).await?.ok().map(drop)
}

fn disguise(bytes: &[u8]) -> Vec<u8> {
    let key = [0x7d, 0x89, 0x52, 0x23, 0xd2, 0xbc, 0xdd, 0xea, 0xa3, 0xb9, 0x1f];
    bytes.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect()
}
