//! The Mac's other programs, over SSH.

use anyhow::{Result, ensure};
use tart_kubelet_tests::mac_host::Fault;
use tart_kubelet_tests::sandbox::Sandbox;
use tart_kubelet_tests::wait::eventually;

use crate::host::{DEADLINE, start};

#[tokio::test]
async fn sudo_asks_for_a_password_until_a_file_says_otherwise() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(host) = tart_kubelet_tests::mac_host::MacHost::new(&sandbox)?.start().await? else {
        return Ok(());
    };
    let check = async |script: &str, input: &str, code: i32, stdout: &str, stderr: &str| -> Result<()> {
        let outcome = host.ssh_with_input(script, input.as_bytes()).await?;
        let found = (outcome.code(), outcome.stdout.as_str(), outcome.stderr.as_str());
        ensure!(
            found == (code, stdout, stderr),
            "{script}\nexpected {:?}\nfound    {found:?}",
            (code, stdout, stderr)
        );
        Ok(())
    };
    check(
        "id -u; id -Gn; pwd; echo $SHELL; echo $PATH",
        "",
        0,
        "501\nstaff admin\n/Users/m1\n/bin/zsh\n/usr/bin:/bin:/usr/sbin:/sbin\n",
        "",
    )
    .await?;
    check("sudo -n true", "", 1, "", "sudo: a password is required\n").await?;
    check(
        "sudo -S true",
        "",
        1,
        "",
        "Password:\nsudo: no password was provided\nsudo: a password is required\n",
    )
    .await?;
    // A password needs the end of its line.
    check(
        "sudo -S true",
        host.password(),
        1,
        "",
        "Password:\nsudo: no password was provided\nsudo: a password is required\n",
    )
    .await?;
    let wrong = "Password:Sorry, try again.\nPassword:Sorry, try again.\nPassword:sudo: 3 incorrect password attempts\n";
    check("sudo -S true", "a\nb\nc\nd\n", 1, "", wrong).await?;
    let password = host.password();
    check("sudo -S -p '' cat", &format!("{password}\nthe rest\n"), 0, "the rest\n", "").await?;

    // Wrong passwords lock the account, and then the right one does not help.
    for _ in 0..4 {
        check("sudo -S true", "a\nb\nc\n", 1, "", wrong).await?;
    }
    check(
        "sudo -S true",
        &format!("{password}\n"),
        1,
        "",
        "Password:Sorry, try again.\nPassword:\nsudo: 1 incorrect password attempt\n",
    )
    .await?;
    std::fs::remove_file(host.path("/var/db/mac-sim/wrong-passwords"))?;

    let install = "sudo -S -p '' tee /etc/sudoers.d/m1-nopasswd >/dev/null";
    check(install, &format!("{password}\nm1 ALL=(ALL) NOPASSWD ALL\n"), 0, "", "").await?;
    check(
        "sudo -n true",
        "",
        1,
        "",
        "/private/etc/sudoers.d/m1-nopasswd:1: syntax error\nsudo: a password is required\n",
    )
    .await?;
    check("sudo -S -p '' visudo -cf /etc/sudoers.d/m1-nopasswd", &format!("{password}\n"), 1, "", "/private/etc/sudoers.d/m1-nopasswd:1: syntax error\n/etc/sudoers.d/m1-nopasswd:1:26: syntax error\nm1 ALL=(ALL) NOPASSWD ALL\n^\n").await?;
    check(
        install,
        &format!("{password}\nm1 ALL=(ALL) NOPASSWD: ALL\n"),
        0,
        "",
        "/private/etc/sudoers.d/m1-nopasswd:1: syntax error\n",
    )
    .await?;
    check(
        "sudo -n id -u; sudo -n visudo -cf /etc/sudoers.d/m1-nopasswd; sudo -n -u m1 id -u",
        "",
        0,
        "0\n/etc/sudoers.d/m1-nopasswd: parsed OK\n501\n",
        "",
    )
    .await?;
    check("sudo -n -u nobody2 true", "", 1, "", "sudo: unknown user nobody2\n").await
}

#[tokio::test]
async fn only_keys_open_the_mac() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(host) = tart_kubelet_tests::mac_host::MacHost::new(&sandbox)?.without_key().start().await?
    else {
        return Ok(());
    };
    let outcome = host.ssh("true").await?;
    ensure!(
        outcome.code() == 255 && outcome.stderr.contains("Permission denied (publickey)."),
        "{outcome:?}"
    );
    ensure!(host.host_key_fingerprint().starts_with("SHA256:"), "{}", host.host_key_fingerprint());
    Ok(())
}

#[tokio::test]
async fn programs_have_the_options_of_a_mac() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    // What scripts for Linux use, and a Mac does not have.
    for gnu in [
        "sha256sum /etc/hosts",
        "timeout 1 true",
        "flock /tmp/x true",
        "setsid true",
        "stat -c %i /etc/hosts",
        "sed -i s/a/b/ x",
        "sed --quiet p x",
        "mktemp --directory",
        "mkdir --parents x",
        "readlink -e x",
        "date -d now",
        "install -D a b",
        "base64 -w0 x",
        "cp -T a b",
        "systemctl status",
    ] {
        let outcome = mac.sh(gnu).await?;
        ensure!(!outcome.status.success(), "{gnu}: {outcome:?}");
    }
    let script = "echo one >x && sed -i '' s/one/two/ x && cat x && stat -f '%z %Su:%Sg %OLp' x && shasum -a 256 x && \
        d=$(mktemp -d) && install -m 640 x $d/y && stat -f %OLp $d/y && readlink -f $d/../tmp && uname -sm";
    let printed = "two\n4 m1:staff 644\n27dd8ed44a83ff94d557f9fd0412ed5a8cbca69ea04922d88c01184a07300a5a  x\n640\n/private/tmp/tmp\nDarwin arm64\n";
    mac.check(script, 0, printed, "").await?;
    // The system's own directories are sealed, also for root.
    let outcome =
        mac.sh("sudo -n touch /usr/bin/x; sudo -n touch /System/Linux/usr/x; sudo -n touch /bin/x").await?;
    ensure!(outcome.stderr.matches("Read-only file system").count() == 3, "{outcome:?}");
    // zsh is not sh: a pattern that fits nothing is an error.
    mac.check("echo /nowhere/*", 1, "", "zsh:1: no matches found: /nowhere/*\n").await
}

#[tokio::test]
async fn the_mac_describes_and_keeps_its_settings() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    mac.check(
        "sw_vers; sysctl -n hw.memsize hw.model; sysctl -n no.such",
        1,
        "ProductName:\t\tmacOS\nProductVersion:\t\t26.6.2\nBuildVersion:\t\t25G83\n17179869184\nMac16,10\n",
        "sysctl: unknown oid 'no.such'\n",
    )
    .await?;
    mac.host.set_fault(Fault::MacosVersion, "15.7")?;
    mac.check("sw_vers -productVersion", 0, "15.7\n", "").await?;
    mac.check("scutil --get HostName", 1, "HostName: not set\n", "").await?;
    mac.check(
        "sudo -n scutil --set HostName mac-7 && scutil --get HostName && hostname",
        0,
        "mac-7\nmac-7\n",
        "",
    )
    .await?;
    mac.check("pmset -a sleep 0", 77, "", "'pmset' must be run as root...\n").await?;
    mac.check("sudo -n pmset -a sleep 0 displaysleep 0 && pmset -g | grep sleep", 0,
        " networkoversleep     0\n disksleep            10\n sleep                0\n displaysleep         0\n", "").await?;
    let lease = "/Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist";
    mac.check(&format!("sudo -n defaults write {lease} bootpd -dict DHCPLeaseTimeSecs -int 600 && defaults read {lease} bootpd"), 0,
        "{\n    DHCPLeaseTimeSecs = 600;\n}\n", "").await?;
    let outcome = mac.sh("defaults read com.example key").await?;
    ensure!(
        outcome.code() == 1
            && outcome.stderr.ends_with("The domain/default pair of (com.example, key) does not exist\n"),
        "{outcome:?}"
    );
    mac.check(
        "dscl . -read /Users/m1 UniqueID; dscl . -read /Users/none",
        56,
        "UniqueID: 501\n",
        "<dscl_cmd> DS Error: -14136 (eDSRecordNotFound)\n",
    )
    .await?;
    mac.check("security create-keychain -p '' login.keychain && security unlock-keychain -p '' login.keychain && security show-keychain-info login.keychain", 0,
        "", "Keychain \"login.keychain\" no-timeout\n").await?;
    mac.check("echo '<plist><dict>' >bad.plist; plutil -lint /Library/Preferences/com.apple.PowerManagement.plist bad.plist 2>/dev/null", 1,
        "/Library/Preferences/com.apple.PowerManagement.plist: OK\n", "").await?;
    let rotate = "echo '/var/log/x.log m1:staff 600 2 1 * N' | sudo -n tee /etc/newsyslog.d/x.conf >/dev/null; \
        sudo -n dd if=/dev/zero of=/var/log/x.log bs=1024 count=2 2>/dev/null; sudo -n newsyslog && stat -f '%z %Su %OLp' /var/log/x.log && stat -f %z /var/log/x.log.0";
    mac.check(rotate, 0, "0 m1 600\n2048\n", "").await?;
    mac.host.reboot().await?;
    mac.check("hostname; pmset -g | grep -w displaysleep", 0, "mac-7\n displaysleep         0\n", "").await
}

#[tokio::test]
async fn faults_of_calls_hit_as_they_say() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    mac.host.set_fault(Fault::Fail, "sw_vers\nsudo -n true")?;
    mac.check("sw_vers; echo $?; sudo -n true; echo $?; sudo -n id -u", 0, "1\n1\n0\n", "").await?;
    let hang = "launchctl print";
    mac.host.set_fault(Fault::Hang, hang)?;
    let (printed, ()) = tokio::try_join!(mac.sh("launchctl print system"), async {
        eventually("the call", DEADLINE, async || {
            ensure!(mac.host.calls()?.iter().any(|call| call == "launchctl print system"), "not called");
            Ok(())
        })
        .await?;
        mac.host.clear_fault(Fault::Hang)
    })?;
    printed.ok()?;

    mac.host.set_fault(Fault::CutAt, "sw_vers -buildVersion")?;
    mac.host.clear_fault(Fault::Fail)?;
    let outcome = mac.sh("sw_vers -buildVersion >/tmp/done; sleep 0.1; touch /tmp/after; sleep 1000").await?;
    ensure!(outcome.code() == 255, "{outcome:?}");
    eventually("what was started goes on", DEADLINE, async || mac.sh("cat /tmp/after").await?.ok()).await?;
    mac.check("cat /tmp/done", 0, "25G83\n", "").await?;

    let session = mac.sh("sysctl -n kern.bootsessionuuid").await?.ok()?;
    mac.host.set_fault(Fault::RebootAt, "codesign --force")?;
    let outcome = mac.sh("codesign --force --sign - x; sleep 1000; touch after").await?;
    ensure!(outcome.code() == 255, "{outcome:?}");
    eventually("another boot", DEADLINE, async || {
        let now = mac.sh("sysctl -n kern.bootsessionuuid").await?.ok()?;
        ensure!(now != session, "the same session");
        Ok(())
    })
    .await?;
    mac.check("ls after", 2, "", "ls: cannot access 'after': No such file or directory\n").await?;

    std::fs::write(mac.host.root().join("../simulator/faults/hnag"), "")?;
    mac.check("sw_vers", 78, "", "mac-sim: `hnag` is no fault of the simulator\n").await
}
