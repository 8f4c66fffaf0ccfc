//! Who may ask the kubelet API for what.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use http::Method;
use kube::Client;
use kube::api::AttachParams;
use kube::core::kubelet_debug::KubeletDebugParams;
use serde_json::json;
use tart_kubelet_tests::certificates::Authority;
use tart_kubelet_tests::kubeconfig::Credentials;
use tart_kubelet_tests::wait;

use super::kubectl::Transport;
use crate::scene::{DEADLINE, PodView as _, SLEEP, Scene, ask};

/// Requests, and whether a client that may only read `nodes/proxy` may send each.
const REQUESTS: [(&str, &str, bool); 20] = [
    ("GET", "/containerLogs/default/p/c", true),
    ("GET", "/pods", true),
    ("GET", "/runningpods/", true),
    ("GET", "/healthz", true),
    ("GET", "/configz", true),
    ("GET", "/nowhere", true),
    ("GET", "/stats/summary", false),
    ("GET", "/metrics", false),
    ("GET", "/metrics/resource", false),
    ("GET", "/metrics/cadvisor", false),
    ("GET", "/metrics/probes", false),
    ("GET", "/logs/system.log", false),
    ("GET", "/exec/default/p/c?command=id&output=1", false),
    ("POST", "/exec/default/p/c?command=id&output=1", false),
    ("GET", "/attach/default/p/c?output=1", false),
    ("POST", "/attach/default/p/c?output=1", false),
    ("GET", "/portForward/default/p", false),
    ("POST", "/portForward/default/p", false),
    ("GET", "/run/default/p/c?cmd=id", false),
    ("POST", "/run/default/p/c?cmd=id", false),
];

async fn statuses(client: &Client) -> Result<Vec<(String, bool, u16)>> {
    let mut found = Vec::new();
    for (method, path, may_read) in REQUESTS {
        let (status, _) = ask(client, Method::from_bytes(method.as_bytes())?, path).await?;
        found.push((format!("{method} {path}"), may_read, status));
    }
    Ok(found)
}

#[tokio::test]
async fn without_credentials_everything_is_unauthorized() -> Result<()> {
    let (scene, _agent) = Scene::with_api("anonymous").await?;
    let stranger = Authority::new("another cluster")?.client("admin", Some("system:masters"))?;
    for (what, credentials) in [
        ("nothing", Credentials::Absent),
        ("a token that the API server has not issued", Credentials::Token("abc".to_owned())),
        ("an empty token", Credentials::Token("\"\"".to_owned())),
        ("a certificate of another authority", Credentials::Certificate(stranger)),
    ] {
        let client = scene.node_client(&credentials).await?;
        for (request, _, status) in statuses(&client).await.context(what)? {
            assert_eq!(status, 401, "{what}: {request}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_user_without_rights_is_forbidden_everything() -> Result<()> {
    let (scene, _agent) = Scene::with_api("rightless").await?;
    let client = scene.node_client_as(&format!("nobody-{}", scene.node)).await?;
    for (request, _, status) in statuses(&client).await? {
        assert_eq!(status, 403, "{request}");
    }
    let (_, words) = ask(&client, Method::GET, "/pods").await?;
    ensure!(words.contains("verb=get, resource=nodes, subresource(s)=[pods proxy]"), "{words}");
    Ok(())
}

#[tokio::test]
async fn a_token_without_rights_is_forbidden_everything() -> Result<()> {
    let (scene, _agent) = Scene::with_api("rightless-token").await?;
    let client = scene.node_client(&account_token(&scene, "nobody").await?).await?;
    for (request, _, status) in statuses(&client).await? {
        assert_eq!(status, 403, "{request}");
    }
    Ok(())
}

#[tokio::test]
async fn a_token_may_do_what_its_account_may_and_reading_never_runs_commands() -> Result<()> {
    let (scene, _agent) = Scene::with_api("reader").await?;
    scene.pod("one").command(SLEEP).create_until("Running").await?;
    let token = account_token(&scene, "reader").await?;
    let subject = format!("--serviceaccount={}:reader", scene.namespace());
    scene.allow(&subject, "get", &["nodes/proxy"]).await?;
    let client = scene.node_client(&token).await?;
    // The API server learns of a new role a moment later, and the agent believes a refusal for half a minute.
    wait::eventually("a token that may read", DEADLINE, async || {
        let (status, words) = ask(&client, Method::GET, "/nowhere").await?;
        ensure!(status == 404, "{status} {words}");
        Ok(())
    })
    .await?;
    for (request, may_read, status) in statuses(&client).await? {
        if may_read {
            ensure!(status != 401 && status != 403, "{request}: {status}");
        } else {
            assert_eq!(status, 403, "{request}");
        }
    }
    // A kubelet would let this client run the command: a WebSocket begins with GET.
    let pod = KubeletDebugParams { name: "one", namespace: scene.namespace(), pod_uid: None };
    let with = AttachParams::default().stdout(true);
    let exec = client.kubelet_node_exec(&pod, "main", ["id"], &with).await;
    let attach = client.kubelet_node_attach(&pod, "main", &with).await;
    let forward = client.kubelet_node_portforward(&pod, &[1]).await;
    let refusals = [exec.err(), attach.err(), forward.err()];
    for (stream, refusal) in ["exec", "attach", "port-forward"].into_iter().zip(refusals) {
        let words = format!("{:?}", refusal.with_context(|| format!("{stream} is served"))?);
        ensure!(words.contains("403"), "{stream}: {words}");
    }
    Ok(())
}

/// A token of a new account.
async fn account_token(scene: &Scene, name: &str) -> Result<Credentials> {
    scene.kubectl.run(["create", "serviceaccount", name]).await?;
    let token = scene.kubectl.run(["create", "token", name]).await?;
    Ok(Credentials::Token(token.trim().to_owned()))
}

#[tokio::test]
async fn streams_of_a_vm_are_its_users_alone_and_no_guest_finds_them() -> Result<()> {
    let (scene, _agent) = Scene::with_api("others").await?;
    let pod =
        scene.pod("one").command(SLEEP).container(json!({"stdin": true})).create_until("Running").await?;
    let run = scene.first_run_dir(pod.uid_of()?);
    let mode = |path: &Path| -> Result<u32> {
        Ok(path.metadata().with_context(|| path.display().to_string())?.permissions().mode() & 0o777)
    };
    // Another user of the Mac is kept out twice: by the socket, and by the directory of all state.
    assert_eq!(mode(&run.join("attach.sock"))?, 0o600);
    assert_eq!(mode(&scene.agent.state_dir())?, 0o700);
    // Root may be another user, and alone can get into the directory.
    if nix::unistd::Uid::effective().is_root() {
        let (mine, theirs) = (connect_as(0, &run)?, connect_as(65534, &run)?);
        assert_eq!((mine, theirs), (0, nix::errno::Errno::EACCES as i32));
    }
    // A guest that reaches the port has no more rights there than any other client.
    let port = scene.kubelet_port().await?;
    for path in ["pods", "healthz", "containerLogs/default/p/c", "exec/default/p/c?command=id&output=1"] {
        let curl = format!("curl -sk -o /dev/null -w '%{{http_code}}' 'https://127.0.0.1:{port}/{path}'");
        let done =
            Transport::WebSockets.run(&scene, &["exec", "one", "--", "sh", "-c", &curl], Vec::new()).await?;
        ensure!(done.code == Some(0) && done.text() == "401", "{path}: {done:?}");
    }
    // Of the Mac, a guest sees the volumes of its Pod alone.
    let find = "find / \\( -path /proc -o -path /sys -o -path /dev \\) -prune -o \\( -name attach.sock -o -name shim.lock \\) -print";
    let search = ["exec", "one", "--", "sh", "-c", &format!("{find} 2>/dev/null; true")];
    let done = Transport::WebSockets.run(&scene, &search, Vec::new()).await?;
    ensure!(done.code == Some(0) && done.text().is_empty(), "{done:?}");
    Ok(())
}

/// Connects to a VM's socket as this user, inside of its directory; 0, or the number of the error.
fn connect_as(uid: u32, run: &Path) -> Result<i32> {
    let script = "use Socket; chdir shift or die; $( = $) = $ARGV[0]; $< = $> = $ARGV[0]; \
                  socket(my $socket, PF_UNIX, SOCK_STREAM, 0) or die; \
                  exit(connect($socket, pack_sockaddr_un('attach.sock')) ? 0 : $! + 0)";
    let mut perl = std::process::Command::new("/usr/bin/perl");
    perl.args(["-e", script]).arg(run).arg(uid.to_string());
    perl.status()?.code().context("perl was killed")
}

#[tokio::test]
async fn nothing_is_served_while_the_api_server_cannot_be_asked() -> Result<()> {
    let (scene, proxy, agent) = Scene::behind_proxy("alone").await?;
    scene.approve_serving_certificate(&agent).await?;
    let client = scene.node_client_as("kube-apiserver-kubelet-client").await?;
    proxy.sever();
    let asked = REQUESTS.map(|(method, path, _)| {
        let client = &client;
        async move {
            let (status, words) = ask(client, Method::from_bytes(method.as_bytes())?, path).await?;
            ensure!(status == 500 && words.starts_with("Authorization error"), "{path}: {status} {words}");
            Ok(())
        }
    });
    futures::future::try_join_all(asked).await.map(drop)
}
