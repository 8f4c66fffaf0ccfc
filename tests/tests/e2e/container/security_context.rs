//! Whom a command runs as: `runAsUser` and its like, in guests whose own user is not root, as in real images.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, UP, phase_of, state_of};

/// An image with the user of real ones: number 501, in the group `staff`, with `sudo` for everything.
const ADMIN: &str = "registry.test/macos/admin:1";
/// Such an image, with a program that is root's alone.
const HIDING: &str = "registry.test/macos/hiding:1";

async fn scene(name: &str) -> Result<(Scene, RunningAgent)> {
    let (scene, agent) = Scene::with_agent(name).await?;
    scene.mac.add_image(ADMIN, &json!({"uid": 501}))?;
    Ok((scene, agent))
}

fn shell(script: &str, security: &Value) -> Value {
    json!({"image": ADMIN, "command": ["/bin/sh", "-c", script], "securityContext": security})
}

impl Scene {
    /// What a container says that runs to its good end.
    async fn said(&self, name: &str, container: &Value, spec: &Value) -> Result<Vec<String>> {
        self.create(&self.pod(name, container, spec)).await?;
        let pod = self.phase(name, "Succeeded").await?;
        self.log(&pod, "main", 0)
    }
}

#[tokio::test]
async fn a_guest_whose_user_is_not_root_is_made_the_pods_all_the_same() -> Result<()> {
    let (scene, _agent) = scene("admin").await?;
    let script = "id -u; id -g; echo $HOME; pwd; hostname; grep -c alias.test /etc/hosts; touch /opt/data/mine && ls /opt/data; \
                  cat /private/tmp/hook; printf bye >/usr/local/words";
    let mut container = shell(script, &json!({"runAsNonRoot": true}));
    // Places that only root can make.
    container["workingDir"] = json!("/opt/work");
    container["volumeMounts"] = json!([{"name": "data", "mountPath": "/opt/data"}]);
    container["terminationMessagePath"] = json!("/usr/local/words");
    let hook = "id -u >/private/tmp/hook.new && mv /private/tmp/hook.new /private/tmp/hook";
    let waits = "until [ -e /private/tmp/hook ]; do sleep 0.05; done; ";
    container["command"] = json!(["/bin/sh", "-c", format!("{waits}{script}")]);
    container["lifecycle"] = json!({"postStart": {"exec": {"command": ["/bin/sh", "-c", hook]}}});
    let spec = json!({
        "hostname": "box", "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["alias.test"]}],
        "volumes": [{"name": "data", "emptyDir": {}}],
    });
    let said = scene.said("admin", &container, &spec).await?;
    assert_eq!(said, ["501", "20", "/Users/admin", "/opt/work", "box", "1", "mine", "501"]);
    let end = state_of(&scene.pods.get("admin").await?).and_then(|state| state.terminated);
    assert_eq!(end.and_then(|end| end.message).as_deref(), Some("bye"));
    scene.no_vms().await
}

#[tokio::test]
async fn a_command_runs_as_any_user_and_group() -> Result<()> {
    let (scene, _agent) = scene("anybody").await?;
    let script = "echo $(id -u) $(id -g) $HOME $WHO; cd /opt/work && touch mine";
    let table = [
        // One that the guest has, with its own group and home; its name is in the list of users of every machine.
        ("known", json!({"runAsUser": 1}), "1 1 /usr/sbin itself"),
        ("root", json!({"runAsUser": 0}), "0 0 /"),
        // Sudo takes neither of these.
        ("unknown", json!({"runAsUser": 12345, "runAsNonRoot": true}), "12345 20 / itself"),
        ("both", json!({"runAsUser": 12345, "runAsGroup": 54321}), "12345 54321 / itself"),
        ("group", json!({"runAsGroup": 1}), "501 1 /Users/admin itself"),
        // Root needs no sudo for it.
        ("from-root", json!({"runAsUser": 12345, "runAsGroup": 54321}), "12345 54321 / itself"),
    ];
    for (name, security, expected) in table {
        let mut container = shell(script, &security);
        if name == "from-root" {
            container["image"] = json!(crate::scene::IMAGE);
        }
        container["env"] = json!([{"name": "WHO", "value": "itself"}]);
        container["workingDir"] = json!("/opt/work");
        let said = scene.said(name, &container, &json!({})).await.with_context(|| name.to_owned())?;
        let [said] = said.as_slice() else { anyhow::bail!("{name}: {said:?}") };
        ensure!(said.starts_with(expected) && said.ends_with("itself"), "{name}: {said}");
    }
    // A program that only root can see.
    let mut hidden = shell("", &json!({"runAsUser": 0}));
    hidden["command"] = json!(["/opt/mine/tool"]);
    hidden["image"] = json!(HIDING);
    let tool = scene.mac.add_image(HIDING, &json!({"uid": 501}))?.join("rootfs/opt/mine/tool");
    std::fs::create_dir_all(tool.with_file_name(""))?;
    std::fs::write(&tool, "#!/bin/sh\necho found\n")?;
    std::fs::set_permissions(&tool, Permissions::from_mode(0o700))?;
    std::fs::set_permissions(tool.with_file_name(""), Permissions::from_mode(0o700))?;
    assert_eq!(scene.said("hidden", &hidden, &json!({})).await?, ["found"]);
    // Whoever runs beside the command does so as the same user, and the command hears of its end.
    let script = format!("trap 'exit 9' TERM; touch {UP}; while :; do sleep 0.1; done");
    let mut probed = shell(&script, &json!({"runAsUser": 12345}));
    let check = format!("[ $(id -u) = 12345 ] && [ -e {UP} ]");
    probed["readinessProbe"] = json!({"exec": {"command": ["/bin/sh", "-c", check]}, "periodSeconds": 1});
    let mut pod = scene.pod("probed", &probed, &json!({}));
    pod["metadata"]["finalizers"] = json!(["example.com/linger"]);
    scene.create(&pod).await?;
    wait::until(&scene.pods, "probed", "ready", DEADLINE, |pod| {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        statuses.and_then(|all| all.first()).is_some_and(|status| status.ready)
    })
    .await?;
    scene.kubectl.run(["delete", "pod", "probed", "--wait=false"]).await?;
    let ended = wait::until(&scene.pods, "probed", "an end", DEADLINE, |pod| {
        state_of(pod).is_some_and(|state| state.terminated.is_some())
    })
    .await?;
    let free = r#"{"metadata":{"finalizers":null}}"#;
    scene.kubectl.run(["patch", "pod", "probed", "--type=merge", "--patch", free]).await?;
    let end = state_of(&ended).and_then(|state| state.terminated).context("no end")?;
    assert_eq!(end.exit_code, 9, "it was told to end by its own user");
    scene.no_vms().await
}

#[tokio::test]
async fn a_command_is_in_the_groups_that_the_pod_says() -> Result<()> {
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
        let container = shell("echo $(id -u) $(id -g) $(id -G) $HOME", &json!({}));
        let said = scene.said(name, &container, &groups(security)).await.with_context(|| name.to_owned())?;
        assert_eq!(said, [expected], "{name}");
    }
    let many: Vec<u32> = (1..=16).collect();
    let container = shell("true", &json!({}));
    scene.create(&scene.pod("many", &container, &groups(json!({"supplementalGroups": many})))).await?;
    scene.phase("many", "Failed").await?;
    scene.told("pod", "many", "spec.securityContext.supplementalGroups: are more than 15").await
}

#[tokio::test]
async fn hooks_and_probes_of_a_vm_that_only_boots_run_as_its_user() -> Result<()> {
    let (scene, _agent) = scene("boot-user").await?;
    let asked = |test: &str| json!({"exec": {"command": ["/bin/sh", "-c", test]}, "periodSeconds": 1});
    let whom = "[ \"$(id -u) $(id -g) $(id -G) $WHO\" = '12345 7 7 4001 itself' ]";
    let container = json!({
        "image": ADMIN,
        "env": [{"name": "WHO", "value": "itself"}],
        "lifecycle": {"postStart": {"exec": {"command": ["/bin/sh", "-c", whom]}}},
        "readinessProbe": asked(whom),
    });
    let user =
        json!({"runAsUser": 12345, "runAsGroup": 7, "runAsNonRoot": true, "supplementalGroups": [4001]});
    scene.create(&scene.pod("boot", &container, &json!({"securityContext": user}))).await?;
    wait::until(&scene.pods, "boot", "ready", DEADLINE, |pod| {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        statuses.and_then(|all| all.first()).is_some_and(|status| status.ready)
    })
    .await?;
    let fields = "securityContext.runAsUser, securityContext.runAsGroup, securityContext.runAsNonRoot";
    let words = format!(
        "No effect on what a VM's image boots: {fields}. Of such fields, hooks and probes by exec heed"
    );
    scene.told_as("boot", "LeftToImage", &words).await?;
    // A guest agent that is root runs nothing for a Pod that must not be root.
    let container = json!({"image": crate::scene::IMAGE, "readinessProbe": asked("true")});
    let spec = json!({"securityContext": {"runAsNonRoot": true}});
    scene.create(&scene.pod("root", &container, &spec)).await?;
    scene.phase("root", "Failed").await?;
    scene.told_as("root", "Failed", "Error: container has runAsNonRoot and image will run as root").await
}

#[tokio::test]
async fn probes_that_hang_leave_no_process_behind() -> Result<()> {
    let (scene, _agent) = scene("hanging").await?;
    let users = [
        ("own", json!({})),
        // Neither through sudo nor through chroot can the guest agent reach these.
        ("known", json!({"runAsUser": 1})),
        ("unknown", json!({"runAsUser": 12345})),
    ];
    // It is over once there have been six probes, of which two at most are still there.
    let script = "until [ $(wc -l </private/tmp/asked) -ge 6 ] && \
                  [ $(cat /proc/[0-9]*/comm 2>/dev/null | grep -cx sleep) -le 4 ]; do sleep 0.2; done";
    let hang = "echo asked >>/private/tmp/asked; trap '' TERM; sleep 3601 & sleep 3601; true";
    for (name, security) in users {
        let mut container = shell(&format!("touch /private/tmp/asked; {script}"), &security);
        container["readinessProbe"] =
            json!({"exec": {"command": ["/bin/sh", "-c", hang]}, "periodSeconds": 1, "timeoutSeconds": 1});
        scene.create(&scene.pod(name, &container, &json!({}))).await?;
        scene.phase(name, "Succeeded").await.with_context(|| name.to_owned())?;
        scene.told_as(name, "Unhealthy", "Readiness probe failed: command timed out: ").await?;
    }
    scene.no_vms().await
}

#[tokio::test]
async fn who_must_not_be_root_is_not() -> Result<()> {
    let (scene, _agent) = scene("nonroot").await?;
    // That much is known without a VM. The Pod waits, as it does elsewhere.
    scene
        .create(&scene.pod(
            "said",
            &shell("true", &json!({"runAsUser": 0, "runAsNonRoot": true})),
            &json!({}),
        ))
        .await?;
    let waits = wait::until(&scene.pods, "said", "to wait", DEADLINE, |pod| {
        let waiting = state_of(pod).and_then(|state| state.waiting);
        waiting.and_then(|waiting| waiting.reason).as_deref() == Some("CreateContainerConfigError")
    });
    let pod = waits.await?;
    assert_eq!(phase_of(&pod), "Pending");
    let (uid, namespace) = (pod.metadata.uid.unwrap_or_default(), scene.namespace());
    let words = format!(
        "container's runAsUser breaks non-root policy (pod: \"said_{namespace}({uid})\", container: main)"
    );
    scene.told_as("said", "Failed", &format!("Error: {words}")).await?;
    assert!(scene.vms().await?.is_empty());
    scene.kubectl.run(["delete", "pod", "said"]).await?;

    // Only the guest knows that its user is root.
    let mut container = shell("true", &json!({"runAsNonRoot": true}));
    container["image"] = json!(crate::scene::IMAGE);
    scene.create(&scene.pod("is", &container, &json!({}))).await?;
    let end = state_of(&scene.phase("is", "Failed").await?).and_then(|state| state.terminated);
    assert_eq!(end.and_then(|end| end.reason).as_deref(), Some("CreateContainerConfigError"));
    scene.told_as("is", "Failed", "Error: container has runAsNonRoot and image will run as root").await?;

    // Without sudo there is nobody else to be.
    let locked = "registry.test/macos/locked:1";
    scene.mac.add_image(locked, &json!({"uid": 501, "sudo": false}))?;
    let mut container = shell("true", &json!({"runAsUser": 1}));
    container["image"] = json!(locked);
    scene.create(&scene.pod("locked", &container, &json!({}))).await?;
    scene.phase("locked", "Failed").await?;
    scene.told_as("locked", "Failed", "Error: the guest cannot run a command as user 1: ").await?;
    // What needs no other user is there.
    let mut container = shell("id -u", &json!({"runAsNonRoot": true}));
    container["image"] = json!(locked);
    let alias = json!({"hostAliases": [{"ip": "10.1.2.3", "hostnames": ["alias.test"]}]});
    scene.create(&scene.pod("alias", &container, &alias)).await?;
    scene.phase("alias", "Failed").await?;
    scene.told_as("alias", "Failed", "Error: cannot add to /etc/hosts in the guest").await
}
