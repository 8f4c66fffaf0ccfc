//! Images: where they come from, and what is told when they do not come.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::agent::Agent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::{programs, wait};

use crate::scene::{DEADLINE, Scene};

/// Waits until a Pod's container shows what it waits for.
pub(crate) async fn waits_for(scene: &Scene, pod: &str, reason: &str, words: &str) -> Result<()> {
    let what = format!("waiting: {reason}, {words}");
    let waiting = wait::until(&scene.pods, pod, &what, DEADLINE, |pod| {
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        let mut waiting = statuses.filter_map(|status| status.state.as_ref()?.waiting.as_ref());
        waiting.any(|waiting| {
            waiting.reason.as_deref() == Some(reason)
                && waiting.message.as_ref().is_some_and(|message| message.contains(words))
        })
    });
    waiting.await.map(drop)
}

#[tokio::test]
async fn a_long_pull_tells_how_far_it_has_come() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("progress").await?;
    let image = "registry.test/macos/large:1";
    scene.mac.add_image(image, &json!({"pullSeconds": 300}))?;
    scene.create(&scene.pod("large", &json!({"image": image}), &json!({}))).await?;
    scene.told("pod", "large", "% are here").await?;
    scene.mac.set_fault(Fault::InstantPull, "")?;
    scene.phase("large", "Running").await?;
    scene
        .told("pod", "large", "image `registry.test/macos/large:1` is registry.test/macos/large@sha256:")
        .await
}

#[tokio::test]
async fn a_missing_image_is_told_and_heals() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("image").await?;
    let image = "registry.test/macos/tahoe:26";
    scene.create(&scene.pod("image", &json!({"image": image}), &json!({}))).await?;
    // As elsewhere: the error, the back-off, and the next error.
    waits_for(&scene, "image", "ErrImagePull", "check the image's name").await?;
    let words = format!("Back-off pulling image \"{image}\": ErrImagePull: cannot pull image");
    waits_for(&scene, "image", "ImagePullBackOff", &words).await?;
    scene.told("pod", "image", "BackOff").await?;
    waits_for(&scene, "image", "ErrImagePull", "check the image's name").await?;
    scene.mac.add_image(image, &json!({}))?;
    scene.phase("image", "Running").await.map(drop)
}

#[tokio::test]
async fn a_private_image_needs_a_pull_secret() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("private").await?;
    let image = "private.test/macos/secret:1";
    scene.mac.add_image(image, &json!({}))?;
    scene.mac.protect_registry("private.test", "robot", "s3cr3t:with:colons")?;

    scene.create(&scene.pod("without", &json!({"image": image}), &json!({}))).await?;
    scene.told("pod", "without", "the credentials for its registry").await?;
    let missing = json!({"imagePullSecrets": [{"name": "pull"}]});
    scene.create(&scene.pod("with", &json!({"image": image}), &missing)).await?;
    scene.told("pod", "with", "cannot use pull secret `pull`").await?;

    let login =
        ["--docker-server=private.test", "--docker-username=robot", "--docker-password=s3cr3t:with:colons"];
    let create = ["create", "secret", "docker-registry", "pull"];
    scene.kubectl.run(create.into_iter().chain(login)).await?;
    scene.phase("with", "Running").await?;
    ensure!(!scene.agent_log().contains("s3cr3t"), "a password is in the log");
    let events = scene.kubectl.run(["get", "events", "--output", "json"]).await?;
    ensure!(!events.contains("s3cr3t"), "a password is in an Event");
    Ok(())
}

#[tokio::test]
async fn only_the_pull_sees_credentials_and_nothing_is_pruned() -> Result<()> {
    let scene = Scene::new("witness").await?;
    let image = "private.test/macos/secret:1";
    scene.mac.add_image(image, &json!({}))?;
    scene.mac.protect_registry("private.test", "robot", "s3cr3t")?;
    // A tart that writes down with what it is called, one line per variable, and all of them at once: others write there, too.
    let (program, notes) = (scene.mac.host().join("witness"), scene.mac.host().join("witness.log"));
    let script = format!(
        "#!/bin/sh\n\
         said=$(env | grep ^TART_ | while read -r line; do echo \"$$ $* | $line\"; done)\n\
         [ -z \"$said\" ] || printf '%s\\n' \"$said\" >>'{}'\n\
         exec '{}' \"$@\"\n",
        notes.display(),
        scene.mac.tart_binary().display()
    );
    programs::write(&program, &script)?;
    // What the agent itself was started with is nobody's business.
    let agent = scene
        .agent
        .clone()
        .flag("--tart-binary", &program.display().to_string())
        .env("TART_REGISTRY_USERNAME", "operator")
        .env("TART_REGISTRY_PASSWORD", "0p3r4t0r")
        .start()?;
    scene.node_ready(&agent).await?;
    let create = ["create", "secret", "docker-registry", "pull", "--docker-server=private.test"];
    let login = ["--docker-username=robot", "--docker-password=s3cr3t"];
    scene.kubectl.run(create.into_iter().chain(login)).await?;
    let create = ["create", "secret", "docker-registry", "other", "--docker-server=other.test"];
    let login = ["--docker-username=else", "--docker-password=3ls3wh3r3"];
    scene.kubectl.run(create.into_iter().chain(login)).await?;
    let secrets = json!({"imagePullSecrets": [{"name": "other"}, {"name": "pull"}]});
    let container = json!({"image": image, "command": ["true"]});
    scene.create(&scene.pod("private", &container, &secrets)).await?;
    scene.create(&scene.pod("public", &json!({"command": ["true"]}), &secrets)).await?;
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
async fn an_image_that_may_not_be_pulled_is_told() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("never").await?;
    scene.create(&scene.pod("never", &json!({"imagePullPolicy": "Never"}), &json!({}))).await?;
    let words = "`imagePullPolicy: Never` forbids to pull it";
    scene.told("pod", "never", words).await?;
    waits_for(&scene, "never", "ErrImageNeverPull", words).await
}

/// The line of `images list` that begins with a name, word by word.
pub(crate) async fn listed(agent: &Agent, name: &str) -> Result<Vec<String>> {
    let table = agent.run(&["images", "list"]).await?;
    let line = table.lines().find(|line| line.starts_with(name));
    let line = line.with_context(|| format!("no {name} in\n{table}"))?;
    Ok(line.split("   ").map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect())
}

#[tokio::test]
async fn images_are_pulled_by_hand_through_the_agent() -> Result<()> {
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
    // It is one of the agent's own, with no more to speak for it than that it is new.
    let table = running.agent().run(&["gc", "--dry-run"]).await?;
    ensure!(
        table
            .lines()
            .any(|line| line.contains("macos/early@sha256") && line.contains("it was pulled a moment ago")),
        "{table}"
    );
    let never = json!({"image": early, "imagePullPolicy": "Never"});
    scene.create(&scene.pod("warm", &never, &json!({}))).await?;
    scene.phase("warm", "Running").await?;
    let line = listed(running.agent(), early).await?;
    ensure!(line.contains(&"VM".to_owned()), "{line:?}");

    // What cannot be had does not keep others from coming.
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
async fn who_asks_by_hand_waits_for_the_pull_of_a_pod() -> Result<()> {
    let (scene, running) = Scene::with_agent("together").await?;
    let image = "registry.test/macos/shared:1";
    scene.mac.add_image(image, &json!({"cpu": 6}))?;
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Pull, "stall")?;
    scene.create(&scene.pod("first", &json!({"image": image, "command": ["true"]}), &json!({}))).await?;
    scene.told("pod", "first", "pulling image").await?;
    let words = ["images", "pull", image];
    let asked = running.agent().run(&words);
    let (said, ()) = tokio::try_join!(asked, async {
        wait::eventually("somebody who asks", DEADLINE, async || {
            ensure!(running.log()?.contains("asked to have an image ready"), "{}", running.log()?);
            Ok(())
        })
        .await?;
        scene.mac.clear_fault(Fault::Pull)
    })?;
    ensure!(said.contains("shared@sha256:"), "{said}");
    scene.phase("first", "Succeeded").await?;
    let calls = std::fs::read_to_string(scene.mac.host().join("calls"))?;
    assert_eq!(calls.lines().filter(|call| *call == "pull").count(), 1, "{calls}");
    Ok(())
}

#[tokio::test]
async fn images_are_pulled_by_hand_before_there_is_an_agent() -> Result<()> {
    let scene = Scene::new("by-hand-alone").await?;
    let (image, other) = ("private.test/macos/early:1", "registry.test/macos/other:1");
    scene.mac.add_image(image, &json!({}))?;
    scene.mac.add_image(other, &json!({"cpu": 6}))?;
    scene.mac.protect_registry("private.test", "robot", "s3cr3t")?;
    let refused = scene.agent.run(&["images", "pull", image]).await;
    let refused = format!("{:#}", refused.err().context("it was had without a password")?);
    ensure!(refused.contains("the credentials for its registry"), "{refused}");

    let with = |host: &str| {
        let agent = scene.agent.clone().env("TART_REGISTRY_USERNAME", "robot");
        let agent = agent.env("TART_REGISTRY_PASSWORD", "s3cr3t");
        if host.is_empty() { agent } else { agent.env("TART_REGISTRY_HOSTNAME", host) }
    };
    let refused = with("").run(&["images", "pull", image]).await;
    let refused = format!("{:#}", refused.err().context("a password for nobody in particular")?);
    ensure!(refused.contains("exit status: 2") && refused.contains("TART_REGISTRY_HOSTNAME"), "{refused}");
    with("other.test").run(&["images", "pull", image]).await.err().context("it is another registry's")?;
    let config = scene.mac.host().join("docker.json");
    std::fs::write(&config, r#"{"auths": {"private.test": {"username": "robot", "password": "s3cr3t"}}}"#)?;
    let file = format!("--docker-config={}", config.display());
    scene.agent.run(&["images", "pull", image, &file]).await?;
    with("private.test").run(&["images", "pull", image, other]).await?;

    // The agent that comes knows it for its own.
    let running = scene.agent.start()?;
    scene.node_ready(&running).await?;
    for image in [image, other] {
        let line = listed(running.agent(), image).await?;
        ensure!(line.last().is_some_and(|by| by == "agent"), "{line:?}");
    }
    let never = json!({"image": image, "imagePullPolicy": "Never", "command": ["true"]});
    scene.create(&scene.pod("warm", &never, &json!({}))).await?;
    scene.phase("warm", "Succeeded").await?;
    ensure!(!scene.agent_log().contains("s3cr3t"), "a password is in the log");
    Ok(())
}

/// How many pulls anybody has begun since the calls are written down.
fn pulls(scene: &Scene) -> Result<usize> {
    let calls = std::fs::read_to_string(scene.mac.host().join("calls"))?;
    Ok(calls.lines().filter(|call| *call == "pull").count())
}

#[tokio::test]
async fn what_somebody_else_pulls_while_a_pod_waits_for_it_is_theirs() -> Result<()> {
    let (scene, running) = Scene::with_agent("foreign-pull").await?;
    let image = "registry.test/macos/foreign:1";
    scene.mac.add_image(image, &json!({"cpu": 6}))?;
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Pull, "stall at=layers")?;
    let theirs = scene.mac.tart(["pull", image]);
    tokio::try_join!(theirs, async {
        wait::eventually("somebody's pull", DEADLINE, async || {
            let begun = std::fs::read_dir(scene.mac.tart_home().join("tmp"))?.count();
            ensure!(begun == 1, "{begun} are under way");
            Ok(())
        })
        .await?;
        scene.create(&scene.pod("waits", &json!({"image": image}), &json!({}))).await?;
        wait::eventually("a pull for the Pod", DEADLINE, async || {
            ensure!(pulls(&scene)? == 2);
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
async fn no_more_pulls_go_on_at_once_than_may() -> Result<()> {
    let scene = Scene::new("turns").await?;
    let agent = scene.agent.clone().flag("--max-parallel-image-pulls", "1").flag("--max-pods", "3");
    let running = agent.start()?;
    scene.node_ready(&running).await?;
    let brief = |name: &str| scene.pod(name, &json!({"command": ["true"]}), &json!({}));
    scene.create(&brief("early")).await?;
    scene.phase("early", "Succeeded").await?;
    // Two registries, so that tart itself would pull both at once; only the first stalls.
    let images = ["one.test/macos/a:1", "two.test/macos/b:1"];
    for image in images {
        scene.mac.add_image(image, &json!({}))?;
    }
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Pull, "stall only=one.test")?;
    for (name, image) in ["first", "second"].into_iter().zip(images) {
        scene.create(&scene.pod(name, &json!({"image": image, "command": ["true"]}), &json!({}))).await?;
        scene.told("pod", name, "pulling image").await?;
    }
    wait::eventually("a pull", DEADLINE, async || {
        ensure!(pulls(&scene)? > 0);
        Ok(())
    })
    .await?;
    // Had the second not to wait for its turn, it would be over by the time that a VM which comes after it is.
    scene.create(&brief("third")).await?;
    scene.phase("third", "Succeeded").await?;
    assert_eq!(pulls(&scene)?, 1, "the second waits for its turn");
    scene.mac.clear_fault(Fault::Pull)?;
    for name in ["first", "second"] {
        scene.phase(name, "Succeeded").await?;
    }
    assert_eq!(pulls(&scene)?, 2);
    Ok(())
}

#[tokio::test]
async fn a_tag_that_has_moved_counts_only_for_those_who_ask_again() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("moved").await?;
    let image = "registry.test/macos/moving:1";
    let id = async |name: &str, policy: &str| -> Result<String> {
        let container = json!({"image": image, "imagePullPolicy": policy, "command": ["true"]});
        scene.create(&scene.pod(name, &container, &json!({}))).await?;
        let pod = scene.phase(name, "Succeeded").await?;
        let statuses = pod.status.and_then(|status| status.container_statuses).context("no status")?;
        Ok(statuses[0].image_id.clone())
    };
    scene.mac.add_image(image, &json!({"cpu": 5}))?;
    let first = id("first", "IfNotPresent").await?;
    scene.mac.add_image(image, &json!({"cpu": 6}))?;
    assert_eq!(id("stays", "IfNotPresent").await?, first);
    let moved = id("asks", "Always").await?;
    ensure!(moved != first, "{moved}");
    // From now on this is what is present.
    assert_eq!(id("follows", "IfNotPresent").await?, moved);
    assert_eq!(id("never", "Never").await?, moved);
    Ok(())
}
