//! Hosts whose machines were deleted by force.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tart_kubelet_tests::wait::{eventually, until_gone};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::scene::{DEADLINE, Scene};

const KIND: &str = "ScalewayAppleSiliconMachine";
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// What the provider serves at `/metrics`.
async fn metrics(port: u16) -> Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: provider\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    timeout(ANSWER_DEADLINE, exchange).await.context("no answer")?
}

/// Waits until the metrics have these lines.
async fn counted(scene: &Scene, port: u16, lines: &[&str]) -> Result<()> {
    eventually("the counts of hosts", DEADLINE, async || {
        scene.provider()?.ensure_running()?;
        let text = metrics(port).await?;
        let missing: Vec<_> =
            lines.iter().filter(|wanted| !text.lines().any(|line| line == **wanted)).collect();
        ensure!(missing.is_empty(), "no {missing:?} in {text}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_host_of_a_machine_that_was_deleted_by_force_is_counted_and_given_back_where_that_is_asked_for()
-> Result<()> {
    let Some(mut scene) = Scene::new("force", 1).await? else { return Ok(()) };
    let (id, mine) = (scene.macs[0].0.clone(), format!("{}-1", scene.namespace));
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let address = format!("--metrics-bind-address=127.0.0.1:{port}");
    let reports = ["--default-adopt-pool-prefix=tuist-pool-", "--orphan-reclaim-interval=1s", &address];
    let machine = serde_json::from_value(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": KIND, "metadata": { "name": mine },
        "spec": { "fleetName": "fleet" },
    }))?;
    scene.api(KIND).create(&PostParams::default(), &machine).await?;
    scene.start_provider(&reports).await?;
    scene.ready(1).await?;
    let owned = r#"tart_provider_pool_hosts{zone="fr-par-1",state="owned"} 1"#;
    counted(&scene, port, &[owned, r#"scaleway_orphan_servers{zone="fr-par-1",reason="no_machine"} 0"#])
        .await?;

    scene.stop_provider().await?;
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    scene.api(KIND).patch(&mine, &PatchParams::default(), &patch).await?;
    scene.api(KIND).delete(&mine, &DeleteParams::default()).await?;
    until_gone(&scene.api(KIND), &mine, DEADLINE).await?;

    // It is counted, and left as it is.
    let writes = scene.scaleway.world().writes().len();
    let named = |scene: &Scene| -> Result<String> {
        Ok(scene.scaleway.world().server(&id).context("a server")?.name.clone())
    };
    scene.start_provider(&reports).await?;
    let orphan = [
        r#"tart_provider_pool_hosts{zone="fr-par-1",state="orphan"} 1"#,
        r#"scaleway_orphan_servers{zone="fr-par-1",reason="no_machine"} 1"#,
        "scaleway_orphan_servers_reclaimed_total 0",
    ];
    counted(&scene, port, &orphan).await?;
    scene.stop_provider().await?;
    assert_eq!(named(&scene)?, mine);
    assert_eq!(scene.scaleway.world().writes().len(), writes);

    // Where its name begins so, it is given back.
    let gate = format!("--orphan-reclaim-claim-name-prefix={}-", scene.namespace);
    let gives_back: Vec<&str> = reports.into_iter().chain([gate.as_str()]).collect();
    scene.start_provider(&gives_back).await?;
    assert_eq!(scene.reinstalled().await?, id);
    scene.install_anew(&id).await?;
    let free = [
        r#"tart_provider_pool_hosts{zone="fr-par-1",state="free"} 1"#,
        r#"scaleway_orphan_servers{zone="fr-par-1",reason="no_machine"} 0"#,
        "scaleway_orphan_servers_reclaimed_total 1",
    ];
    counted(&scene, port, &free).await?;
    let name = named(&scene)?;
    ensure!(name.starts_with("tuist-pool-"), "{name}");
    scene.stop_provider().await
}
