//! Pulls of images, for Pods and with `tart-kubelet images pull`.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::{programs, wait};

use crate::scene::{DEADLINE, PodView as _, Scene};

#[tokio::test]
async fn long_pull_reports_its_progress() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("progress").await?;
    let image = "registry.test/macos/large:1";
    scene.mac.add_image(image, &json!({"pullSeconds": 300}))?;
    scene.pod("large").image(image).create().await?;
    scene.described("large", "% are here").await?;
    scene.mac.set_fault(Fault::InstantPull, "")?;
    scene.phase("large", "Running").await?;
    scene.described("large", "image `registry.test/macos/large:1` is registry.test/macos/large@sha256:").await
}

#[tokio::test]
async fn missing_image_is_reported_and_pulled_later() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("image").await?;
    let image = "registry.test/macos/tahoe:26";
    scene.pod("image").image(image).create().await?;
    // As with the kubelet: the error, the back-off, and the next error.
    scene.waiting("image", "ErrImagePull", "check the image's name").await?;
    let words = format!("Back-off pulling image \"{image}\": ErrImagePull: cannot pull image");
    scene.waiting("image", "ImagePullBackOff", &words).await?;
    scene.described("image", "BackOff").await?;
    scene.waiting("image", "ErrImagePull", "check the image's name").await?;
    scene.mac.add_image(image, &json!({}))?;
    scene.phase("image", "Running").await.map(drop)
}

#[tokio::test]
async fn private_image_is_refused_without_a_pull_secret() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("private").await?;
    let image = "private.test/macos/secret:1";
    scene.mac.add_image(image, &json!({}))?;
    scene.mac.protect_registry("private.test", "robot", "s3cr3t:with:colons")?;

    scene.pod("without").image(image).create().await?;
    scene.described("without", "the credentials for its registry").await?;
    scene.pod("with").image(image).pull_secrets(&["pull"]).create().await?;
    scene.described("with", "cannot use pull secret `pull`").await?;

    scene.pull_secret("pull", "private.test", "robot", "s3cr3t:with:colons").await?;
    scene.phase("with", "Running").await?;
    ensure!(!scene.agent_log().contains("s3cr3t"), "a password is in the log");
    ensure!(!scene.events().await?.contains("s3cr3t"), "a password is in an Event");
    Ok(())
}

#[tokio::test]
async fn only_the_pull_has_credentials_and_no_tart_prunes() -> Result<()> {
    let scene = Scene::new("witness").await?;
    let image = "private.test/macos/secret:1";
    scene.mac.add_image(image, &json!({}))?;
    scene.mac.protect_registry("private.test", "robot", "s3cr3t")?;
    // A tart that logs its arguments with each of its variables. It writes all lines at once: other tarts log there, too.
    let (program, notes) = (scene.mac.host().join("logging-tart"), scene.mac.host().join("logging-tart.log"));
    let script = format!(
        "#!/bin/sh\n\
         said=$(env | grep ^TART_ | while read -r line; do echo \"$$ $* | $line\"; done)\n\
         [ -z \"$said\" ] || printf '%s\\n' \"$said\" >>'{}'\n\
         exec '{}' \"$@\"\n",
        notes.display(),
        scene.mac.tart_binary().display()
    );
    programs::write(&program, &script)?;
    // The agent hands its own credentials to no tart.
    let _agent = scene
        .start(
            &scene
                .agent
                .clone()
                .flag("--tart-binary", &program.display().to_string())
                .env("TART_REGISTRY_USERNAME", "operator")
                .env("TART_REGISTRY_PASSWORD", "0p3r4t0r"),
        )
        .await?;
    scene.pull_secret("pull", "private.test", "robot", "s3cr3t").await?;
    scene.pull_secret("other", "other.test", "else", "3ls3wh3r3").await?;
    let secrets = ["other", "pull"];
    scene.pod("private").image(image).command(["true"]).pull_secrets(&secrets).create().await?;
    scene.pod("public").command(["true"]).pull_secrets(&secrets).create().await?;
    scene.phase("private", "Succeeded").await?;
    scene.phase("public", "Succeeded").await?;
    scene.no_vms().await?;

    let notes = std::fs::read_to_string(&notes)?;
    for secret in ["0p3r4t0r", "operator", "3ls3wh3r3"] {
        ensure!(!notes.contains(secret), "{notes}");
    }
    let private = format!("pull {image}");
    for line in notes.lines() {
        let (call, variable) = line.split_once(" | ").context("a strange note")?;
        let (process, command) = call.split_once(' ').context("a strange note")?;
        if variable.starts_with("TART_REGISTRY_") {
            assert_eq!(command, private, "{line}");
            ensure!(!command.contains("s3cr3t"), "{line}");
        }
        let kept = format!("{process} {command} | TART_NO_AUTO_PRUNE=");
        ensure!(notes.lines().any(|line| line.starts_with(&kept)), "{call} may prune");
    }
    for variable in ["HOSTNAME=private.test", "USERNAME=robot", "PASSWORD=s3cr3t"] {
        ensure!(
            notes.contains(&format!("{private} | TART_REGISTRY_{variable}\n")),
            "no {variable} in {notes}"
        );
    }
    for command in ["clone ", "set ", "run ", "delete "] {
        ensure!(
            notes.lines().any(|line| line.split_once(' ').is_some_and(|(_, call)| call.starts_with(command)))
        );
    }
    Ok(())
}

#[tokio::test]
async fn pull_policy_never_is_reported() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("never").await?;
    scene.pod("never").pull_policy("Never").create().await?;
    let words = "`imagePullPolicy: Never` forbids to pull it";
    scene.described("never", words).await?;
    scene.waiting("never", "ErrImageNeverPull", words).await.map(drop)
}

/// The columns of the line of `images list` that begins with a name.
pub(crate) async fn listed(agent: &Agent, name: &str) -> Result<Vec<String>> {
    let table = agent.run(&["images", "list"]).await?;
    let line = table.lines().find(|line| line.starts_with(name));
    let line = line.with_context(|| format!("no {name} in\n{table}"))?;
    Ok(line.split("   ").map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect())
}

#[tokio::test]
async fn images_pull_command_pulls_through_the_agent() -> Result<()> {
    let (scene, running) = Scene::with_agent("by-hand").await?;
    let (early, missing) = ("registry.test/macos/early:1", "registry.test/macos/missing:1");
    scene.mac.add_image(early, &json!({"cpu": 6}))?;
    scene.mac.add_image("registry.test/macos/foreign:1", &json!({"cpu": 7}))?;
    scene.mac.tart(["pull", "registry.test/macos/foreign:1"]).await?;
    let said = running.agent().run(&["images", "pull", early]).await?;
    ensure!(said.contains(&format!("{early} is registry.test/macos/early@sha256:")), "{said}");
    assert_eq!(scene.bases().await?.len(), 1, "a VM can be cloned at once");
    let line = listed(running.agent(), early).await?;
    ensure!(line.last().is_some_and(|by| by == "agent") && line[1].starts_with("sha256:"), "{line:?}");
    let line = listed(running.agent(), "registry.test/macos/foreign:1").await?;
    ensure!(line.ends_with(&["-".to_owned(), "others".to_owned()]), "{line:?}");
    // The image is the agent's own, and kept only because it is new.
    let table = running.agent().run(&["gc", "--dry-run"]).await?;
    ensure!(
        table
            .lines()
            .any(|line| line.contains("macos/early@sha256") && line.contains("it was pulled a moment ago")),
        "{table}"
    );
    scene.pod("warm").image(early).pull_policy("Never").create_until("Running").await?;
    let line = listed(running.agent(), early).await?;
    ensure!(line.contains(&"VM".to_owned()), "{line:?}");

    // An image that cannot be pulled does not stop the next one.
    scene.mac.add_image("registry.test/macos/last:1", &json!({"cpu": 8}))?;
    let failed = running.agent().run(&["images", "pull", missing, "registry.test/macos/last:1"]).await;
    let failed = format!("{:#}", failed.err().context("it was pulled from nowhere")?);
    ensure!(failed.contains("exit status: 1") && failed.contains("check the image's name"), "{failed}");
    listed(running.agent(), "registry.test/macos/last:1").await?;
    let refused = running.agent().run(&["images", "pull", "sequoia"]).await;
    let refused = format!("{:#}", refused.err().context("that is no image at a registry")?);
    ensure!(refused.contains("exit status: 2") && refused.contains("has a `/` in its name"), "{refused}");
    running.process().ensure_running()
}

#[tokio::test]
async fn images_pull_command_shares_the_pull_of_a_pod() -> Result<()> {
    let (scene, running) = Scene::with_agent("together").await?;
    let image = "registry.test/macos/shared:1";
    scene.mac.add_image(image, &json!({"cpu": 6}))?;
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Pull, "stall")?;
    scene.pod("first").image(image).command(["true"]).create().await?;
    scene.described("first", "pulling image").await?;
    let words = ["images", "pull", image];
    let asked = running.agent().run(&words);
    let (said, ()) = tokio::try_join!(asked, async {
        wait::eventually("a request to the agent", DEADLINE, async || {
            ensure!(running.log()?.contains("asked to have an image ready"), "{}", running.log()?);
            Ok(())
        })
        .await?;
        scene.mac.clear_fault(Fault::Pull)
    })?;
    ensure!(said.contains("shared@sha256:"), "{said}");
    scene.phase("first", "Succeeded").await?;
    assert_eq!(scene.count_calls("pull")?, 1, "{:?}", scene.tart_calls()?);
    Ok(())
}

#[tokio::test]
async fn images_pull_command_works_without_an_agent() -> Result<()> {
    let scene = Scene::new("by-hand-alone").await?;
    let (image, other) = ("private.test/macos/early:1", "registry.test/macos/other:1");
    scene.mac.add_image(image, &json!({}))?;
    scene.mac.add_image(other, &json!({"cpu": 6}))?;
    scene.mac.protect_registry("private.test", "robot", "s3cr3t")?;
    let refused = scene.agent.run(&["images", "pull", image]).await;
    let refused = format!("{:#}", refused.err().context("it was pulled without a password")?);
    ensure!(refused.contains("the credentials for its registry"), "{refused}");

    let with = |host: &str| {
        let agent = scene.agent.clone().env("TART_REGISTRY_USERNAME", "robot");
        let agent = agent.env("TART_REGISTRY_PASSWORD", "s3cr3t");
        if host.is_empty() { agent } else { agent.env("TART_REGISTRY_HOSTNAME", host) }
    };
    let refused = with("").run(&["images", "pull", image]).await;
    let refused = format!("{:#}", refused.err().context("a password without a registry was accepted")?);
    ensure!(refused.contains("exit status: 2") && refused.contains("TART_REGISTRY_HOSTNAME"), "{refused}");
    with("other.test").run(&["images", "pull", image]).await.err().context("it is another registry's")?;
    let config = scene.mac.host().join("docker.json");
    std::fs::write(&config, r#"{"auths": {"private.test": {"username": "robot", "password": "s3cr3t"}}}"#)?;
    let file = format!("--docker-config={}", config.display());
    scene.agent.run(&["images", "pull", image, &file]).await?;
    with("private.test").run(&["images", "pull", image, other]).await?;

    // The agent that starts now lists the images as its own.
    let running = scene.start(&scene.agent).await?;
    for image in [image, other] {
        let line = listed(running.agent(), image).await?;
        ensure!(line.last().is_some_and(|by| by == "agent"), "{line:?}");
    }
    scene.pod("warm").image(image).pull_policy("Never").command(["true"]).create_until("Succeeded").await?;
    ensure!(!scene.agent_log().contains("s3cr3t"), "a password is in the log");
    Ok(())
}

#[tokio::test]
async fn image_that_a_user_pulls_meanwhile_belongs_to_the_user() -> Result<()> {
    let (scene, running) = Scene::with_agent("foreign-pull").await?;
    let image = "registry.test/macos/foreign:1";
    scene.mac.add_image(image, &json!({"cpu": 6}))?;
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Pull, "stall at=layers")?;
    let theirs = scene.mac.tart(["pull", image]);
    tokio::try_join!(theirs, async {
        wait::eventually("the user's pull", DEADLINE, async || {
            let begun = std::fs::read_dir(scene.mac.tart_home().join("tmp"))?.count();
            ensure!(begun == 1, "{begun} are under way");
            Ok(())
        })
        .await?;
        scene.pod("waits").image(image).create().await?;
        wait::eventually("a pull for the Pod", DEADLINE, async || {
            ensure!(scene.count_calls("pull")? == 2);
            Ok(())
        })
        .await?;
        scene.mac.clear_fault(Fault::Pull)
    })?;
    scene.phase("waits", "Running").await?;
    let line = listed(running.agent(), image).await?;
    ensure!(line.last().is_some_and(|by| by == "others"), "{line:?}: {}", running.log()?);
    Ok(())
}

#[tokio::test]
async fn agent_limits_parallel_pulls() -> Result<()> {
    let scene = Scene::new("turns").await?;
    let agent = scene.agent.clone().flag("--max-parallel-image-pulls", "1").flag("--max-pods", "3");
    let _running = scene.start(&agent).await?;
    let brief = |name: &str| scene.pod(name).command(["true"]);
    brief("early").create_until("Succeeded").await?;
    // Two registries, so that tart itself would pull both at once; only the first stalls.
    let images = ["one.test/macos/a:1", "two.test/macos/b:1"];
    for image in images {
        scene.mac.add_image(image, &json!({}))?;
    }
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Pull, "stall only=one.test")?;
    for (name, image) in ["first", "second"].into_iter().zip(images) {
        scene.pod(name).image(image).command(["true"]).create().await?;
        scene.described(name, "pulling image").await?;
    }
    scene.called("pull").await?;
    // Without a limit, the second pull would be over before the VM of a third Pod has ended.
    brief("third").create_until("Succeeded").await?;
    assert_eq!(scene.count_calls("pull")?, 1, "the second waits for its turn");
    scene.mac.clear_fault(Fault::Pull)?;
    for name in ["first", "second"] {
        scene.phase(name, "Succeeded").await?;
    }
    assert_eq!(scene.count_calls("pull")?, 2);
    Ok(())
}

#[tokio::test]
async fn moved_tag_is_pulled_with_policy_always_only() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("moved").await?;
    let image = "registry.test/macos/moving:1";
    let id = async |name: &str, policy: &str| -> Result<String> {
        let pod = scene.pod(name).image(image).pull_policy(policy).command(["true"]);
        Ok(pod.create_until("Succeeded").await?.main().status()?.image_id.clone())
    };
    scene.mac.add_image(image, &json!({"cpu": 5}))?;
    let first = id("first", "IfNotPresent").await?;
    scene.mac.add_image(image, &json!({"cpu": 6}))?;
    assert_eq!(id("stays", "IfNotPresent").await?, first);
    let moved = id("asks", "Always").await?;
    ensure!(moved != first, "{moved}");
    // From now on this image is present.
    assert_eq!(id("follows", "IfNotPresent").await?, moved);
    assert_eq!(id("never", "Never").await?, moved);
    Ok(())
}

#[tokio::test]
async fn endless_pull_delays_neither_errors_nor_deadlines_nor_other_registries() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("endless").await?;
    let endless = "registry.test/macos/endless:1";
    scene.mac.add_image(endless, &json!({"pullSeconds": 3600}))?;
    let lacking = scene.pod("lacking").image(endless).command(["true"]);
    lacking.env_config_map("A", "absent", "a").create().await?;
    scene.waiting("lacking", "CreateContainerConfigError", "").await?;
    let late = scene.pod("late").image(endless).active_deadline(2).create_until("Failed").await?;
    assert_eq!(late.reason(), Some("DeadlineExceeded"));
    // The pull does not delay a Pod with an image of another registry: tart pulls one image of a registry at a time.
    let other = "other.test/macos/sequoia:15";
    scene.mac.add_image(other, &json!({}))?;
    scene.pod("other").image(other).command(["true"]).create_until("Succeeded").await?;
    assert_eq!(scene.pods.get("lacking").await?.phase(), "Pending");
    Ok(())
}
