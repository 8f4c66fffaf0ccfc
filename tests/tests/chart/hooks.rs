//! The external Secrets of the chart, which are hooks: made before everything else, and outliving what they have made.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::cluster_api::ClusterApi;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::helm::{Helm, chart};

use super::render::apply_kinds_of_others;

const SECRETS: [&str; 3] = [
    "hooks-tart-provider-builders-fleet-gh-app",
    "hooks-tart-provider-capi-kubeconfig",
    "hooks-tart-provider-scaleway",
];

#[tokio::test]
async fn external_secrets_are_made_anew_by_an_upgrade_and_stay_after_the_release() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    ClusterApi::shared().await?;
    apply_kinds_of_others(&control_plane.kubectl()).await?;
    let namespace = control_plane.namespace("hooks").await?;
    let kubectl = control_plane.kubectl().namespace(&namespace);
    let helm = Helm::new(control_plane.sandbox()).await?.on(control_plane, &namespace);
    let chart = chart().display().to_string();
    let values = [
        "capi.remoteKubeconfig.externalSecrets.enabled=true",
        "pool.scaleway.externalSecret.enabled=true",
        r#"buildersFleet={"enabled":true,"ghRunnerVersion":"2.336.0","externalSecret":{"enabled":true}}"#,
    ];
    let deploy = |what| {
        let values = values.iter().flat_map(|value| ["--set-json", value]);
        [what, "hooks", &chart].into_iter().chain(values).collect::<Vec<_>>()
    };
    let external = async || -> Result<Vec<(String, String)>> {
        let all: Value = serde_json::from_str(&kubectl.run(["get", "externalsecrets", "-o", "json"]).await?)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = all["items"].as_array().context("no list")?;
        for one in all {
            let target = &one["spec"]["target"];
            ensure!(target["creationPolicy"] == "Orphan" && target["deletionPolicy"] == "Retain", "{one}");
            ensure!(target["name"] == one["metadata"]["name"], "{one}");
        }
        Ok(all.iter().map(|one| (text(&one["metadata"]["name"]), text(&one["metadata"]["uid"]))).collect())
    };

    helm.run(deploy("install")).await?;
    let first = external().await?;
    ensure!(first.iter().map(|(name, _)| name.as_str()).eq(SECRETS), "{first:?}");
    // What the operator of External Secrets does by `creationPolicy: Orphan`: Secrets without an owner.
    for name in SECRETS {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name } });
        kubectl.apply(&secret.to_string()).await?;
    }

    helm.run(deploy("upgrade")).await?;
    let second = external().await?;
    ensure!(second.iter().map(|(name, _)| name.as_str()).eq(SECRETS), "{second:?}");
    ensure!(first.iter().zip(&second).all(|(old, new)| old.1 != new.1), "they are not made anew: {second:?}");

    helm.run(["uninstall", "hooks", "--wait"]).await?;
    for name in SECRETS {
        kubectl.run(["get", "secret", name]).await?;
    }
    assert_eq!(external().await?, second, "Helm does not keep hooks");
    Ok(())
}
