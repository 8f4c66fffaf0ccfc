//! Init containers with an image of their own: each such image has a VM of its own, before the main container's.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::{Fault, Mac};

use crate::crash::CrashingAgent;
use crate::scene::{ContainerView, IMAGE, PodBuilder, PodView as _, Scene, until_exists};

/// The image of init containers.
const TOOLS: &str = "registry.test/macos/tools:1";

/// Adds an image whose guest has a program that prints `word`.
fn add_image(mac: &Mac, image: &str, word: &str) -> Result<()> {
    let directory = mac.add_image(image, &json!({}))?.join("rootfs/usr/local/bin");
    std::fs::create_dir_all(&directory)?;
    let program = directory.join("image-name");
    std::fs::write(&program, format!("#!/bin/sh\necho {word}\n"))?;
    Ok(std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755))?)
}

/// A scene whose Mac can pull both images.
async fn scene(name: &str) -> Result<(Scene, RunningAgent)> {
    let (scene, agent) = Scene::with_agent(name).await?;
    add_image(&scene.mac, TOOLS, "tools")?;
    add_image(&scene.mac, IMAGE, "main")?;
    Ok((scene, agent))
}

/// A line that adds to the trace: a word, the image of the VM, and how many containers have run on its disk before.
fn note(word: &str) -> String {
    let disk = "ran=$(cat /private/tmp/ran 2>/dev/null | wc -l); echo x >>/private/tmp/ran";
    format!("{disk}; echo {word} $(/usr/local/bin/image-name) $((ran)) >>/private/tmp/scratch/trace")
}

/// A script in a VM of `image`, with the scratch volume.
fn shell(image: &str, script: &str) -> Value {
    let mounts = json!([{"name": "scratch", "mountPath": "/private/tmp/scratch"}]);
    json!({"image": image, "command": ["/bin/sh", "-c", script], "volumeMounts": mounts})
}

/// A Pod whose main container prints the trace of all containers.
fn pod<'a>(scene: &'a Scene, name: &str, init: &[(&str, Value)]) -> PodBuilder<'a> {
    let pod = scene.pod(name).sh(format!("{}; cat /private/tmp/scratch/trace", note("main")));
    let pod = pod.empty_dir("scratch", "/private/tmp/scratch").grace(1);
    init.iter().fold(pod, |pod, (name, container)| pod.init_container(name, container.clone()))
}

fn waits_for(file: &str) -> String {
    format!("until [ -e /private/tmp/scratch/{file} ]; do sleep 0.05; done")
}

/// Creates a file in the scratch volume.
fn touch(scene: &Scene, pod: &Pod, file: &str) -> Result<()> {
    Ok(std::fs::write(scene.volumes_dir(pod.uid_of()?).join("scratch").join(file), "")?)
}

fn vm_of(container: ContainerView<'_>) -> Result<String> {
    let id = container.status()?.container_id.as_deref().context("no VM")?;
    Ok(id.trim_start_matches("tart://").to_owned())
}

async fn shown(scene: &Scene, pod: &str) -> Result<String> {
    scene.kubectl.run(["get", "pod", pod, "--no-headers"]).await
}

#[tokio::test]
async fn init_containers_run_in_vms_of_their_images_in_order() -> Result<()> {
    let (scene, _agent) = scene("init-vms").await?;
    let says = |word: &str| format!("{}; echo {word} said", note(word));
    let init = [
        ("one", shell(TOOLS, &says("one"))),
        ("two", shell(IMAGE, &says("two"))),
        ("three", shell(TOOLS, &says("three"))),
        ("four", shell(TOOLS, &says("four"))),
        ("five", shell(IMAGE, &says("five"))),
    ];
    let pod = pod(&scene, "turns", &init).create_until("Succeeded").await?;
    // Neighbours with one image share a VM and its disk, and all share the volume.
    let trace = ["one tools 0", "two main 0", "three tools 0", "four tools 1", "five main 0", "main main 1"];
    assert_eq!(scene.log(&pod, "main", 0)?, trace);
    assert_eq!(scene.boots()?, 4);
    for name in ["one", "two", "three", "four", "five"] {
        assert_eq!(scene.log(&pod, name, 0)?, [format!("{name} said")]);
    }
    let all = pod.init_containers();
    let images: Vec<_> = all.iter().map(|one| one.image()).collect();
    assert_eq!(images, [Some(TOOLS), Some(IMAGE), Some(TOOLS), Some(TOOLS), Some(IMAGE)]);
    let uid = pod.uid_of()?;
    let vms = all.iter().map(|one| vm_of(*one)).collect::<Result<Vec<_>>>()?;
    assert_eq!(vms, [0, 1, 2, 2, 3].map(|number| format!("tk-{uid}-{number}")));
    assert_eq!(pod.vm()?, format!("tk-{uid}-3"));
    for one in &all {
        let prefix = if one.image() == Some(TOOLS) {
            "registry.test/macos/tools@"
        } else {
            "registry.test/macos/sequoia@"
        };
        ensure!(one.image_id().is_some_and(|id| id.starts_with(prefix)), "{one:?}");
        assert_eq!((one.exit_code(), one.is_ready(), one.restart_count()), (Some(0), true, Some(0)));
    }
    assert_eq!(pod.main().restart_count(), Some(0));
    scene.no_vms().await?;
    scene.delete("turns").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn pod_shows_each_stage_of_its_initialization() -> Result<()> {
    let (scene, agent) = scene("init-stages").await?;
    scene.approve_serving_certificate(&agent).await?;
    let init = [
        ("one", shell(TOOLS, &format!("echo first; {}", waits_for("one")))),
        ("two", shell(IMAGE, &format!("echo second; {}", waits_for("two")))),
    ];
    pod(&scene, "stages", &init).create().await?;
    let first = scene.until("stages", "its first to run", |pod| pod.init().is_running()).await?;
    assert_eq!((first.phase(), first.main().waiting_reason()), ("Pending", Some("PodInitializing")));
    ensure!(shown(&scene, "stages").await?.contains("Init:0/2"), "{}", shown(&scene, "stages").await?);
    assert_eq!(scene.kubectl.run(["logs", "stages", "-c", "one"]).await?.trim(), "first");
    let image = scene.kubectl.run(["exec", "stages", "-c", "one", "--", "/usr/local/bin/image-name"]).await?;
    assert_eq!(image.trim(), "tools");
    for path in ["spec.initContainers{one}", "spec.initContainers{two}", "spec.containers{main}"] {
        ensure!(
            path == "spec.initContainers{one}" || !scene.events().await?.contains(path),
            "{path} is too early"
        );
    }
    touch(&scene, &first, "one")?;
    let second = |pod: &Pod| matches!(pod.init_containers().as_slice(), [_, two] if two.is_running());
    let second = scene.until("stages", "its second to run", second).await?;
    ensure!(shown(&scene, "stages").await?.contains("Init:1/2"), "{}", shown(&scene, "stages").await?);
    assert_eq!(second.init().exit_code(), Some(0));
    assert_eq!(scene.running_vms().await?.len(), 1);
    // A container of a VM that is gone is shown, and has its log, but no command runs in it.
    assert_eq!(scene.kubectl.run(["logs", "stages", "-c", "one"]).await?.trim(), "first");
    ensure!(scene.kubectl.run(["exec", "stages", "-c", "one", "--", "true"]).await.is_err(), "it is over");
    touch(&scene, &second, "two")?;
    let pod = scene.phase("stages", "Succeeded").await?;
    assert_eq!(scene.kubectl.run(["logs", "stages", "-c", "two"]).await?.trim(), "second");
    assert_eq!(pod.condition("Initialized").status, "True");
    let events = scene.events().await?;
    for path in ["spec.initContainers{one}", "spec.initContainers{two}", "spec.containers{main}"] {
        ensure!(events.contains(path), "no Event about {path}");
    }
    scene.event("stages", "Started", "Started container one").await?;
    scene.event("stages", "Started", "Started container two").await
}

#[tokio::test]
async fn failed_init_container_in_its_own_vm_fails_a_pod_that_never_restarts() -> Result<()> {
    let (scene, _agent) = scene("init-vm-fails").await?;
    let init = [("one", shell(TOOLS, "exit 3")), ("two", shell(TOOLS, "true"))];
    let pod = pod(&scene, "fails", &init).create_until("Failed").await?;
    assert_eq!(pod.init().exit_code(), Some(3));
    assert_eq!(pod.main().waiting_reason(), Some("PodInitializing"));
    ensure!(shown(&scene, "fails").await?.contains("Init:Error"), "{}", shown(&scene, "fails").await?);
    assert_eq!(scene.boots()?, 1);
    scene.no_vms().await
}

#[tokio::test]
async fn failed_init_container_in_its_own_vm_restarts_with_a_back_off() -> Result<()> {
    let (scene, _agent) = scene("init-vm-again").await?;
    for policy in ["OnFailure", "Always"] {
        let name = policy.to_lowercase();
        // It fails until the test lets it succeed.
        let init = [("one", shell(TOOLS, "echo try; [ -e /private/tmp/scratch/go ]"))];
        pod(&scene, &name, &init).restart_policy(policy).create().await?;
        let backs_off = |pod: &Pod| pod.init().waiting_reason() == Some("CrashLoopBackOff");
        let waits = scene.until(&name, "a back-off", backs_off).await?;
        assert_eq!((waits.phase(), waits.init().last_exit_code()), ("Pending", Some(1)));
        assert_eq!(
            (waits.main().waiting_reason(), waits.main().restart_count()),
            (Some("PodInitializing"), Some(0))
        );
        ensure!(
            shown(&scene, &name).await?.contains("Init:CrashLoopBackOff"),
            "{}",
            shown(&scene, &name).await?
        );
        let words = format!("Back-off restarting failed container one in pod {name}");
        scene.event(&name, "BackOff", &words).await?;
        touch(&scene, &waits, "go")?;
        let ended = scene.until(&name, "its init container to succeed", |pod| pod.init().is_ready()).await?;
        ensure!(ended.init().restart_count() >= Some(2), "{:?}", ended.init());
        scene.delete(&name).await?;
    }
    scene.nothing_left().await
}

#[tokio::test]
async fn lost_vm_of_an_init_container_is_made_again() -> Result<()> {
    let (scene, _agent) = scene("init-vm-lost").await?;
    let once = format!("{}; echo done", note("one"));
    let twice = format!(
        "cd /private/tmp/scratch; [ -e lost ] && {{ {}; exit; }}; touch lost; sleep 1000",
        note("two")
    );
    let init = [("one", shell(IMAGE, &once)), ("two", shell(TOOLS, &twice))];
    let pod = pod(&scene, "lost", &init).restart_policy("OnFailure");
    pod.create().await?;
    let uid = scene.uid("lost").await?;
    until_exists("the second init container", &scene.volumes_dir(&uid).join("scratch/lost")).await?;
    scene.kill_shims()?;
    let pod = scene.phase("lost", "Succeeded").await?;
    // The first one has succeeded, and does not run again.
    assert_eq!(scene.log(&pod, "main", 0)?, ["one main 0", "two tools 0", "main main 0"]);
    let counts: Vec<_> = pod.init_containers().into_iter().map(ContainerView::restart_count).collect();
    assert_eq!((counts, pod.main().restart_count()), (vec![Some(0), Some(1)], Some(0)));
    assert_eq!(scene.boots()?, 4);
    scene.delete("lost").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn main_container_restarts_without_the_vms_of_init_containers() -> Result<()> {
    let (scene, _agent) = scene("init-vm-restart").await?;
    let init = [("one", shell(TOOLS, &note("one"))), ("two", shell(IMAGE, &note("two")))];
    let main = format!(
        "{}; cd /private/tmp/scratch; [ -e again ] || {{ touch again; exit 1; }}; cat trace",
        note("main")
    );
    let pod =
        pod(&scene, "again", &init).sh(main).restart_policy("OnFailure").create_until("Succeeded").await?;
    let trace = ["one tools 0", "two main 0", "main main 1", "two main 0", "main main 1"];
    assert_eq!(scene.log(&pod, "main", 1)?, trace);
    let counts: Vec<_> = pod.init_containers().into_iter().map(ContainerView::restart_count).collect();
    assert_eq!((counts, pod.main().restart_count()), (vec![Some(0), Some(1)], Some(1)));
    assert_eq!(pod.main().last_exit_code(), Some(1));
    assert_eq!(scene.boots()?, 3);
    Ok(())
}

#[tokio::test]
async fn vm_that_only_boots_can_come_after_init_containers() -> Result<()> {
    let (scene, _agent) = scene("init-vm-boots").await?;
    let scratch = json!({"name": "scratch", "emptyDir": {}});
    let pod = scene.pod("boots").spec(json!({"volumes": [scratch]})).mount("scratch", "/private/tmp/scratch");
    let pod = pod.init_container("one", shell(TOOLS, &note("one"))).create_until("Running").await?;
    assert_eq!((pod.init().exit_code(), pod.main().restart_count(), scene.boots()?), (Some(0), Some(0), 2));
    scene.delete("boots").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn pod_is_deleted_while_its_init_container_has_a_vm() -> Result<()> {
    let (scene, _agent) = scene("init-vm-deleted").await?;
    let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let init = [("one", shell(TOOLS, script))];
    pod(&scene, "deleted", &init).grace(30).finalizer().create().await?;
    let running = scene.until("deleted", "its init container to run", |pod| pod.init().is_running()).await?;
    assert_eq!(scene.running_vms().await?, [vm_of(running.init())?]);
    scene.begin_delete("deleted").await?;
    let pod = scene.phase("deleted", "Failed").await?;
    ensure!(!pod.main().is_running() && pod.main().restart_count() == Some(0), "{:?}", pod.main());
    assert_eq!(scene.boots()?, 1);
    scene.remove_finalizers("deleted").await?;
    scene.until_gone("deleted").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn init_container_whose_image_cannot_be_pulled_shows_it() -> Result<()> {
    let (scene, _agent) = scene("init-vm-pull").await?;
    let missing = "registry.test/macos/missing:1";
    let init = [
        ("one", shell(IMAGE, &note("one"))),
        ("two", shell(missing, &note("two"))),
        ("three", shell(IMAGE, "true")),
    ];
    pod(&scene, "pull", &init).create().await?;
    let reasons = |pod: &Pod| -> Vec<Option<String>> {
        let all = pod.init_containers().into_iter().chain([pod.main()]);
        all.map(|one| one.waiting_reason().map(str::to_owned)).collect()
    };
    let fails = |pod: &Pod| {
        let waits = Some("PodInitializing".to_owned());
        let (second, others) = (reasons(pod).get(1).cloned().flatten(), reasons(pod));
        matches!(second.as_deref(), Some("ErrImagePull" | "ImagePullBackOff"))
            && others.first() == Some(&None)
            && others.get(2..) == Some(&[waits.clone(), waits][..])
    };
    let waits = scene.until("pull", "its image to be missing", fails).await?;
    assert_eq!((waits.phase(), waits.init().exit_code()), ("Pending", Some(0)));
    let columns = shown(&scene, "pull").await?;
    ensure!(columns.contains("Init:ErrImagePull") || columns.contains("Init:ImagePullBackOff"), "{columns}");
    add_image(&scene.mac, missing, "found")?;
    let pod = scene.phase("pull", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["one main 0", "two found 0", "main main 0"]);
    Ok(())
}

#[tokio::test]
async fn init_container_with_a_private_image_needs_the_pods_pull_secret() -> Result<()> {
    let (scene, _agent) = scene("init-vm-private").await?;
    let private = "private.test/macos/tools:1";
    add_image(&scene.mac, private, "private")?;
    scene.mac.protect_registry("private.test", "robot", "s3cr3t")?;
    scene.pull_secret("pull", "private.test", "robot", "s3cr3t").await?;
    let init = [("one", shell(private, &note("one")))];
    let with = pod(&scene, "with", &init).pull_secrets(&["pull"]).create_until("Succeeded").await?;
    assert_eq!(scene.log(&with, "main", 0)?, ["one private 0", "main main 0"]);
    // The image is on the Mac, but not for a Pod without the secret.
    pod(&scene, "without", &init).create().await?;
    let fails = |pod: &Pod| matches!(pod.init().waiting_reason(), Some("ErrImagePull" | "ImagePullBackOff"));
    scene.until("without", "its image to be refused", fails).await?;
    scene.delete("without").await?;
    // Each container has its own pull policy.
    scene.mac.set_fault(Fault::Pull, "offline")?;
    let mut never = shell(private, "true");
    never["imagePullPolicy"] = json!("Never");
    pod(&scene, "never", &[("one", never)]).pull_secrets(&["pull"]).create_until("Succeeded").await.map(drop)
}

/// Points between the end of an init container's VM and the start of the next one, in the order of the steps.
const AT_THE_CHANGE: [&str; 14] = [
    "agent.delete-vm.before",
    "agent.delete-vm.scrubbed",
    "agent.delete-vm.deleted",
    "agent.delete-vm.after",
    "agent.plan.before",
    "agent.plan.gathered",
    "agent.plan.logs",
    "agent.plan.shares",
    "write.spec.json",
    "agent.plan.after",
    "agent.launch.before",
    "agent.launch.after",
    "agent.delete-vm.before",
    "agent.delete-vm.after",
];

#[tokio::test]
async fn agent_crashes_between_the_vms_of_a_pod() -> Result<()> {
    let (scene, agent) = scene("init-vm-crash").await?;
    let init = [("one", shell(TOOLS, &note("one"))), ("two", shell(TOOLS, &note("two")))];
    agent.kill9()?;
    pod(&scene, "change", &init).create().await?;
    let _agent = CrashingAgent::start(&scene, &AT_THE_CHANGE)?.survive().await?;
    let pod = scene.phase("change", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["one tools 0", "two tools 1", "main main 0"]);
    assert_eq!((pod.main().restart_count(), scene.boots()?), (Some(0), 2));
    let counts: Vec<_> = pod.init_containers().into_iter().map(ContainerView::restart_count).collect();
    assert_eq!(counts, [Some(0), Some(0)]);
    scene.delete("change").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn shim_of_an_init_container_crashes() -> Result<()> {
    let (scene, agent) = scene("init-vm-shim").await?;
    agent.kill9()?;
    // Where the container had not ended, it runs once more, in a new VM. Where it had, its success is known.
    for (point, is_known) in [
        ("shim.begun", false),
        ("shim.up", false),
        ("shim.init.started", false),
        ("shim.init.exit", true),
        ("shim.init.over", true),
        ("write.result.json", true),
        ("shim.result", true),
        ("shim.stopped", true),
        ("write.outcome.json", true),
        ("shim.ended", true),
    ] {
        let name = point.replace('.', "-");
        let before = scene.boots()?;
        let crashing = CrashingAgent::start(&scene, &[point])?;
        // A command that outlives its shim must not end before the agent has stopped its VM.
        let is_held = point == "shim.init.started";
        let holds = if is_held { waits_for("go") } else { "true".to_owned() };
        let init = [("one", shell(TOOLS, &format!("{holds}; {}", note("one"))))];
        pod(&scene, &name, &init).restart_policy("OnFailure").create().await?;
        let agent = crashing.survive().await?;
        if is_held {
            let again = |pod: &Pod| pod.init().restart_count() == Some(1) && pod.init().is_running();
            touch(&scene, &scene.until(&name, "its second start", again).await?, "go")?;
        }
        let pod = scene.phase(&name, "Succeeded").await.with_context(|| point.to_owned())?;
        assert_eq!(scene.log(&pod, "main", 0)?, ["one tools 0", "main main 0"], "{point}");
        assert_eq!((point, pod.main().restart_count()), (point, Some(0)));
        let boots = scene.boots()? - before;
        ensure!(!is_known || boots == 2, "{point}: {boots} boots");
        ensure!(is_known || pod.init().restart_count() == Some(1), "{point}: {:?}", pod.init());
        scene.delete_all_of(&name).await?;
        agent.kill9()?;
    }
    Ok(())
}

#[tokio::test]
async fn init_container_goes_on_without_the_agent() -> Result<()> {
    let (scene, agent) = scene("init-vm-alone").await?;
    let init = [("one", shell(TOOLS, &format!("{}; {}", waits_for("go"), note("one"))))];
    pod(&scene, "alone", &init).create().await?;
    let running = scene.until("alone", "its init container to run", |pod| pod.init().is_running()).await?;
    agent.kill9()?;
    touch(&scene, &running, "go")?;
    let uid = running.uid_of()?;
    until_exists("the end of the VM", &scene.first_run_dir(uid).join("outcome.json")).await?;
    let _agent = scene.agent.start()?;
    let pod = scene.phase("alone", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["one tools 0", "main main 0"]);
    assert_eq!((pod.init().restart_count(), scene.boots()?), (Some(0), 2));
    Ok(())
}

#[tokio::test]
async fn volume_in_memory_carries_over_to_the_next_vm() -> Result<()> {
    let (scene, _agent) = scene("init-vm-memory").await?;
    let pod = scene.pod("memory").sh("cat /private/tmp/scratch/word");
    let pod = pod.mounted("scratch", json!({"emptyDir": {"medium": "Memory"}}));
    let pod = pod.init_container("one", shell(TOOLS, "echo kept >/private/tmp/scratch/word"));
    assert_eq!(pod.output().await?, ["kept"]);
    Ok(())
}

#[tokio::test]
async fn active_deadline_ends_a_pod_whose_init_container_has_a_vm() -> Result<()> {
    let (scene, _agent) = scene("init-vm-late").await?;
    let init = [("one", shell(TOOLS, "sleep 1000"))];
    let pod = pod(&scene, "late", &init).active_deadline(20).create_until("Failed").await?;
    assert_eq!((pod.reason(), scene.boots()?), (Some("DeadlineExceeded"), 1));
    ensure!(!pod.main().is_running(), "{:?}", pod.main());
    scene.no_vms().await
}
