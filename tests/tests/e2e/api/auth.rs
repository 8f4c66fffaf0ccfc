//! Who may ask the kubelet API for what.

use anyhow::{Context, Result, ensure};
use http::Method;
use kube::Client;
use tart_kubelet_tests::certificates::Authority;
use tart_kubelet_tests::kubeconfig::Credentials;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, ask};

/// Requests, and whether each is more than reading.
const REQUESTS: [(&str, &str, bool); 9] = [
    ("GET", "/containerLogs/default/p/c", false),
    ("GET", "/pods", false),
    ("GET", "/nowhere", false),
    ("GET", "/exec/default/p/c?command=id&output=1", true),
    ("POST", "/exec/default/p/c?command=id&output=1", true),
    ("GET", "/attach/default/p/c", true),
    ("POST", "/run/default/p/c?cmd=id", true),
    ("GET", "/portForward/default/p", true),
    ("POST", "/portForward/default/p", true),
];

async fn statuses(client: &Client) -> Result<Vec<(&'static str, &'static str, bool, u16)>> {
    let mut found = Vec::new();
    for (method, path, changes) in REQUESTS {
        let (status, _) = ask(client, Method::from_bytes(method.as_bytes())?, path).await?;
        found.push((method, path, changes, status));
    }
    Ok(found)
}

#[tokio::test]
async fn without_credentials_everything_is_unauthorized() -> Result<()> {
    let (scene, _agent) = Scene::with_api("anonymous").await?;
    let stranger = Authority::new("another cluster")?.client("admin", Some("system:masters"))?;
    for (what, credentials) in [
        ("a token that the API server has not issued", Credentials::Token("abc".to_owned())),
        ("an empty token", Credentials::Token("\"\"".to_owned())),
        ("a certificate of another authority", Credentials::Certificate(stranger)),
    ] {
        let client = scene.node_client(&credentials).await?;
        for (method, path, _, status) in statuses(&client).await.context(what)? {
            assert_eq!(status, 401, "{what}: {method} {path}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_user_without_rights_is_forbidden_everything() -> Result<()> {
    let (scene, _agent) = Scene::with_api("rightless").await?;
    let client = scene.node_client_as(&format!("nobody-{}", scene.node)).await?;
    for (method, path, _, status) in statuses(&client).await? {
        assert_eq!(status, 403, "{method} {path}");
    }
    let (_, words) = ask(&client, Method::GET, "/pods").await?;
    ensure!(words.contains("verb=get, resource=nodes, subresource(s)=[pods proxy]"), "{words}");
    Ok(())
}

#[tokio::test]
async fn a_token_may_do_what_its_account_may_and_reading_never_runs_commands() -> Result<()> {
    let (scene, _agent) = Scene::with_api("reader").await?;
    scene.kubectl.run(["create", "serviceaccount", "reader"]).await?;
    let subject = format!("--serviceaccount={}:reader", scene.namespace());
    scene.allow(&subject, "get", &["nodes/proxy"]).await?;
    let token = scene.kubectl.run(["create", "token", "reader"]).await?;
    let client = scene.node_client(&Credentials::Token(token.trim().to_owned())).await?;
    // The API server learns of a new role a moment later, and the agent believes a refusal for half a minute.
    wait::eventually("a token that may read", DEADLINE, async || {
        let (status, words) = ask(&client, Method::GET, "/nowhere").await?;
        ensure!(status == 404, "{status} {words}");
        Ok(())
    })
    .await?;
    for (method, path, changes, status) in statuses(&client).await? {
        if changes {
            assert_eq!(status, 403, "{method} {path}");
        } else {
            ensure!(status != 401 && status != 403, "{method} {path}: {status}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn nothing_is_served_while_the_api_server_cannot_be_asked() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("alone").await?;
    scene.approve_serving_certificate(&agent).await?;
    let client = scene.node_client_as("kube-apiserver-kubelet-client").await?;
    proxy.sever();
    let (status, words) = ask(&client, Method::GET, "/healthz").await?;
    assert_eq!(status, 500, "{words}");
    ensure!(words.starts_with("Authorization error"), "{words}");
    Ok(())
}
