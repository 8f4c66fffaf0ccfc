//! Tokens of service accounts in projected volumes.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tart_kubelet_tests::{programs, skip};

use crate::scene::Scene;

/// The claims of a token.
fn claims(token: &str) -> Result<Value> {
    let claims = token.trim().split('.').nth(1).with_context(|| format!("`{token}` is no token"))?;
    Ok(serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims)?)?)
}

#[tokio::test]
async fn pod_gets_its_own_tokens() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("token").await?;
    let token =
        json!({"serviceAccountToken": {"path": "mine", "audience": "vault", "expirationSeconds": 7200}});
    let volume = json!({"projected": {"sources": [token]}});
    let script = "cat /private/tmp/token/mine; echo; cd /var/run/secrets/kubernetes.io/serviceaccount; \
                  cat token; echo; cat namespace; echo; head -1 ca.crt";
    let written = scene.pod("token").strict_sh(script).mounted("token", volume).output().await?;
    let [asked, usual, namespace, authority] = written.as_slice() else {
        return Err(anyhow::anyhow!("{} lines", written.len()));
    };
    let asked = claims(asked)?;
    assert_eq!(asked["aud"], json!(["vault"]));
    assert_eq!(asked["kubernetes.io"]["pod"]["name"], "token");
    let life = asked["exp"].as_i64().zip(asked["iat"].as_i64()).map(|(end, start)| end - start);
    assert_eq!(life, Some(7200));
    assert_eq!(claims(usual)?["kubernetes.io"]["namespace"], json!(namespace));
    assert_eq!(authority, "-----BEGIN CERTIFICATE-----");
    Ok(())
}

#[tokio::test]
async fn token_is_renewed_while_its_pod_reads_it() -> Result<()> {
    // No token lives for less than ten minutes, so this agent renews its tokens sooner.
    const USE: &str = "TART_KUBELET_TOKEN_USE";
    if !programs::agent_knows(USE)? {
        return skip::say("the agent is a release build, which renews no token within this test's time");
    }
    let mut scene = Scene::new("rotation").await?;
    scene.agent = scene.agent.env(USE, "2");
    let _agent = scene.start(&scene.agent).await?;
    let token = json!({"serviceAccountToken": {"path": "mine", "audience": "vault"}});
    let volume = json!({"projected": {"sources": [token]}});
    // The script prints every content that it has seen: half a token would be another one.
    let script = "cd /private/tmp/token; seen=; n=0; while [ $n -lt 3 ]; do t=$(cat mine); \
                  case $seen in *\"<$t>\"*) ;; *) seen=\"$seen<$t>\"; n=$((n+1)); echo \"$t\";; esac; sleep 0.05; done";
    let written = scene.pod("rotation").strict_sh(script).mounted("token", volume).output().await?;
    assert_eq!(written.len(), 3, "{written:?}");
    let reviews: Api<TokenReview> = Api::all(scene.control_plane.client().await?);
    let mut starts = Vec::new();
    for token in written {
        starts.push(claims(&token)?["iat"].as_i64().context("no time")?);
        let spec = TokenReviewSpec { token, audiences: Some(vec!["vault".to_owned()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = reviews.create(&PostParams::default(), &review).await?.status.context("no answer")?;
        ensure!(status.authenticated == Some(true), "{status:?}");
    }
    ensure!(starts.is_sorted() && starts[0] < starts[2], "{starts:?}");
    Ok(())
}

#[tokio::test]
async fn pod_without_automount_gets_no_token() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("tokenless").await?;
    let pod = scene.pod("tokenless").strict_sh("test ! -e /var/run/secrets/kubernetes.io && echo none");
    let output = pod.spec(json!({"automountServiceAccountToken": false})).output().await?;
    assert_eq!(output, ["none"]);
    Ok(())
}
