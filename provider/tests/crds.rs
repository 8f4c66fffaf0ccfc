//! The definitions of the provider's kinds on a real API server.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::wait::until;
use tart_provider::crd::{
    self, ScalewayAppleSiliconMachine, ScalewayAppleSiliconMachineTemplate, TuistCluster,
};

async fn install(client: &Client) -> Result<()> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for (_, crd) in crd::all() {
        let name = crd.metadata.name.clone().context("a definition without a name")?;
        api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&crd)).await?;
        until(&api, &name, "Established", std::time::Duration::from_mins(1), |crd| {
            let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions
                .is_some_and(|all| all.iter().any(|is| is.type_ == "Established" && is.status == "True"))
        })
        .await?;
    }
    Ok(())
}

fn machine(name: &str) -> ScalewayAppleSiliconMachine {
    serde_json::from_value(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "ScalewayAppleSiliconMachine",
        "metadata": { "name": name }, "spec": { "ghActionsRunner": { "ghRunnerVersion": "2.336.0" } },
    }))
    .expect("a machine")
}

/// A status in which each field of the type has a value. A field that the type gets and this does not is found by the comparison of keys.
fn full_status() -> Value {
    json!({
        "ready": true,
        "initialization": { "provisioned": true },
        "serverID": "7f6b",
        "addresses": [{ "type": "ExternalIP", "address": "51.159.1.2" }],
        "phase": "Failed",
        "failureReason": "TartKubeletUpdateExceededRetries",
        "failureMessage": "words",
        "conditions": [{
            "type": "Bootstrapped", "status": "False", "severity": "Warning", "reason": "NodeMissing", "message": "words",
            "observedGeneration": 3, "lastTransitionTime": "2026-08-01T10:00:00Z",
        }],
        "tartKubeletBinarySHA": "aa",
        "hostConfigHash": "bb",
        "desiredHostConfigHash": "dd",
        "failedHostConfigHash": "cc",
        "tartKubeletUpdateAttempts": 3,
        "lastUpdateFailureTime": "2026-08-01T10:00:00Z",
        "bootstrapAttempts": 2,
        "lastBootstrapFailureTime": "2026-08-01T10:00:00Z",
        "bootstrapRebootIssued": true,
    })
}

/// The names of the properties below a path of a schema.
fn properties(crd: &CustomResourceDefinition, path: &[&str]) -> Vec<String> {
    let mut schema =
        serde_json::to_value(&crd.spec.versions[0].schema).expect("a schema")["openAPIV3Schema"].clone();
    for step in path {
        schema = schema["properties"][step].clone();
    }
    schema["properties"].as_object().expect("an object").keys().cloned().collect()
}

#[tokio::test]
async fn every_field_of_a_status_survives_the_api_server() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let client = control_plane.client().await?;
    install(&client).await?;
    let namespace = control_plane.namespace("crds").await?;
    let machines = Api::<ScalewayAppleSiliconMachine>::namespaced(client.clone(), &namespace);
    machines.create(&PostParams::default(), &machine("full")).await?;
    let patch = Patch::Merge(json!({ "status": full_status() }));
    machines.patch_status("full", &PatchParams::default(), &patch).await?;
    let read = serde_json::to_value(machines.get("full").await?.status)?;
    assert_eq!(read, full_status());

    let (_, crd) = &crd::all()[0];
    let mut known: Vec<_> = full_status().as_object().context("an object")?.keys().cloned().collect();
    known.sort();
    assert_eq!(properties(crd, &["status"]), known, "the test does not write every field");
    Ok(())
}

#[tokio::test]
async fn the_api_server_fills_in_defaults_and_refuses_another_provider_id() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let client = control_plane.client().await?;
    install(&client).await?;
    let namespace = control_plane.namespace("crds").await?;
    let kubectl = control_plane.kubectl().namespace(&namespace);
    kubectl
        .apply(
            "apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1\nkind: ScalewayAppleSiliconMachine\nmetadata: {name: one}\nspec: {}\n",
        )
        .await?;
    let machines = Api::<ScalewayAppleSiliconMachine>::namespaced(client.clone(), &namespace);
    let spec = kubectl.run(["get", "samm", "one", "-o", "jsonpath={.spec}"]).await?;
    assert_eq!(
        serde_json::from_str::<Value>(&spec)?,
        json!({ "type": "M2-L", "zone": "fr-par-1", "os": "Tahoe" })
    );

    let set = async |id: Value| {
        let patch = Patch::Merge(json!({ "spec": { "providerID": id } }));
        machines.patch("one", &PatchParams::default(), &patch).await
    };
    set(json!("scw-applesilicon://fr-par-1/a")).await?;
    let refused = set(json!("scw-applesilicon://fr-par-1/b")).await.err().context("it was changed")?;
    ensure!(refused.to_string().contains("may be set and removed, but not changed"), "{refused}");
    // An operator detaches a host: removed, and then another.
    set(Value::Null).await?;
    set(json!("scw-applesilicon://fr-par-1/b")).await?;

    let builder = Patch::Merge(json!({ "spec": { "ghActionsRunner": { "ghRunnerVersion": "" } } }));
    let refused = machines.patch("one", &PatchParams::default(), &builder).await;
    ensure!(refused.is_err(), "a runner without a version was accepted");
    let columns = kubectl.run(["get", "samm"]).await?;
    ensure!(columns.starts_with("NAME   PHASE   PROVIDERID"), "{columns}");
    Ok(())
}

#[tokio::test]
async fn templates_and_clusters_survive_the_api_server() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let client = control_plane.client().await?;
    install(&client).await?;
    let namespace = control_plane.namespace("crds").await?;
    let template: ScalewayAppleSiliconMachineTemplate = serde_json::from_value(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "ScalewayAppleSiliconMachineTemplate",
        "metadata": { "name": "t" },
        "spec": { "template": {
            "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" } },
            "spec": { "type": "M4-S", "zone": "fr-par-3", "os": "Tahoe", "fleetName": "f", "hostCPU": 4, "hostMemoryMB": 8192 },
        } },
    }))?;
    let api = Api::<ScalewayAppleSiliconMachineTemplate>::namespaced(client.clone(), &namespace);
    assert_eq!(api.create(&PostParams::default(), &template).await?.spec, template.spec);

    let cluster: TuistCluster = serde_json::from_value(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "TuistCluster", "metadata": { "name": "c" },
        "spec": { "controlPlaneEndpoint": { "host": "127.0.0.1", "port": 6443 } },
    }))?;
    let api = Api::<TuistCluster>::namespaced(client.clone(), &namespace);
    assert_eq!(api.create(&PostParams::default(), &cluster).await?.spec, cluster.spec);
    let status = json!({
        "ready": true, "initialization": { "provisioned": true },
        "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": "2026-08-01T10:00:00Z" }],
    });
    api.patch_status("c", &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await?;
    assert_eq!(serde_json::to_value(api.get("c").await?.status)?, status);
    Ok(())
}
