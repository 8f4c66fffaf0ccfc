//! The agent's start: unusable flags and files end it with one line, and an unreachable API server does not.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, PodView as _, Scene};

/// Waits until the agent exits with code 2, and returns the lines that are not log records.
pub(crate) async fn exit_lines(agent: &RunningAgent) -> Result<Vec<String>> {
    let status = agent.wait_for_exit(DEADLINE).await?;
    ensure!(status.code() == Some(2), "{status}: {}", agent.log()?);
    Ok(agent.log()?.lines().filter(|line| !line.starts_with('{')).map(str::to_owned).collect())
}

/// Waits until the agent exits with code 2, and returns the only line that is not a log record. Deletes the log.
pub(crate) async fn exit_line(agent: &RunningAgent) -> Result<String> {
    let lines = exit_lines(agent).await?;
    let [line] = lines.as_slice() else { anyhow::bail!("not one line: {lines:#?}") };
    std::fs::remove_file(agent.process().log_path())?;
    Ok(line.clone())
}

#[tokio::test]
async fn unusable_kubeconfig_ends_the_agent_with_one_line() -> Result<()> {
    let scene = Scene::new("kubeconfig").await?;
    let broken = scene.agent.state_dir().with_file_name("broken");
    for (content, why) in [(None, "No such file"), (Some("{"), "kubeconfig"), (Some("{}"), "kubeconfig")] {
        match content {
            Some(content) => std::fs::write(&broken, content)?,
            None => ensure!(!broken.exists()),
        }
        let agent = scene.agent.clone().flag("--kubeconfig", &broken.display().to_string()).start()?;
        let line = exit_line(&agent).await?;
        ensure!(line.starts_with("tart-kubelet: cannot use the kubeconfig") && line.contains(why), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn unusable_settings_of_the_kubelet_api_end_the_agent_with_one_line() -> Result<()> {
    let scene = Scene::new("kubelet-api").await?;
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = taken.local_addr()?;
    let agent = scene.agent.clone().without("--port").flag("--port", &address.port().to_string()).start()?;
    let line = exit_line(&agent).await?;
    ensure!(line.contains(&format!("cannot listen at {address}")) && line.contains("--port"), "{line}");

    let empty = scene.agent.state_dir().with_file_name("empty");
    std::fs::write(&empty, "")?;
    let agent = scene.agent.clone().flag("--client-ca-file", &empty.display().to_string()).start()?;
    let line = exit_line(&agent).await?;
    ensure!(line.contains("--client-ca-file") && line.contains("no certificate"), "{line}");
    Ok(())
}

#[tokio::test]
async fn bad_flag_ends_the_agent_with_one_line_that_names_it() -> Result<()> {
    let scene = Scene::new("flags").await?;
    let table = [
        ("--node-name", "Not_A_Name", "is not a Node name"),
        ("--node-labels", "node-restriction.kubernetes.io/x=y", "lets no Node set the label"),
        ("--node-labels", "node-role.kubernetes.io/mac=", "lets no Node set the label"),
        ("--node-labels", "kubernetes.io/os=linux", "the agent's own"),
        ("--register-with-taints", "a=b", "is not `key=value:effect`"),
        ("--node-ip", "mac", "invalid IP address"),
        ("--node-ip-source", "dns", "possible values: auto, tailscale"),
        ("--host-cpu", "0", "0 is not in 1..=1024"),
        ("--eviction-hard", "disk<10%", "is not a signal"),
        ("--eviction-pressure-transition-period", "5", "is not a duration"),
        ("--kube-reserved", "pods=1", "is not `cpu=…`"),
        ("--vm-gc-interval", "0s", "must be greater than 0"),
        ("--vm-serial", "mine", "must be `random` or `image`"),
    ];
    for (flag, value, why) in table {
        let agent = scene.agent.clone().flag(flag, value).start()?;
        let line = exit_line(&agent).await?;
        ensure!(line.starts_with("tart-kubelet: ") && line.contains(flag) && line.contains(why), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn agent_refuses_a_home_in_which_tart_loses_its_sockets() -> Result<()> {
    let scene = Scene::new("homes").await?;
    let (spaced, long) = (scene.mac.host().join("with space"), scene.mac.host().join("long".repeat(20)));
    for (home, why) in [(&spaced, "has ' ' in it"), (&long, "bytes at most")] {
        std::fs::create_dir(home)?;
        let agent = scene.agent.clone().env("TART_HOME", &home.display().to_string()).start()?;
        let line = exit_line(&agent).await?;
        ensure!(line.contains(why) && line.contains("TART_HOME") && line.contains("a link"), "{line}");
    }
    // As the advice says.
    let link = scene.mac.host().join("link");
    std::os::unix::fs::symlink(&spaced, &link)?;
    let linked = scene.agent.clone().env("TART_HOME", &link.display().to_string());
    let _agent = scene.start(&linked).await?;
    let pod = scene.pod("linked").sh("exit 3").create_until("Failed").await?;
    ensure!(pod.main().exit_code() == Some(3), "{:?}", pod.main());
    Ok(())
}

#[tokio::test]
async fn agent_keeps_the_mac_awake_while_it_runs() -> Result<()> {
    let scene = Scene::new("awake").await?;
    let (programs, said) = (scene.mac.host().join("awake"), scene.mac.host().join("said"));
    std::fs::create_dir(&programs)?;
    let program = programs.join("caffeinate");
    std::fs::write(&program, format!("#!/bin/sh\necho \"$@\" >>{}\nexec sleep 1000\n", said.display()))?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let path = format!("{}:{}", programs.display(), std::env::var("PATH")?);
    let agent = scene.agent.clone().env("PATH", &path).start()?;
    let expected = format!("-i -w {}\n", agent.process().pid());
    wait::eventually("caffeinate", DEADLINE, async || {
        let said = std::fs::read_to_string(&said)?;
        ensure!(said == expected, "{said}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn flag_that_the_machine_cannot_satisfy_ends_the_agent_with_one_line() -> Result<()> {
    let scene = Scene::new("limits").await?;
    let table = [
        ("--node-ip", "0.0.0.0", "is not an address that other machines can reach"),
        ("--state-dir", "/dev/null/state", "make it for this user, e.g. with `sudo install -d"),
        ("--kube-reserved", "memory=1000Ti", "nothing of this machine's memory would be left"),
    ];
    for (flag, value, why) in table {
        // What a user says of the memory counts in place of what the machine has.
        let agent = scene.agent.clone().without("--host-memory-mb").flag(flag, value).start()?;
        let line = exit_line(&agent).await?;
        ensure!(line.starts_with("tart-kubelet: ") && line.contains(why), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn second_agent_on_one_state_directory_exits() -> Result<()> {
    let (scene, first) = Scene::with_agent("second").await?;
    let second = scene.agent.start()?;
    let status = second.wait_for_exit(DEADLINE).await?;
    ensure!(status.code() == Some(2), "{status}");
    ensure!(second.log()?.contains("another tart-kubelet uses the state directory"), "{}", second.log()?);
    first.process().ensure_running()
}

#[tokio::test]
async fn agent_waits_for_an_unreachable_api_server() -> Result<()> {
    let scene = Scene::new("unreachable").await?;
    // A port that is taken, so that no other process listens there.
    let silent = tokio::net::TcpSocket::new_v4()?;
    silent.bind(([127, 0, 0, 1], 0).into())?;
    let port = silent.local_addr()?.port();
    let kubeconfig = std::fs::read_to_string(scene.control_plane.node_kubeconfig(&scene.node)?)?;
    let elsewhere = kubeconfig.replace(scene.control_plane.server(), &format!("https://127.0.0.1:{port}"));
    ensure!(elsewhere != kubeconfig);
    let path = scene.agent.state_dir().with_file_name("elsewhere");
    std::fs::write(&path, elsewhere)?;
    let agent = scene.agent.clone().flag("--kubeconfig", &path.display().to_string()).start()?;
    wait::eventually("a line about the API server", DEADLINE, async || {
        let log = agent.log()?;
        ensure!(
            log.contains("cannot read the Node's Lease; trying again") && log.contains("refused"),
            "{log}"
        );
        ensure!(!log.contains("panicked"), "{log}");
        Ok(())
    })
    .await?;
    agent.process().ensure_running()
}
