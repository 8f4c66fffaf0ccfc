//! A pool without a cloud: Macs of a list, which nothing wipes.

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tart_kubelet_tests::wait::until_gone;

use super::machine::{KIND, machine};
use super::scene::{DEADLINE, Scene};

/// Nothing is installed anew in between, and the Mac has a kubeconfig of other hands when the second machine claims it.
#[tokio::test]
async fn a_mac_of_a_list_is_one_machines_node_after_the_other() -> Result<()> {
    let Some(mut scene) = Scene::new("list", 1).await? else { return Ok(()) };
    let mac = &scene.macs[0].1;
    let entry = json!({
        "ssh": format!("{}@{}", mac.user(), mac.address()), "hostKey": mac.host_key_fingerprint(), "password": mac.password(),
        "key": std::fs::read_to_string(mac.private_key())?,
    });
    let list = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "macs" }, "stringData": { "office-1": entry.to_string() } });
    scene.kubectl().apply(&list.to_string()).await?;
    scene.start_provider(&["--mac-list=macs"]).await?;
    let spec = json!({ "adoptPoolPrefix": "office-", "fleetName": "office", "zone": "local" });
    let [first, second] = [1, 2].map(|number| format!("{}-{number}", scene.namespace));
    scene.api(KIND).create(&PostParams::default(), &machine(&first, &json!({}), &spec)?).await?;
    let machines = scene.ready(1).await?;
    assert_eq!(machines[0]["status"]["serverID"], json!("office-1"));
    scene.api(KIND).delete(&first, &DeleteParams::default()).await?;
    until_gone(&scene.api(KIND), &first, DEADLINE).await?;
    scene.nothing_is_left_of(&first).await?;

    let kubeconfig = scene.macs[0].1.path("/etc/tart-kubelet/kubeconfig");
    std::fs::create_dir_all(kubeconfig.parent().context("a directory")?)?;
    let foreign = "apiVersion: v1\nkind: Config\nusers: [{name: go, user: {token: of-another-hand}}]\n";
    std::fs::write(&kubeconfig, foreign)?;
    scene.api(KIND).create(&PostParams::default(), &machine(&second, &json!({}), &spec)?).await?;
    let machines = scene.ready(1).await?;
    assert_eq!(machines[0]["status"]["serverID"], json!("office-1"));
    let own = std::fs::read_to_string(&kubeconfig)?;
    ensure!(own.contains("pki/client-current.pem") && !own.contains("of-another-hand"), "{own}");
    Ok(())
}
