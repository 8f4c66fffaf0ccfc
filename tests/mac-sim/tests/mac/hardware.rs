//! The Mac's power, its disk and its network.

use anyhow::{Result, ensure};
use tart_kubelet_tests::disk::SmallDisk;
use tart_kubelet_tests::mac_host::MacHost;
use tart_kubelet_tests::sandbox::{Sandbox, processes};
use tart_kubelet_tests::wait::eventually;

use crate::host::{DEADLINE, start};

#[tokio::test]
async fn nothing_is_left_of_a_mac_that_is_dropped() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let sandbox = mac.host.sandbox().clone();
    mac.write_job(&["/bin/sleep", "1000"], "<key>RunAtLoad</key><true/>").await?;
    mac.bootstrap().await?;
    mac.wait_for("state", "running").await?;
    // A process that has left its session, its group and its parent.
    mac.sh(
        "perl -MPOSIX -e 'fork && exit; POSIX::setsid(); exec qw(sleep 1000)' </dev/null >/dev/null 2>&1 &",
    )
    .await?;
    ensure!(processes::of(sandbox.path())?.len() > 3, "the sandbox does not have the Mac's processes");
    drop(mac);
    eventually("the processes to end", DEADLINE, async || {
        let left = processes::of(sandbox.path())?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_full_disk_stops_whatever_is_written() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let builder = MacHost::builder(&sandbox)?;
    let Some(disk) = SmallDisk::mount(&builder.disk(), 64 << 20)? else { return Ok(()) };
    let Some(host) = builder.start().await? else { return Ok(()) };
    host.ssh("dd if=/dev/zero of=kept bs=1024 count=100 2>/dev/null").await?.ok()?;
    disk.fill_up()?;
    let outcome = host.ssh_with_input("cat >new", &[1; 1 << 20]).await?;
    ensure!(outcome.code() == 1 && outcome.stderr.contains("No space left on device"), "{outcome:?}");
    disk.fill(0)?;
    host.ssh_with_input("cat >new", &[1; 1 << 20]).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn connections_that_are_cut_leave_what_they_started() -> Result<()> {
    let Some(mac) = start(|mac| mac).await? else { return Ok(()) };
    let (outcome, ()) = tokio::try_join!(mac.sh("touch /tmp/started; sleep 1000"), async {
        let started = mac.host.path("/tmp/started");
        eventually("the command", DEADLINE, async || {
            ensure!(started.exists(), "not started");
            Ok(())
        })
        .await?;
        mac.host.cut_connections().await
    })?;
    ensure!(outcome.code() == 255, "{outcome:?}");
    mac.check("pgrep -f '^sleep 1000' | wc -l", 0, "1\n", "").await
}
