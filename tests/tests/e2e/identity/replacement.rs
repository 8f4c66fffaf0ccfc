//! Credentials that are no longer accepted, and those that take their place, while the agent runs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use tart_kubelet_tests::certificates::Authority;
use tart_kubelet_tests::kubeconfig::{self, Credentials};
use tart_kubelet_tests::proxy::Proxy;
use tart_kubelet_tests::wait;

use super::{certificate, joining, logged, may_join, only_request_of};
use crate::scene::{DEADLINE, Scene};

#[tokio::test]
async fn given_certificate_that_ends_is_replaced_without_a_restart() -> Result<()> {
    let scene = Scene::new("given-ends").await?;
    let path = scene.agent.state_dir().with_file_name("given");
    let authority = scene.control_plane.authority();
    let user = format!("system:node:{}", scene.node);
    let write = |ends: Timestamp| {
        let pair = authority.client_until(&user, Some("system:nodes"), ends)?;
        let credentials = Credentials::Certificate(pair);
        kubeconfig::write(&path, scene.control_plane.server(), &authority.pair().certificate, &credentials)
    };
    write(Timestamp::now() + Duration::from_secs(30))?;
    let agent = scene.agent.clone().flag("--kubeconfig", &path.display().to_string());
    let running = scene.start(&agent).await?;
    logged(&running, "its certificate expired at").await?;
    logged(&running, "Write valid ones to the kubeconfig: the agent notices").await?;
    running.process().ensure_running()?;

    write(Timestamp::now() + Duration::from_hours(1))?;
    let written = Timestamp::now();
    logged(&running, "using the new credentials in the kubeconfig").await?;
    scene.lease_renewed_after(Some(written)).await.with_context(|| running.log().unwrap_or_default())?;
    running.process().ensure_running()
}

#[tokio::test]
async fn bootstrap_token_that_expires_during_approval_is_replaced_without_a_restart() -> Result<()> {
    let scene = Scene::new("token-ends").await?;
    let proxy = Proxy::start(scene.control_plane).await?;
    let direct = scene.agent.state_dir().with_file_name("bootstrap");
    let account = format!("--serviceaccount={}:joins", scene.namespace());
    let role = "--clusterrole=system:node-bootstrapper";
    scene.kubectl.run(["create", "clusterrolebinding", &scene.node, role, &account]).await?;
    // The token of a service account: its requests are not approved by themselves.
    let write = async || {
        scene.kubectl.run(["create", "serviceaccount", "joins"]).await?;
        let token = scene.kubectl.run(["create", "token", "joins"]).await?.trim().to_owned();
        let authority = &scene.control_plane.authority().pair().certificate;
        kubeconfig::write(&direct, scene.control_plane.server(), authority, &Credentials::Token(token))?;
        may_join(scene.control_plane, &direct).await?;
        proxy.kubeconfig(&direct)
    };
    let (agent, _) = joining(&scene.agent, &write().await?);
    let running = agent.start()?;
    let user = format!("system:serviceaccount:{}:joins", scene.namespace());
    let request = only_request_of(scene.control_plane, &user).await?;
    logged(&running, &format!("run `kubectl certificate approve {request}`")).await?;

    scene.kubectl.run(["delete", "serviceaccount", "joins"]).await?;
    wait::eventually("a token that is not accepted", DEADLINE, async || {
        let asked = scene.control_plane.kubectl_as(&direct).run(["auth", "whoami"]).await;
        ensure!(asked.is_err(), "it is");
        Ok(())
    })
    .await?;
    // A watch outlives the token that began it. The next one does not begin.
    proxy.sever();
    logged(&running, "cannot watch the certificate signing request").await?;
    proxy.open();
    logged(&running, "The bootstrap credentials are no longer valid").await?;

    write().await?;
    logged(&running, "using the new credentials in the bootstrap kubeconfig").await?;
    scene.kubectl.run(["certificate", "approve", &request]).await?;
    scene.node_ready(&running).await?;
    running.process().ensure_running()
}

#[tokio::test]
async fn refused_own_certificate_is_told_or_replaced_by_bootstrap() -> Result<()> {
    let scene = Scene::new("refused").await?;
    let bootstrap = scene.control_plane.bootstrap_kubeconfig().await?;
    may_join(scene.control_plane, &bootstrap).await?;
    let (agent, kubeconfig) = joining(&scene.agent, &bootstrap);
    scene.start(&agent).await?.kill9()?;
    // The cluster has another authority since then: this certificate has not ended, and is worth nothing.
    let replaced = Authority::new("replaced")?;
    let old = replaced.client(&format!("system:node:{}", scene.node), Some("system:nodes"))?;
    std::fs::write(certificate(&agent), format!("{}{}", old.certificate, old.key))?;

    let alone = scene.agent.clone().flag("--kubeconfig", &kubeconfig.display().to_string());
    let alone = alone.start()?;
    logged(&alone, "the API server refuses its credentials (401 Unauthorized)").await?;
    logged(&alone, "Or start it with --bootstrap-kubeconfig").await?;
    alone.process().ensure_running()?;
    alone.kill9()?;

    let restarted = Timestamp::now();
    let running = agent.start()?;
    scene.lease_renewed_after(Some(restarted)).await.with_context(|| running.log().unwrap_or_default())?;
    ensure!(
        !std::fs::read_to_string(certificate(&agent))?.contains(&old.key),
        "the certificate is still the old one"
    );
    running.process().ensure_running()
}
