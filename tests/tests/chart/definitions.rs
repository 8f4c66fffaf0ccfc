//! The definitions of kinds, which Helm installs once and an upgrade applies by hand.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tart_kubelet_tests::cluster_api::ClusterApi;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::helm::{Helm, chart};

/// Only the words of this one are changed, so that other tests do not notice.
const KIND: &str = "tuistclusters.infrastructure.cluster.x-k8s.io";

/// The command of the documentation, for the definitions of a directory.
fn documented_command(directory: &Path) -> Result<Vec<String>> {
    let page = std::fs::read_to_string(chart().join("../../docs/run-a-fleet.md"))?;
    let line =
        page.lines().find(|line| line.starts_with("kubectl apply ") && line.contains("packaging/chart/crds"));
    let line = line.context("docs/run-a-fleet.md applies no definitions")?;
    let line = line
        .split('#')
        .next()
        .unwrap_or_default()
        .replace("packaging/chart/crds", &directory.display().to_string());
    Ok(line.split_whitespace().skip(1).map(str::to_owned).collect())
}

#[tokio::test]
async fn definitions_of_a_new_release_take_the_place_of_those_that_helm_has_installed() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    ClusterApi::shared().await?;
    let namespace = control_plane.namespace("definitions").await?;
    let helm = Helm::new(control_plane.sandbox()).await?.on(control_plane, &namespace);
    helm.run(["install", "definitions", &chart().display().to_string()]).await?;
    let kubectl = control_plane.kubectl();
    let read = async || -> Result<(String, Vec<String>)> {
        let is: Value = serde_json::from_str(
            &kubectl.run(["get", "crd", KIND, "-o", "json", "--show-managed-fields"]).await?,
        )?;
        let schema = &is["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let managers = is["metadata"]["managedFields"].as_array().context("no managers")?;
        let managers = managers.iter().filter_map(|one| one["manager"].as_str().map(str::to_owned)).collect();
        Ok((schema["description"].as_str().unwrap_or_default().to_owned(), managers))
    };
    let (before, managers) = read().await?;
    ensure!(managers.iter().any(|manager| manager == "helm"), "not installed by Helm: {managers:?}");

    // The next release describes the kind in other words.
    let next = control_plane.sandbox().directory("definitions")?;
    for entry in std::fs::read_dir(chart().join("crds"))? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?.replace(&before, "The words of the next release");
        std::fs::write(next.join(path.file_name().context("a name")?), text)?;
    }
    let without_force = ["apply", "--server-side", "-f", &next.display().to_string()].map(str::to_owned);
    let refused = kubectl.run(&without_force).await;
    ensure!(refused.as_ref().is_err_and(|error| format!("{error:#}").contains("conflict")), "{refused:?}");
    kubectl.run(documented_command(&next)?).await?;
    ensure!(read().await?.0 == "The words of the next release", "{:?}", read().await?);
    kubectl.run(documented_command(&chart().join("crds"))?).await?;
    assert_eq!(read().await?.0, before);
    Ok(())
}
