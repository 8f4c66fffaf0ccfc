//! `securityContext`: which user and groups a command runs as, in guests whose own user is not root, as in real images.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;

use crate::scene::{IMAGE, PodBuilder, PodView as _, Scene, UP, every_second, exec};

/// An image with the user of real ones: number 501, in the group `staff`, with `sudo` for everything.
const ADMIN: &str = "registry.test/macos/admin:1";
/// An image whose user is root.
const ROOTED: &str = "registry.test/macos/rooted:1";
/// Such an image as the first, with a program that only root can see.
const HIDING: &str = "registry.test/macos/hiding:1";

async fn scene(name: &str) -> Result<(Scene, RunningAgent)> {
    let (scene, agent) = Scene::with_agent(name).await?;
    scene.mac.add_image(ADMIN, &json!({"uid": 501}))?;
    Ok((scene, agent))
}

/// A Pod of that image with a script and a `securityContext`.
fn admin<'a>(scene: &'a Scene, name: &str, script: &str, security: Value) -> PodBuilder<'a> {
    scene.pod(name).image(ADMIN).sh(script).security_context(security)
}

#[tokio::test]
async fn guest_without_a_root_user_is_set_up() -> Result<()> {
    let (scene, _agent) = scene("admin").await?;
    let script = "id -u; id -g; echo $HOME; pwd; hostname; grep -c alias.test /etc/hosts; touch /opt/data/mine && ls /opt/data; \
                  cat /private/tmp/hook; printf bye >/usr/local/words";
    let hook = "id -u >/private/tmp/hook.new && mv /private/tmp/hook.new /private/tmp/hook";
    let waits = "until [ -e /private/tmp/hook ]; do sleep 0.05; done; ";
    // Only root can make the working directory, the mount and the file of the termination message.
    let pod = admin(&scene, "admin", &format!("{waits}{script}"), json!({"runAsNonRoot": true}))
        .container(json!({"workingDir": "/opt/work"}))
        .empty_dir("data", "/opt/data")
        .message_path("/usr/local/words")
        .post_start(exec(hook))
        .spec(json!({"hostname": "box", "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["alias.test"]}]}));
    let output = pod.output().await?;
    assert_eq!(output, ["501", "20", "/Users/admin", "/opt/work", "box", "1", "mine", "501"]);
    assert_eq!(scene.pods.get("admin").await?.main().message(), Some("bye"));
    scene.no_vms().await
}

#[tokio::test]
async fn command_runs_as_any_user_and_group() -> Result<()> {
    let (scene, _agent) = scene("anybody").await?;
    let script = "echo $(id -u) $(id -g) $HOME $WHO; cd /opt/work && touch mine";
    let table = [
        // A user that the guest has, with its own group and home. Every machine has this user.
        ("known", json!({"runAsUser": 1}), "1 1 /usr/sbin itself"),
        ("root", json!({"runAsUser": 0}), "0 0 /"),
        // Sudo accepts neither of these users.
        ("unknown", json!({"runAsUser": 12345, "runAsNonRoot": true}), "12345 20 / itself"),
        ("both", json!({"runAsUser": 12345, "runAsGroup": 54321}), "12345 54321 / itself"),
        ("group", json!({"runAsGroup": 1}), "501 1 /Users/admin itself"),
        // Root needs no sudo for it.
        ("from-root", json!({"runAsUser": 12345, "runAsGroup": 54321}), "12345 54321 / itself"),
    ];
    for (name, security, expected) in table {
        let pod = admin(&scene, name, script, security).env("WHO", "itself");
        let pod = if name == "from-root" { pod.image(IMAGE) } else { pod };
        let said = pod.container(json!({"workingDir": "/opt/work"})).output().await.context(name)?;
        let [said] = said.as_slice() else { anyhow::bail!("{name}: {said:?}") };
        ensure!(said.starts_with(expected) && said.ends_with("itself"), "{name}: {said}");
    }
    // A program that only root can see.
    let tool = scene.mac.add_image(HIDING, &json!({"uid": 501}))?.join("rootfs/opt/mine/tool");
    std::fs::create_dir_all(tool.with_file_name(""))?;
    std::fs::write(&tool, "#!/bin/sh\necho found\n")?;
    std::fs::set_permissions(&tool, Permissions::from_mode(0o700))?;
    std::fs::set_permissions(tool.with_file_name(""), Permissions::from_mode(0o700))?;
    let hidden = scene.pod("hidden").image(HIDING).command(["/opt/mine/tool"]);
    assert_eq!(hidden.security_context(json!({"runAsUser": 0})).output().await?, ["found"]);
    // Probes run as the command's user, and the command gets its SIGTERM.
    let script = format!("trap 'exit 9' TERM; touch {UP}; while :; do sleep 0.1; done");
    let probe = every_second(exec(format!("[ $(id -u) = 12345 ] && [ -e {UP} ]")));
    let pod = admin(&scene, "probed", &script, json!({"runAsUser": 12345})).readiness(probe).finalizer();
    pod.create().await?;
    scene.ready("probed").await?;
    scene.begin_delete("probed").await?;
    let ended = scene.until("probed", "an end", |pod| pod.main().has_ended()).await?;
    scene.remove_finalizers("probed").await?;
    assert_eq!(ended.main().exit_code(), Some(9), "the command got its SIGTERM");
    scene.no_vms().await
}

#[tokio::test]
async fn command_has_its_supplemental_groups() -> Result<()> {
    let (scene, _agent) = scene("groups").await?;
    let groups = |security: Value| json!({"securityContext": security});
    let table = [
        // The guest's own user, in its own groups and these.
        ("own", json!({"supplementalGroups": [4001, 4002]}), "501 20 20 4001 4002 /Users/admin"),
        (
            "other",
            json!({"supplementalGroups": [4001], "runAsUser": 12345, "runAsGroup": 7}),
            "12345 7 7 4001 /",
        ),
        (
            "strict",
            json!({"supplementalGroups": [20], "supplementalGroupsPolicy": "Strict", "runAsUser": 1}),
            "1 1 1 20 /usr/sbin",
        ),
    ];
    for (name, security, expected) in table {
        let pod = scene.pod(name).image(ADMIN).sh("echo $(id -u) $(id -g) $(id -G) $HOME");
        let said = pod.spec(groups(security)).output().await.context(name)?;
        assert_eq!(said, [expected], "{name}");
    }
    let many: Vec<u32> = (1..=16).collect();
    let pod = scene.pod("many").image(ADMIN).sh("true").spec(groups(json!({"supplementalGroups": many})));
    pod.create_until("Failed").await?;
    scene.described("many", "spec.securityContext.supplementalGroups: are more than 15").await
}

#[tokio::test]
async fn hooks_and_probes_of_a_boot_only_vm_run_as_the_pods_user() -> Result<()> {
    let (scene, _agent) = scene("boot-user").await?;
    let whom = "[ \"$(id -u) $(id -g) $(id -G) $WHO\" = '12345 7 7 4001 itself' ]";
    let user =
        json!({"runAsUser": 12345, "runAsGroup": 7, "runAsNonRoot": true, "supplementalGroups": [4001]});
    scene
        .pod("boot")
        .image(ADMIN)
        .env("WHO", "itself")
        .post_start(exec(whom))
        .readiness(every_second(exec(whom)))
        .spec(json!({"securityContext": user}))
        .create()
        .await?;
    scene.ready("boot").await?;
    let fields = "securityContext.runAsUser, securityContext.runAsGroup, securityContext.runAsNonRoot";
    let words = format!(
        "No effect on what a VM's image boots: {fields}. Of such fields, hooks and probes by exec heed"
    );
    scene.event("boot", "LeftToImage", &words).await?;
    // A guest agent that is root runs nothing for a Pod that must not be root.
    scene.mac.add_image(ROOTED, &json!({"uid": 0}))?;
    scene
        .pod("root")
        .image(ROOTED)
        .readiness(every_second(exec("true")))
        .spec(json!({"securityContext": {"runAsNonRoot": true}}))
        .create_until("Failed")
        .await?;
    scene.event("root", "Failed", "Error: container has runAsNonRoot and image will run as root").await
}

#[tokio::test]
async fn hanging_exec_probes_leave_no_processes() -> Result<()> {
    let (scene, _agent) = scene("hanging").await?;
    let users = [
        ("own", json!({})),
        // The guest agent cannot signal these processes: they run through sudo or chroot.
        ("known", json!({"runAsUser": 1})),
        ("unknown", json!({"runAsUser": 12345})),
    ];
    // The command ends after six probes, when at most two of them still run.
    let script = "until [ $(wc -l </private/tmp/asked) -ge 6 ] && \
                  [ $(cat /proc/[0-9]*/comm 2>/dev/null | grep -cx sleep) -le 4 ]; do sleep 0.2; done";
    let hang = "echo asked >>/private/tmp/asked; trap '' TERM; sleep 3601 & sleep 3601; true";
    for (name, security) in users {
        let mut probe = every_second(exec(hang));
        probe["timeoutSeconds"] = json!(1);
        let pod = admin(&scene, name, &format!("touch /private/tmp/asked; {script}"), security);
        pod.readiness(probe).create_until("Succeeded").await.context(name)?;
        scene.event(name, "Unhealthy", "Readiness probe failed: command timed out: ").await?;
    }
    scene.no_vms().await
}

#[tokio::test]
async fn run_as_non_root_is_enforced() -> Result<()> {
    let (scene, _agent) = scene("nonroot").await?;
    // The agent knows this without a VM. The Pod waits, as it does with the kubelet.
    admin(&scene, "said", "true", json!({"runAsUser": 0, "runAsNonRoot": true})).create().await?;
    let pod = scene.waiting("said", "CreateContainerConfigError", "").await?;
    assert_eq!(pod.phase(), "Pending");
    let (uid, namespace) = (pod.uid_of()?, scene.namespace());
    let words = format!(
        "container's runAsUser breaks non-root policy (pod: \"said_{namespace}({uid})\", container: main)"
    );
    scene.event("said", "Failed", &format!("Error: {words}")).await?;
    assert!(scene.vms().await?.is_empty());
    scene.delete("said").await?;

    // Only the guest knows that its user is root.
    scene.mac.add_image(ROOTED, &json!({"uid": 0}))?;
    let pod = scene.pod("is").image(ROOTED).sh("true").security_context(json!({"runAsNonRoot": true}));
    let pod = pod.create_until("Failed").await?;
    assert_eq!(pod.main().reason(), Some("CreateContainerConfigError"));
    scene.event("is", "Failed", "Error: container has runAsNonRoot and image will run as root").await?;

    // Without sudo the guest agent cannot become another user.
    let locked = "registry.test/macos/locked:1";
    scene.mac.add_image(locked, &json!({"uid": 501, "sudo": false}))?;
    let pod = admin(&scene, "locked", "true", json!({"runAsUser": 1})).image(locked);
    pod.create_until("Failed").await?;
    scene.event("locked", "Failed", "Error: the guest cannot run a command as user 1: ").await?;
    // Nor can it write /etc/hosts.
    admin(&scene, "alias", "id -u", json!({"runAsNonRoot": true}))
        .image(locked)
        .spec(json!({"hostAliases": [{"ip": "10.1.2.3", "hostnames": ["alias.test"]}]}))
        .create_until("Failed")
        .await?;
    scene.event("alias", "Failed", "Error: cannot add to /etc/hosts in the guest").await
}
