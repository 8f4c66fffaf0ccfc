//! Images are what their digests say, whatever a registry serves.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;

use crate::scene::{IMAGE, PodView as _, Scene, base_of};

#[tokio::test]
async fn image_with_other_content_than_its_manifest_names_makes_no_vm() -> Result<()> {
    let scene = Scene::new("altered").await?;
    let agent = scene.start(&scene.agent).await?;
    scene.mac.set_fault(Fault::AlteredDisk, "")?;
    scene.pod("victim").command(["true"]).create().await?;
    scene.waiting("victim", "ErrImagePull", "is not what its digest says").await?;
    let (bases, vms) = (scene.bases().await?, scene.vms().await?);
    ensure!(bases.is_empty() && vms.is_empty(), "{bases:?} {vms:?}");
    // The agent has deleted what it has pulled, so that the next pull brings the image itself.
    let cached = scene.mac.tart(["list", "--source", "oci", "--quiet"]).await?;
    ensure!(cached.trim().is_empty(), "{cached}");
    scene.mac.clear_fault(Fault::AlteredDisk)?;
    scene.phase("victim", "Succeeded").await?;
    ensure!(agent.log()?.contains("the image is what its digest says"), "{}", agent.log()?);

    // Another program has pulled such an image: it stays, and no Pod gets it.
    scene.mac.set_fault(Fault::AlteredDisk, "")?;
    let theirs = "registry.test/macos/theirs:1";
    scene.mac.add_image(theirs, &json!({"cpu": 6}))?;
    scene.mac.tart(["pull", theirs]).await?;
    scene.pod("theirs").image(theirs).pull_policy("Never").command(["true"]).create().await?;
    scene
        .waiting("theirs", "ErrImagePull", "delete it with `tart delete registry.test/macos/theirs@sha256:")
        .await?;
    let cached = scene.mac.tart(["list", "--source", "oci", "--quiet"]).await?;
    ensure!(cached.contains("registry.test/macos/theirs@"), "{cached}");
    Ok(())
}

#[tokio::test]
async fn same_digest_of_two_repositories_makes_two_base_vms() -> Result<()> {
    let scene = Scene::new("two-bases").await?;
    let _agent = scene.start(&scene.agent).await?;
    let others = ["registry.test/macos/same:1", "other.test/macos/same:1"];
    let mut images = Vec::new();
    for (name, image) in ["one", "two"].iter().zip(others) {
        scene.mac.add_image(image, &json!({"cpu": 5}))?;
        let pod = scene.pod(name).image(image).command(["true"]).create_until("Succeeded").await?;
        images.push(pod.main().image_id().context("no image")?.to_owned());
    }
    let digest = |image: &String| image.split_once('@').map(|(_, digest)| digest.to_owned());
    ensure!(digest(&images[0]) == digest(&images[1]) && digest(&images[0]).is_some(), "{images:?}");
    let (mut bases, mut expected) = (scene.bases().await?, [base_of(&images[0]), base_of(&images[1])]);
    bases.sort();
    expected.sort();
    assert_eq!(bases, expected);
    Ok(())
}

#[tokio::test]
async fn pinned_image_is_refused_when_the_registry_answers_with_another_one() -> Result<()> {
    let scene = Scene::new("wrong-pin").await?;
    let _agent = scene.start(&scene.agent).await?;
    let first = scene.pod("first").command(["true"]).create_until("Succeeded").await?;
    let pin = first.main().image_id().context("no image")?.to_owned();
    let repository = IMAGE.rsplit_once(':').context("no tag")?.0;
    scene.mac.add_image(&format!("{repository}:other"), &json!({"cpu": 6}))?;

    scene.mac.set_fault(Fault::WrongManifest, "")?;
    scene.pod("pinned").image(&pin).pull_policy("Always").command(["true"]).create().await?;
    scene.waiting("pinned", "ErrImagePull", "that is another image").await?;
    scene.mac.clear_fault(Fault::WrongManifest)?;
    let pinned = scene.phase("pinned", "Succeeded").await?;
    assert_eq!(pinned.main().image_id(), Some(pin.as_str()));
    Ok(())
}
