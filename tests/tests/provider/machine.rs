//! What has gone wrong with machines before.

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use nix::sys::signal::Signal;
use scaleway_sim::PasswordView;
use serde_json::{Value, json};
use tart_kubelet_tests::wait::{eventually, until_gone};

use super::scene::{DEADLINE, Scene, reason};

pub(crate) const KIND: &str = "ScalewayAppleSiliconMachine";

pub(crate) fn machine(name: &str, metadata: &Value, spec: &Value) -> Result<DynamicObject> {
    let mut meta = json!({ "name": name });
    for (key, value) in metadata.as_object().context("an object")? {
        meta[key] = value.clone();
    }
    Ok(serde_json::from_value(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": KIND, "metadata": meta, "spec": spec,
    }))?)
}

async fn patch_status(scene: &Scene, name: &str, status: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "status": status }));
    scene.api(KIND).patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// An operator detaches a host: annotate, clear the host from the status, delete. The machine must neither claim another host meanwhile nor
/// touch the one that it had.
#[tokio::test]
async fn a_machine_that_is_paused_and_loses_its_host_claims_none_and_can_be_deleted() -> Result<()> {
    let Some(mut scene) = Scene::new("paused", 1).await? else { return Ok(()) };
    let paused = json!({ "annotations": { "cluster.x-k8s.io/paused": "true" } });
    scene
        .api(KIND)
        .create(
            &PostParams::default(),
            &machine("paused-1", &paused, &json!({ "adoptPoolPrefix": "tuist-pool-" }))?,
        )
        .await?;
    scene.start_provider(&[]).await?;
    scene.machines_until("a finalizer", |machines| machines[0]["metadata"]["finalizers"].is_array()).await?;
    patch_status(&scene, "paused-1", json!({ "serverID": null, "phase": "Ready" })).await?;
    scene.api(KIND).delete("paused-1", &DeleteParams::default()).await?;
    until_gone(&scene.api(KIND), "paused-1", DEADLINE).await?;
    assert!(scene.scaleway.world().writes().is_empty(), "{:?}", scene.scaleway.world().writes());
    Ok(())
}

/// The host bears the machine's name, and the status does not have it: the provider died in between.
#[tokio::test]
async fn a_provider_that_died_between_claim_and_write_finds_its_host_again() -> Result<()> {
    let Some(mut scene) = Scene::new("died", 2).await? else { return Ok(()) };
    let id = scene.macs[1].0.clone();
    let claimed = format!("{}-1", scene.namespace);
    scene.scaleway.world().server(&id).context("a server")?.name.clone_from(&claimed);
    scene
        .api(KIND)
        .create(
            &PostParams::default(),
            &machine(
                &claimed,
                &json!({}),
                &json!({ "adoptPoolPrefix": "tuist-pool-", "fleetName": "fleet" }),
            )?,
        )
        .await?;
    scene.start_provider(&[]).await?;
    let machines = scene.ready(1).await?;
    assert_eq!(machines[0]["status"]["serverID"], json!(id));
    let free = scene.macs[0].0.clone();
    ensure!(
        scene.scaleway.world().server(&free).context("a server")?.name.starts_with("tuist-pool-"),
        "two hosts for one machine"
    );
    Ok(())
}

/// An object from before `adoptPoolPrefix`: its host goes back under the provider's default.
#[tokio::test]
async fn a_legacy_machine_without_a_prefix_gives_its_host_back_by_default() -> Result<()> {
    let Some(mut scene) = Scene::new("legacy", 1).await? else { return Ok(()) };
    let (id, legacy) = (scene.macs[0].0.clone(), format!("{}-1", scene.namespace));
    scene.scaleway.world().server(&id).context("a server")?.name.clone_from(&legacy);
    let finalizers = json!({ "finalizers": ["scalewayapplesilicon.cluster.x-k8s.io/finalizer"] });
    let spec = json!({ "os": "macos-tahoe-26.3", "providerID": format!("scw-applesilicon://fr-par-1/{id}") });
    scene.api(KIND).create(&PostParams::default(), &machine(&legacy, &finalizers, &spec)?).await?;
    patch_status(&scene, &legacy, json!({ "serverID": id, "phase": "Ready", "ready": true })).await?;
    scene.api(KIND).delete(&legacy, &DeleteParams::default()).await?;
    scene.start_provider(&["--default-adopt-pool-prefix=tuist-pool-"]).await?;
    let wiped = scene.reinstalled().await?;
    assert_eq!(wiped, id);
    scene.install_anew(&id).await?;
    until_gone(&scene.api(KIND), &legacy, DEADLINE).await?;
    ensure!(
        scene.scaleway.world().server(&id).context("a server")?.name.starts_with("tuist-pool-"),
        "not given back"
    );
    Ok(())
}

/// Scaleway shows `<sealed>` in place of the password. Tried as one it locks the account.
#[tokio::test]
async fn a_sealed_password_is_waited_for_and_never_tried() -> Result<()> {
    let Some(mut scene) = Scene::new("sealed", 1).await? else { return Ok(()) };
    let id = scene.macs[0].0.clone();
    scene.scaleway.world().server(&id).context("a server")?.password_view = PasswordView::Sealed;
    let sealed = format!("{}-1", scene.namespace);
    scene
        .api(KIND)
        .create(
            &PostParams::default(),
            &machine(
                &sealed,
                &json!({}),
                &json!({ "adoptPoolPrefix": "tuist-pool-", "fleetName": "fleet" }),
            )?,
        )
        .await?;
    scene.start_provider(&[]).await?;
    let machines = scene
        .machines_until("a machine that waits for the password", |machines| {
            reason(&machines[0], "Bootstrapped").is_some_and(|(_, reason)| reason == "MissingSudoPassword")
        })
        .await?;
    assert_eq!(machines[0]["status"]["bootstrapAttempts"], Value::Null);
    let calls = scene.macs[0].1.calls()?.join("\n");
    ensure!(!calls.contains("sudo -S"), "a password was tried:\n{calls}");
    // The password comes back, and the provider, started anew, goes on.
    scene.scaleway.world().server(&id).context("a server")?.password_view = PasswordView::InVncUrl;
    scene.start_provider(&[]).await?;
    scene.ready(1).await.map(drop)
}

/// A host that SSH does not reach is restarted, then put into quarantine, and the machine gets the other one.
#[tokio::test]
async fn a_host_that_cannot_be_bootstrapped_is_quarantined_and_the_next_machine_does_not_get_it() -> Result<()>
{
    let Some(mut scene) = Scene::new("lost", 1).await? else { return Ok(()) };
    // First in the pool's order, and nothing answers at its address.
    let dead = scene.scaleway.world().order(scaleway_sim::NewServer::named("tuist-pool-dead"));
    let mine = format!("{}-1", scene.namespace);
    // The good host is busy until the dead one has failed.
    let good = scene.macs[0].0.clone();
    scene.scaleway.world().server(&good).context("a server")?.name = "kept".to_owned();
    scene.scaleway.world().finish_changes();
    scene
        .api(KIND)
        .create(
            &PostParams::default(),
            &machine(&mine, &json!({}), &json!({ "adoptPoolPrefix": "tuist-pool-", "fleetName": "fleet" }))?,
        )
        .await?;
    scene.start_provider(&["--bootstrap-reboot-after=1", "--bootstrap-max-attempts=2"]).await?;
    scene
        .machines_until("the dead host to be given up", |machines| {
            reason(&machines[0], "Provisioned")
                .is_some_and(|(_, reason)| reason == "NoAvailableHost" || reason == "HostReleased")
        })
        .await?;
    let named = scene.scaleway.world().server(&dead).context("a server")?.name.clone();
    assert_eq!(named, format!("tuist-quarantined-{mine}"));
    ensure!(scene.events("BootstrapExhausted").await?.contains("quarantine"), "no event tells of it");
    scene.scaleway.world().server(&good).context("a server")?.name = "tuist-pool-good".to_owned();
    let machines = scene.ready(1).await?;
    assert_eq!(machines[0]["status"]["serverID"], json!(good));
    Ok(())
}

/// A node asks for a certificate for names that are not its own.
#[tokio::test]
async fn certificates_for_other_names_are_refused() -> Result<()> {
    let Some(mut scene) = Scene::new("csr", 1).await? else { return Ok(()) };
    let mine = format!("{}-1", scene.namespace);
    scene
        .api(KIND)
        .create(
            &PostParams::default(),
            &machine(&mine, &json!({}), &json!({ "adoptPoolPrefix": "tuist-pool-", "fleetName": "fleet" }))?,
        )
        .await?;
    scene.start_provider(&[]).await?;
    scene.ready(1).await?;
    let node = scene.control_plane.node_kubeconfig(&mine)?;
    let as_node = scene.control_plane.kubectl_as(&node);
    let pem = request(&mine, &["kubernetes.default.svc"])?;
    let manifest = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": format!("{mine}-bad") },
        "spec": { "request": pem, "signerName": "kubernetes.io/kubelet-serving", "usages": ["digital signature", "server auth"] },
    });
    as_node.run_with_input(["create", "-f", "-"], &manifest.to_string()).await?;
    eventually("the request to be refused", DEADLINE, async || {
        let said = scene
            .control_plane
            .kubectl()
            .run(["get", "csr", &format!("{mine}-bad"), "-o", "jsonpath={.status.conditions[0]}"])
            .await?;
        ensure!(said.contains("\"Denied\"") && said.contains("is not the name of the machine"), "{said}");
        Ok(())
    })
    .await
}

/// A request in PEM, as the API has it.
fn request(node: &str, names: &[&str]) -> Result<String> {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let mut params =
        rcgen::CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("system:node:{node}"));
    let pem = params.serialize_request(&rcgen::KeyPair::generate()?)?.pem()?;
    Ok(BASE64_STANDARD.encode(pem))
}

/// Told to end, the provider gives its Lease up; the next one acts at once.
#[tokio::test]
async fn the_next_provider_acts_as_soon_as_the_leader_has_ended() -> Result<()> {
    let Some(mut scene) = Scene::new("leader", 0).await? else { return Ok(()) };
    let held = async |scene: &Scene| {
        scene.kubectl().run(["get", "lease", "-o", "jsonpath={.items[0].spec.holderIdentity}"]).await
    };
    scene.start_provider(&[]).await?;
    let first = eventually("a leader", DEADLINE, async || {
        let holder = held(&scene).await?;
        ensure!(!holder.is_empty(), "none");
        Ok(holder)
    })
    .await?;
    scene.provider()?.signal(Signal::SIGTERM)?;
    let ended = scene.provider()?.wait_for_exit(DEADLINE).await?;
    ensure!(ended.success(), "{ended}");
    assert_eq!(held(&scene).await?, "");
    scene.start_provider(&[]).await?;
    eventually("another leader", DEADLINE, async || {
        let holder = held(&scene).await?;
        ensure!(!holder.is_empty() && holder != first, "{holder}");
        Ok(())
    })
    .await
}
