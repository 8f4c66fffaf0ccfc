//! What the chart renders, and what it refuses.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::cluster_api::ClusterApi;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::helm::{Helm, chart};
use tart_kubelet_tests::kubectl::Kubectl;
use tart_kubelet_tests::programs;
use tart_kubelet_tests::sandbox::Sandbox;

use super::values::{FROM_FILES, REFUSED, TOGGLES, all};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart/golden").join(name)
}

/// Holds a text against its golden file; `UPDATE_GOLDEN=1` writes it.
fn compare(name: &str, is: &str) -> Result<()> {
    let path = golden(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, is)?;
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    ensure!(
        is == wanted,
        "{name} is not what the chart renders; look at it, then `make test-chart UPDATE_GOLDEN=1`:\n{is}"
    );
    Ok(())
}

/// What a toggle changes.
fn difference(before: &str, after: &str) -> Result<String> {
    let directory = Sandbox::shared()?.directory("difference")?;
    let [old, new] = ["before", "after"].map(|name| directory.join(name));
    std::fs::write(&old, before)?;
    std::fs::write(&new, after)?;
    let labels = ["-U", "3", "--label", "before", "--label", "after"];
    let output =
        Command::new("diff").args(labels).arg(&old).arg(&new).output().context("cannot start diff")?;
    Ok(String::from_utf8(output.stdout)?)
}

/// A text with the names of files of the chart in place of the files, which other tests look at.
fn with_names_of_files(rendered: &str) -> Result<String> {
    let mut text = rendered.to_owned();
    let mut files = vec![chart().join("observability/rules.yaml")];
    for entry in std::fs::read_dir(chart().join("observability/dashboards"))? {
        files.push(entry?.path());
    }
    for file in files {
        let content = std::fs::read_to_string(&file)?;
        let name = file.file_name().context("a name")?.to_string_lossy().into_owned();
        for indent in ["  ", "    "] {
            let lines: Vec<_> = content.lines().map(|line| format!("{indent}{line}")).collect();
            let indented = lines.join("\n") + "\n";
            text = text.replace(&indented, &format!("{indent}<{name}>\n"));
        }
    }
    Ok(text)
}

#[tokio::test]
async fn the_chart_renders_what_its_golden_files_say() -> Result<()> {
    let helm = Helm::new(&Sandbox::shared()?).await?;
    let default = helm.template("tuist", &[]).await?;
    compare("default.yaml", &default)?;
    for (name, values) in TOGGLES.iter().chain(FROM_FILES) {
        let rendered = helm.template("tuist", values).await.with_context(|| (*name).to_owned())?;
        let rendered = with_names_of_files(&rendered)?;
        let changed = difference(&default, &rendered)?;
        ensure!(!changed.is_empty(), "{name} changes nothing");
        compare(&format!("{name}.diff"), &changed)?;
    }
    let files = std::fs::read_dir(golden(""))?.count();
    ensure!(files == TOGGLES.len() + FROM_FILES.len() + 1, "a golden file belongs to no toggle");
    Ok(())
}

#[tokio::test]
async fn helm_finds_nothing_to_mend() -> Result<()> {
    let chart = chart().display().to_string();
    let helm = Helm::new(&Sandbox::shared()?).await?;
    for (name, values) in all() {
        let mut arguments = vec!["lint", "--strict", "--quiet", &chart];
        values.iter().for_each(|value| arguments.extend(["--set-json", value]));
        let said = helm.run(arguments).await.with_context(|| (*name).to_owned())?;
        ensure!(said.trim().is_empty(), "{name}: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn wrong_values_are_refused_in_words() -> Result<()> {
    let helm = Helm::new(&Sandbox::shared()?).await?;
    for (values, words) in REFUSED {
        let Err(refused) = helm.template("tuist", values).await else {
            anyhow::bail!("{values:?} was rendered");
        };
        let said = format!("{refused:#}");
        ensure!(said.contains(words), "{values:?}: {said}");
    }
    Ok(())
}

#[test]
fn the_chart_has_the_version_of_the_workspace() -> Result<()> {
    let text = std::fs::read_to_string(chart().join("Chart.yaml"))?;
    let version = env!("CARGO_PKG_VERSION");
    for line in [format!("\nversion: {version}\n"), format!("\nappVersion: \"{version}\"\n")] {
        ensure!(text.contains(&line), "Chart.yaml does not say {line}");
    }
    Ok(())
}

/// The arguments of the provider's container.
fn arguments(rendered: &str) -> Vec<String> {
    let after = rendered.lines().skip_while(|line| line.trim() != "args:").skip(1);
    let items = after.map_while(|line| line.trim_start().strip_prefix("- "));
    items.map(|item| serde_json::from_str(item).unwrap_or_else(|_| item.to_owned())).collect()
}

#[tokio::test]
async fn the_provider_knows_every_flag_that_the_chart_gives_it() -> Result<()> {
    let helm = Helm::new(&Sandbox::shared()?).await?;
    for (name, values) in TOGGLES {
        let arguments = arguments(&helm.template("tuist", values).await?);
        ensure!(arguments.first().is_some_and(|first| first == "manager"), "{name}: {arguments:?}");
        // Flags are read before anything is done; then it lacks a kubeconfig.
        let output = Command::new(programs::provider()?)
            .args(&arguments)
            .arg("--kubeconfig=/nonexistent/kubeconfig")
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(said.contains("/nonexistent/kubeconfig"), "{name}: {arguments:?}\n{said}");
    }
    Ok(())
}

/// Kinds of others, as far as an API server has to know them: it takes any content.
const KINDS_OF_OTHERS: [(&str, &str, &str, &str); 4] = [
    ("external-secrets.io", "v1", "ExternalSecret", "externalsecrets"),
    ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
    ("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
    ("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
];

/// Tells an API server of the kinds of others.
pub(super) async fn apply_kinds_of_others(kubectl: &Kubectl) -> Result<()> {
    for (group, version, kind, plural) in KINDS_OF_OTHERS {
        let crd = serde_json::json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": "Namespaced", "names": { "kind": kind, "plural": plural },
                "versions": [{
                    "name": version, "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                }],
            },
        });
        kubectl.run_with_input(["apply", "--server-side", "-f", "-"], &crd.to_string()).await?;
        let established = ["wait", "--for=condition=Established", "--timeout=60s"];
        kubectl.run(established.into_iter().chain(["crd", &format!("{plural}.{group}")])).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_api_server_takes_everything_that_is_rendered() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    ClusterApi::shared().await?;
    let kubectl = control_plane.kubectl();
    let crds = chart().join("crds").display().to_string();
    // Another test changes them, and changes them back.
    kubectl.run(["apply", "--server-side", "--force-conflicts", "-f", &crds]).await?;
    kubectl.run(["wait", "--for=condition=Established", "--timeout=60s", "-f", &crds]).await?;
    apply_kinds_of_others(&kubectl).await?;
    let namespace = control_plane.namespace("dry-run").await?;
    let helm = Helm::new(control_plane.sandbox()).await?;
    for (name, values) in all() {
        let rendered = helm.template(&namespace, values).await?;
        let objects = rendered.lines().filter(|line| line.starts_with("kind: ")).count();
        // Strict: a field that no kind has is an error.
        let arguments = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"];
        let said = kubectl.run_with_input(arguments, &rendered).await;
        let said = said.with_context(|| (*name).to_owned())?;
        ensure!(said.lines().count() == objects, "{name}: {objects} objects, but\n{said}");
    }
    Ok(())
}

/// The values that a page shows as YAML, each block of them.
fn shown_values(page: &str) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(chart().join("../../docs").join(page))?;
    let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    Ok(blocks.filter(|block| block.starts_with("provider:")).map(str::to_owned).collect())
}

#[tokio::test]
async fn the_values_of_the_documentation_are_taken_and_the_provider_knows_their_flags() -> Result<()> {
    let sandbox = Sandbox::shared()?;
    let helm = Helm::new(&sandbox).await?;
    let mut blocks = shown_values("run-a-fleet.md")?;
    blocks.extend(shown_values("builders.md")?);
    ensure!(blocks.len() == 2, "not the tart of a fleet and the runner of a builder: {blocks:?}");
    for block in blocks {
        let file = sandbox.directory("values")?.join("values.yaml");
        std::fs::write(&file, &block)?;
        let (chart, file) = (chart().display().to_string(), file.display().to_string());
        let rendered = helm.run(["template", "macs", &chart, "-f", &file]).await?;
        let arguments = arguments(&rendered);
        ensure!(rendered.contains("initContainers:"), "the file comes from nowhere: {rendered}");
        // Each file that the provider is to read is one that an init container has written.
        let mentioned = |path: &str| block.matches(path).count() >= 2;
        let paths =
            arguments.iter().filter(|one| one.contains("=/opt/") && !one.starts_with("--tart-binary="));
        let paths: Vec<_> = paths.filter_map(|argument| argument.split_once('=')).collect();
        ensure!(!paths.is_empty() && paths.iter().all(|(_, path)| mentioned(path)), "{paths:?}: {block}");
        let output = Command::new(programs::provider()?)
            .args(&arguments)
            .arg("--kubeconfig=/nonexistent/kubeconfig")
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(said.contains("/nonexistent/kubeconfig"), "{arguments:?}\n{said}");
    }
    Ok(())
}

#[tokio::test]
async fn notes_say_what_is_missing_and_what_comes_before_an_upgrade_and_an_uninstall() -> Result<()> {
    let helm = Helm::new(&Sandbox::shared()?).await?;
    let chart = chart().display().to_string();
    let install = ["install", "macs", &chart, "--dry-run=client", "-n", "macs"];
    let notes = async |values: &[&str]| {
        let values = values.iter().flat_map(|value| ["--set", value]);
        helm.run(install.into_iter().chain(values)).await
    };
    let plain = notes(&[]).await?;
    for words in [
        "No fleet is enabled",
        "create secret generic macs-tart-provider-scaleway",
        "run-a-fleet.md#4-tart",
        "run-a-fleet.md#let-cluster-api-see-the-nodes",
        "kubectl apply --server-side --force-conflicts -f crds",
        "--set macosFleet.replicas=0,runnersFleet.hostCount=0,buildersFleet.replicas=0",
        "wait --for=delete scalewayapplesiliconmachines",
    ] {
        ensure!(plain.contains(words), "no `{words}`: {plain}");
    }
    let values = [
        "provider.tart.archivePath=/opt/tart.tar.gz",
        "provider.tart.version=2.30.0",
        "pool.macList.secretName=list",
    ];
    let complete = notes(&values).await?;
    ensure!(!complete.contains("TartMissing") && !complete.contains("create secret"), "{complete}");
    ensure!(complete.contains("the list in the Secret list"), "{complete}");
    Ok(())
}
