//! Several Macs at once.

use anyhow::{Result, ensure};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac_host::MacHost;
use tart_kubelet_tests::programs;

use super::scene::{Said, agent_binary, provider, run_provider};

/// Runs `tart-provider host VERB` on some Macs, each with its Node's name.
async fn on_all(macs: &[(&str, &MacHost)], verb: &str, further: &[String]) -> Result<Said> {
    let known_hosts = macs[0].1.sandbox().directory("known-hosts")?.join("known_hosts");
    let keys: Result<Vec<String>, _> =
        macs.iter().map(|(_, mac)| std::fs::read_to_string(mac.known_hosts())).collect();
    std::fs::write(&known_hosts, keys?.concat())?;
    let addresses = macs.iter().map(|(name, mac)| format!("--ssh={name}={}@{}", mac.user(), mac.address()));
    let mut arguments: Vec<String> = addresses.collect();
    arguments.push(format!("--known-hosts={}", known_hosts.display()));
    arguments.extend(further.iter().cloned());
    run_provider(macs[0].1, verb, &arguments, "").await
}

#[tokio::test]
async fn several_macs_are_taken_at_a_time_and_one_that_fails_keeps_the_next_ones_from_being_begun()
-> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let sandbox = control_plane.sandbox();
    let pfctl = programs::find("pfctl")?;
    let Some(first) = MacHost::new(sandbox)?.pfctl(&pfctl).start().await? else { return Ok(()) };
    let Some(second) = MacHost::new(sandbox)?.pfctl(&pfctl).with_key_of(&first).start().await? else {
        return Ok(());
    };
    // It accepts another key.
    let Some(third) = MacHost::new(sandbox)?.pfctl(&pfctl).start().await? else { return Ok(()) };
    let (agent, other) = agent_binary(sandbox)?;
    let flags = |agent: &std::path::Path| {
        vec![
            format!("--agent-binary={}", agent.display()),
            format!("--bootstrap-kubeconfig={}", agent.with_extension("kubeconfig").display()),
            "--agent-flag=--metrics-bind-address=127.0.0.1:0".to_owned(),
            "--agent-flag=--port=0".to_owned(),
        ]
    };
    let bootstrap = control_plane.bootstrap_kubeconfig().await?;
    for agent in [&agent, &other] {
        std::fs::copy(&bootstrap, agent.with_extension("kubeconfig"))?;
    }
    for mac in [&first, &second] {
        provider(mac, "prepare", &["--password-stdin".to_owned()], mac.password()).await?.ok()?;
    }
    let macs = [("fleet-one", &first), ("fleet-two", &second)];
    let applied = on_all(&macs, "apply", &flags(&agent)).await?.ok()?;
    ensure!(
        applied.contains("fleet-one:   changed  agent\n")
            && applied.contains("fleet-two:   changed  agent\n"),
        "{applied}"
    );
    ensure!(applied.contains("2 of 2 Macs are done"), "{applied}");

    let rolled = on_all(&macs, "roll", &flags(&other)).await?.ok()?;
    ensure!(rolled.matches("changed  agent's binary").count() == 2, "{rolled}");

    let macs = [("fleet-three", &third), ("fleet-one", &first), ("fleet-two", &second)];
    let mut one_at_a_time = flags(&agent);
    one_at_a_time.push("--concurrency=1".to_owned());
    // The key of the second Mac of the list, which the first one does not accept.
    one_at_a_time.push(format!("--identity={}", first.private_key().display()));
    let failed = on_all(&macs, "roll", &one_at_a_time).await?.failed()?;
    ensure!(failed.contains("does not accept the SSH key"), "{failed}");
    ensure!(failed.contains("failed: fleet-three; not begun: fleet-one, fleet-two"), "{failed}");
    one_at_a_time.push("--keep-going".to_owned());
    let failed = on_all(&macs, "roll", &one_at_a_time).await?.failed()?;
    ensure!(failed.contains("2 of 3 Macs are done; failed: fleet-three"), "{failed}");
    Ok(())
}
