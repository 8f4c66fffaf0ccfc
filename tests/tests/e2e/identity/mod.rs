//! The agent's identity at the API server: TLS bootstrap, kubeconfigs and certificates.

mod replacement;
mod rotation;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::certificates::Pair;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubeconfig::{self, Credentials};
use tart_kubelet_tests::wait;

use crate::agent::startup::exit_line;
use crate::scene::{DEADLINE, Scene};

/// The same agent, with a bootstrap kubeconfig, and a kubeconfig that is not there yet.
fn joining(agent: &Agent, bootstrap: &Path) -> (Agent, PathBuf) {
    let kubeconfig = agent.state_dir().with_file_name("kubeconfig");
    let agent = agent
        .clone()
        .flag("--kubeconfig", &kubeconfig.display().to_string())
        .flag("--bootstrap-kubeconfig", &bootstrap.display().to_string());
    (agent, kubeconfig)
}

/// Waits until the API server accepts bootstrap credentials: it learns of new tokens and roles a moment later.
async fn may_join(control_plane: &ControlPlane, bootstrap: &Path) -> Result<()> {
    let kubectl = control_plane.kubectl_as(bootstrap);
    wait::eventually("bootstrap credentials that work", DEADLINE, async || {
        kubectl.run(["auth", "can-i", "create", "certificatesigningrequests.certificates.k8s.io"]).await
    })
    .await
    .map(drop)
}

/// A bootstrap kubeconfig whose requests an administrator has to approve, and its user.
async fn unapproved(scene: &Scene) -> Result<(PathBuf, String)> {
    let user = format!("joins-{}", scene.node);
    let path = scene.control_plane.user_kubeconfig(&user, None)?;
    let role = "--clusterrole=system:node-bootstrapper";
    scene.kubectl.run(["create", "clusterrolebinding", &user, role, &format!("--user={user}")]).await?;
    may_join(scene.control_plane, &path).await?;
    Ok((path, user))
}

async fn who_is(control_plane: &ControlPlane, kubeconfig: &Path) -> Result<Value> {
    let told = control_plane.kubectl_as(kubeconfig).run(["auth", "whoami", "--output", "json"]).await?;
    Ok(serde_json::from_str::<Value>(&told)?["status"]["userInfo"].clone())
}

/// The names of a user's certificate signing requests, apart from those for serving.
async fn requests_of(control_plane: &ControlPlane, user: &str) -> Result<Vec<String>> {
    let api: Api<CertificateSigningRequest> = Api::all(control_plane.client().await?);
    let all = api.list(&ListParams::default()).await?;
    let ours = all.iter().filter(|request| {
        request.spec.username.as_deref() == Some(user)
            && request.spec.signer_name == "kubernetes.io/kube-apiserver-client-kubelet"
    });
    Ok(ours.map(ResourceExt::name_any).collect())
}

async fn only_request_of(control_plane: &ControlPlane, user: &str) -> Result<String> {
    wait::eventually(&format!("a request of {user}"), DEADLINE, async || {
        match requests_of(control_plane, user).await?.as_slice() {
            [name] => Ok(name.clone()),
            other => bail!("there are {other:?}"),
        }
    })
    .await
}

async fn logged(agent: &RunningAgent, words: &str) -> Result<()> {
    wait::eventually(&format!("`{words}` in the log"), DEADLINE, async || {
        let log = agent.log()?;
        ensure!(log.contains(words), "{log}");
        Ok(())
    })
    .await
}

fn mode(path: &Path) -> Result<u32> {
    let metadata = std::fs::metadata(path).with_context(|| format!("no {}", path.display()))?;
    Ok(metadata.permissions().mode() & 0o777)
}

fn certificate(agent: &Agent) -> PathBuf {
    agent.state_dir().join("pki/client-current.pem")
}

#[tokio::test]
async fn agent_joins_with_a_bootstrap_token() -> Result<()> {
    let scene = Scene::new("join").await?;
    let bootstrap = scene.control_plane.bootstrap_kubeconfig().await?;
    may_join(scene.control_plane, &bootstrap).await?;
    let user = who_is(scene.control_plane, &bootstrap).await?["username"].clone();
    let user = user.as_str().context("no user")?;
    let (agent, kubeconfig) = joining(&scene.agent, &bootstrap);
    let running = scene.start(&agent).await?;

    let pki = agent.state_dir().join("pki");
    assert_eq!(mode(&pki)?, 0o700);
    assert_eq!(mode(&certificate(&agent))?, 0o600);
    assert_eq!(mode(&kubeconfig)?, 0o600);
    ensure!(!pki.join("client-pending.key").exists(), "nothing is pending");
    let written = std::fs::read_to_string(&kubeconfig)?;
    ensure!(!written.contains("token"), "{written}");
    let node = who_is(scene.control_plane, &kubeconfig).await?;
    assert_eq!(node["username"], format!("system:node:{}", scene.node));
    assert_eq!(node["groups"], json!(["system:nodes", "system:authenticated"]));
    assert_eq!(requests_of(scene.control_plane, user).await?.len(), 1);

    // From here on the agent does not need the token.
    std::fs::remove_file(&bootstrap)?;
    let uid = scene.nodes.get(&scene.node).await?.uid();
    let first = running.log()?;
    let running = running.restart()?;
    let restarted = jiff::Timestamp::now();
    wait::eventually("the restarted agent", DEADLINE, async || {
        let log = running.log()?;
        ensure!(log[first.len()..].contains("\"starting\""), "{log}");
        Ok(())
    })
    .await?;
    // The Node is still ready from before, but only the running agent can renew its Lease.
    scene.lease_renewed_after(Some(restarted)).await.with_context(|| running.log().unwrap_or_default())?;
    scene.node_ready(&running).await?;
    assert_eq!(scene.nodes.get(&scene.node).await?.uid(), uid);
    assert_eq!(std::fs::read_to_string(&kubeconfig)?, written);
    assert_eq!(requests_of(scene.control_plane, user).await?.len(), 1);
    running.process().ensure_running()
}

#[tokio::test]
async fn agent_restart_continues_its_certificate_request() -> Result<()> {
    let scene = Scene::new("waits").await?;
    let (bootstrap, user) = unapproved(&scene).await?;
    let (agent, kubeconfig) = joining(&scene.agent, &bootstrap);
    let running = agent.start()?;
    let name = only_request_of(scene.control_plane, &user).await?;
    logged(&running, &format!("run `kubectl certificate approve {name}`")).await?;
    ensure!(!kubeconfig.exists());
    assert_eq!(mode(&agent.state_dir().join("pki/client-pending.key"))?, 0o600);

    let running = running.restart()?;
    logged(&running, "asked before for a certificate").await?;
    scene.kubectl.run(["certificate", "approve", &name]).await?;
    scene.node_ready(&running).await?;
    assert_eq!(requests_of(scene.control_plane, &user).await?, [name]);
    let node = who_is(scene.control_plane, &kubeconfig).await?;
    assert_eq!(node["username"], format!("system:node:{}", scene.node));
    Ok(())
}

#[tokio::test]
async fn denied_certificate_request_ends_the_agent_with_one_line() -> Result<()> {
    let scene = Scene::new("denied").await?;
    let (bootstrap, user) = unapproved(&scene).await?;
    let (agent, kubeconfig) = joining(&scene.agent, &bootstrap);
    let running = agent.start()?;
    let name = only_request_of(scene.control_plane, &user).await?;
    scene.kubectl.run(["certificate", "deny", &name]).await?;
    let line = exit_line(&running).await?;
    for words in [&name, "was denied", &format!("`kubectl delete csr {name}`"), &scene.node] {
        ensure!(line.contains(words), "`{words}` is not in: {line}");
    }
    assert_eq!(exit_line(&agent.start()?).await?, line, "launchd starts it again");
    ensure!(!kubeconfig.exists());
    assert_eq!(requests_of(scene.control_plane, &user).await?, [name.as_str()], "not asked twice");

    // The user follows the advice.
    scene.kubectl.run(["delete", "csr", &name]).await?;
    let running = agent.start()?;
    let name = only_request_of(scene.control_plane, &user).await?;
    scene.kubectl.run(["certificate", "approve", &name]).await?;
    scene.node_ready(&running).await
}

#[tokio::test]
async fn deleted_certificate_request_is_made_again() -> Result<()> {
    let scene = Scene::new("deleted").await?;
    let (bootstrap, user) = unapproved(&scene).await?;
    let (agent, _) = joining(&scene.agent, &bootstrap);
    let running = agent.start()?;
    let name = only_request_of(scene.control_plane, &user).await?;
    logged(&running, "asked for a certificate").await?;
    scene.kubectl.run(["delete", "csr", &name]).await?;
    logged(&running, "the certificate signing request was deleted; asking again").await?;
    let name = only_request_of(scene.control_plane, &user).await?;
    scene.kubectl.run(["certificate", "approve", &name]).await?;
    scene.node_ready(&running).await
}

#[tokio::test]
async fn expired_certificate_is_reported_or_replaced() -> Result<()> {
    let scene = Scene::new("expired").await?;
    let (agent, kubeconfig) = {
        let bootstrap = scene.control_plane.bootstrap_kubeconfig().await?;
        may_join(scene.control_plane, &bootstrap).await?;
        joining(&scene.agent, &bootstrap)
    };
    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::default();
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let expired = Pair { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() };
    let authority = &scene.control_plane.authority().pair().certificate;
    let credentials = Credentials::Certificate(expired);
    kubeconfig::write(&kubeconfig, scene.control_plane.server(), authority, &credentials)?;

    let alone = scene.agent.clone().flag("--kubeconfig", &kubeconfig.display().to_string()).start()?;
    let line = exit_line(&alone).await?;
    for words in ["its certificate expired at 2020-01-01T00:00:00Z", "--bootstrap-kubeconfig"] {
        ensure!(line.contains(words), "{line}");
    }
    let running = agent.start()?;
    scene.node_ready(&running).await
}

#[tokio::test]
async fn unusable_bootstrap_credentials_end_the_agent_with_one_line() -> Result<()> {
    let scene = Scene::new("bootstrap").await?;
    let bootstrap = scene.agent.state_dir().with_file_name("bootstrap");
    let (agent, kubeconfig) = joining(&scene.agent, &bootstrap);
    let line = exit_line(&agent.start()?).await?;
    ensure!(line.contains("cannot use the bootstrap kubeconfig") && line.contains("No such file"), "{line}");
    std::fs::write(&bootstrap, "{")?;
    let line = exit_line(&agent.start()?).await?;
    ensure!(line.contains("cannot use the bootstrap kubeconfig"), "{line}");

    let authority = &scene.control_plane.authority().pair().certificate;
    let server = scene.control_plane.server();
    kubeconfig::write(&bootstrap, server, authority, &Credentials::Token("abcdef.0123456789abcdef".into()))?;
    let line = exit_line(&agent.start()?).await?;
    ensure!(line.contains("are they still valid?") && line.contains("Unauthorized"), "{line}");
    ensure!(!kubeconfig.exists());
    Ok(())
}

#[tokio::test]
async fn kubeconfig_with_a_token_is_used_unchanged() -> Result<()> {
    let scene = Scene::new("token").await?;
    scene.kubectl.run(["create", "serviceaccount", "agent"]).await?;
    let namespace = scene.namespace();
    let account = format!("--serviceaccount={namespace}:agent");
    let admin = "--clusterrole=cluster-admin";
    scene.kubectl.run(["create", "clusterrolebinding", &scene.node, admin, &account]).await?;
    let token = scene.kubectl.run(["create", "token", "agent"]).await?.trim().to_owned();
    let (agent, kubeconfig) = joining(&scene.agent, Path::new("/nowhere"));
    let authority = &scene.control_plane.authority().pair().certificate;
    kubeconfig::write(&kubeconfig, scene.control_plane.server(), authority, &Credentials::Token(token))?;
    let written = std::fs::read(&kubeconfig)?;
    may_join(scene.control_plane, &kubeconfig).await?;
    let _running = scene.start(&agent).await?;
    assert_eq!(std::fs::read(&kubeconfig)?, written);
    ensure!(!certificate(&agent).exists());
    let user = format!("system:serviceaccount:{namespace}:agent");
    assert_eq!(requests_of(scene.control_plane, &user).await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn agent_has_the_permissions_of_a_node_only() -> Result<()> {
    let scene = Scene::new("restricted").await?;
    let bootstrap = scene.control_plane.bootstrap_kubeconfig().await?;
    may_join(scene.control_plane, &bootstrap).await?;
    let (agent, kubeconfig) = joining(&scene.agent, &bootstrap);
    let running = scene.start(&agent).await?;
    let other = format!("other-{}", scene.node);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": other}});
    scene.apply(&node).await?;
    for secret in ["used", "unused"] {
        scene.kubectl.run(["create", "secret", "generic", secret, "--from-literal=key=value"]).await?;
    }
    scene.pod("user").pull_secrets(&["used"]).create().await?;

    let namespace = scene.namespace();
    let as_node = scene.control_plane.kubectl_as(&kubeconfig).namespace(namespace);
    wait::eventually("the Secret of a Pod to be readable", DEADLINE, async || {
        as_node.run(["get", "secret", "used"]).await
    })
    .await?;
    for refused in [
        ["get", "secret", "unused"].as_slice(),
        &["get", "secrets"],
        &["label", "node", &other, "team=ios"],
        &["delete", "node", &other],
        &["label", "node", &scene.node, "node-restriction.kubernetes.io/team=ios"],
        &["create", "configmap", "any"],
    ] {
        match as_node.run(refused.iter()).await {
            Ok(told) => bail!("{refused:?} was allowed: {told}"),
            Err(error) => {
                ensure!(format!("{error:#}").to_lowercase().contains("forbidden"), "{refused:?}: {error:#}");
            }
        }
    }
    running.process().ensure_running()
}

/// The kubeconfig at a path, with trust in every server.
fn trusting_every_server(path: &Path) -> Result<PathBuf> {
    let text = std::fs::read_to_string(path)?;
    let is_authority = |line: &&str| line.trim_start().starts_with("certificate-authority-data:");
    let authority = text.lines().find(is_authority).context("no authority")?;
    let insecure = path.with_extension("insecure");
    std::fs::write(&insecure, text.replace(authority, "    insecure-skip-tls-verify: true"))?;
    Ok(insecure)
}

#[tokio::test]
async fn bootstrap_never_makes_the_agent_trust_every_server() -> Result<()> {
    let scene = Scene::new("trusting").await?;
    let bootstrap = trusting_every_server(&scene.control_plane.bootstrap_kubeconfig().await?)?;
    let (agent, kubeconfig) = joining(&scene.agent, &bootstrap);
    let line = exit_line(&agent.start()?).await?;
    let words = "has insecure-skip-tls-verify, and the agent would obey every machine";
    ensure!(line.contains(words) && line.contains("certificate-authority-data"), "{line}");
    ensure!(!kubeconfig.exists(), "the agent has written a kubeconfig");
    // A kubeconfig of the user is used as it is, with a warning.
    let given = trusting_every_server(&scene.control_plane.node_kubeconfig(&scene.node)?)?;
    let running =
        scene.start(&scene.agent.clone().flag("--kubeconfig", &given.display().to_string())).await?;
    logged(&running, "insecure-skip-tls-verify: the agent obeys every machine").await
}

#[tokio::test]
async fn kubeconfig_that_other_users_can_change_is_refused() -> Result<()> {
    let scene = Scene::new("exposed").await?;
    let kubeconfig = scene.agent.state_dir().with_file_name("exposed");
    std::fs::copy(scene.control_plane.node_kubeconfig(&scene.node)?, &kubeconfig)?;
    let change = |mode| std::fs::set_permissions(&kubeconfig, std::fs::Permissions::from_mode(mode));
    let agent = scene.agent.clone().flag("--kubeconfig", &kubeconfig.display().to_string());
    change(0o666)?;
    let line = exit_line(&agent.start()?).await?;
    ensure!(line.contains("can change") && line.contains("chmod 600"), "{line}");
    change(0o644)?;
    let running = scene.start(&agent).await?;
    logged(&running, "other users of this machine can read").await?;
    running.kill9()?;
    change(0o600)?;
    std::fs::remove_file(running.process().log_path())?;
    let running = scene.start(&agent).await?;
    ensure!(!running.log()?.contains("other users of this machine"), "{}", running.log()?);
    Ok(())
}
