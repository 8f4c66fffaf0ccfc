//! The commands of the documentation that install a fleet and take it away again, run as they are there.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tart_kubelet_tests::cluster_api::ClusterApi;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::helm::{Helm, chart};
use tart_kubelet_tests::pages::{Marker, shell_blocks, workspace};

const DEADLINE: Duration = Duration::from_mins(5);

/// The blocks of both pages that name this test, in the order in which a reader comes to them.
fn commands() -> Result<Vec<String>> {
    let me = Marker::RunBy("the_documented_commands_install_change_upgrade_and_uninstall".to_owned());
    let read = |page: &str| -> Result<Vec<String>> {
        let blocks = shell_blocks(&workspace().join("docs").join(page))?;
        Ok(blocks
            .into_iter()
            .filter(|block| block.marker.as_ref() == Some(&me))
            .map(|one| one.text)
            .collect())
    };
    let mut all = read("run-a-fleet.md")?;
    let uninstall = all.iter().position(|text| text.contains("helm uninstall")).context("no uninstall")?;
    let end = all.remove(uninstall);
    all.extend(read("builders.md")?);
    all.push(end);
    Ok(all)
}

#[tokio::test]
async fn the_documented_commands_install_change_upgrade_and_uninstall() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    ClusterApi::shared().await?;
    let sandbox = control_plane.sandbox();
    let helm = Helm::new(sandbox).await?.on(control_plane, "macs");
    let directory = sandbox.directory("documented")?;
    std::os::unix::fs::symlink(workspace().canonicalize()?.join("packaging"), directory.join("packaging"))?;
    let page = std::fs::read_to_string(chart().join("../../docs/run-a-fleet.md"))?;
    let values =
        page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).context("no values")?;
    std::fs::write(directory.join("tart.yaml"), values)?;
    std::fs::write(directory.join("app.pem"), "a key")?;

    let commands = commands()?;
    for verb in
        ["create namespace", "helm install", "--force-conflicts", "buildersFleet.enabled", "helm uninstall"]
    {
        ensure!(commands.iter().any(|text| text.contains(verb)), "no block with {verb}: {commands:?}");
    }
    let kubectl = control_plane.kubectl().command();
    let programs = [kubectl.get_program(), helm.program().as_os_str()].map(|program| {
        Path::new(program).parent().map(|path| path.display().to_string()).unwrap_or_default()
    });
    for text in commands {
        let mut command = sandbox.command("sh");
        command.args(["-ec", &text]).current_dir(&directory);
        command.env("KUBECONFIG", control_plane.admin_kubeconfig());
        command.env("PATH", format!("{}:{}", programs.join(":"), std::env::var("PATH")?));
        tart_kubelet_tests::process::run(command, "", DEADLINE).await.with_context(|| text.clone())?;
    }
    let left = helm.run(["list", "--short"]).await?;
    ensure!(left.trim().is_empty(), "{left}");
    Ok(())
}
