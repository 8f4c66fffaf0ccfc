//! What a guest is made before the command starts: its name, its users, its paths; and what is read of it after.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use serde_json::{Value, json};

use crate::scene::{IMAGE, Scene, state_of};

fn shell(script: &str, extra: &Value) -> Value {
    let mut container = json!({"command": ["/bin/sh", "-c", script]});
    if let (Some(container), Some(extra)) = (container.as_object_mut(), extra.as_object()) {
        container.extend(extra.clone());
    }
    container
}

fn end_of(pod: &Pod) -> Result<ContainerStateTerminated> {
    state_of(pod).and_then(|state| state.terminated).context("it has not ended")
}

#[tokio::test]
async fn the_guest_has_the_pods_names() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("names").await?;
    let script =
        "hostname; grep -E 'foo.test|db-0' /etc/hosts | tr '\\t' ' ' | sed \"s/$TART_SIM_ADDRESS/ME/\"";
    let spec = json!({
        "hostname": "db-0", "subdomain": "db",
        "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["foo.test", "bar.test"]}],
    });
    scene.create(&scene.pod("names", &shell(script, &json!({})), &spec)).await?;
    let pod = scene.phase("names", "Succeeded").await?;
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let own = format!("ME db-0.db.{namespace}.svc.cluster.local db-0");
    assert_eq!(
        scene.log(&pod, "main", 0)?,
        ["db-0".to_owned(), own, "10.1.2.3 foo.test bar.test".to_owned()]
    );
    let spec = json!({"subdomain": "db", "setHostnameAsFQDN": true});
    scene.create(&scene.pod("full", &shell("hostname", &json!({})), &spec)).await?;
    let pod = scene.phase("full", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, [format!("full.db.{namespace}.svc.cluster.local")]);
    let spec = json!({"hostname": "db-0", "subdomain": "db", "hostnameOverride": "over.ride.test"});
    let script = "hostname; grep over.ride /etc/hosts | sed \"s/$TART_SIM_ADDRESS/ME/\"";
    scene.create(&scene.pod("chosen", &shell(script, &json!({})), &spec)).await?;
    let pod = scene.phase("chosen", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["over.ride.test", "ME\tover.ride.test"]);
    Ok(())
}

#[tokio::test]
async fn names_are_looked_up_as_the_pod_says() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("lookup").await?;
    let image = "registry.test/macos/lookup:1";
    // As real ones are: only root can change how names are looked up.
    let etc = scene.mac.add_image(image, &json!({"uid": 501}))?.join("rootfs/private/etc");
    std::fs::create_dir_all(&etc)?;
    std::fs::write(etc.join("resolv.conf"), "search lan\nnameserver 192.0.2.1\n")?;
    let container = shell("grep -v '^#' /etc/resolv.conf", &json!({"image": image}));
    let looked_up = async |name: &str, spec: Value| {
        scene.create(&scene.pod(name, &container, &spec)).await?;
        let pod = scene.phase(name, "Succeeded").await?;
        scene.log(&pod, "main", 0)
    };
    let config = json!({"nameservers": ["192.0.2.53", "192.0.2.54"], "searches": ["a.test", "b.test"]});
    let usual = looked_up("usual", json!({})).await?;
    assert_eq!(usual, ["search lan", "nameserver 192.0.2.1"]);
    let own = looked_up("own", json!({"dnsPolicy": "None", "dnsConfig": config})).await?;
    assert_eq!(own, ["search a.test b.test", "nameserver 192.0.2.53", "nameserver 192.0.2.54"]);
    let more = json!({"dnsConfig": {"nameservers": ["192.0.2.1", "192.0.2.53"], "searches": ["a.test"]}});
    let more = looked_up("more", more).await?;
    assert_eq!(more, ["search lan a.test", "nameserver 192.0.2.1", "nameserver 192.0.2.53"]);
    let searches =
        looked_up("searches", json!({"dnsPolicy": "Default", "dnsConfig": {"searches": ["a.test"]}})).await?;
    assert_eq!(searches, ["search lan a.test", "nameserver 192.0.2.1"]);

    // What the guest cannot follow is refused in words.
    let refused = async |name: &str, container: &Value, spec: Value, words: &str| {
        scene.create(&scene.pod(name, container, &spec)).await?;
        scene.phase(name, "Failed").await?;
        scene.told("pod", name, words).await
    };
    let of_host = json!({"dnsPolicy": "ClusterFirstWithHostNet"});
    let words =
        "spec.dnsPolicy: can only be ClusterFirst or Default or None: a VM cannot share the host's network";
    refused("of-host", &container, of_host, words).await?;
    let options = json!({"dnsConfig": {"options": [{"name": "ndots", "value": "2"}]}});
    refused(
        "options",
        &container,
        options,
        "spec.dnsConfig.options: macOS looks names up by rules of its own",
    )
    .await?;
    let boots = json!({"dnsPolicy": "None", "dnsConfig": config});
    refused("boots", &json!({}), boots.clone(), "spec.dnsConfig: needs a container with a command").await?;
    let locked = "registry.test/macos/locked:1";
    scene.mac.add_image(locked, &json!({"uid": 501, "sudo": false}))?;
    let container = shell("true", &json!({"image": locked}));
    let words = "the guest cannot be given the Pod's dnsConfig: networksetup refuses it for Ethernet, or the guest's user may not use sudo without a password";
    let plain = json!({"dnsPolicy": "None", "dnsConfig": config, "hostname": "x"});
    refused("locked", &container, plain, words).await
}

#[tokio::test]
async fn last_words_come_from_a_file_or_from_the_log() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("words").await?;
    let path = json!({"terminationMessagePath": "/private/tmp/words"});
    let message = async |name: &str, script: &str, extra: &Value, phase: &str| {
        scene.create(&scene.pod(name, &shell(script, extra), &json!({}))).await?;
        anyhow::Ok(end_of(&scene.phase(name, phase).await?)?.message)
    };
    let said = message("file", "printf DONE >/private/tmp/words", &path, "Succeeded").await?;
    assert_eq!(said.as_deref(), Some("DONE"));
    let long = message("long", "yes | head -c 100000 >/private/tmp/words", &path, "Succeeded").await?;
    assert_eq!(long.map(|message| message.len()), Some(4096));
    let fallback = json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
    let said = message("log", "echo all is lost; exit 1", &fallback, "Failed").await?;
    assert_eq!(said.as_deref(), Some("all is lost\n"));
    assert_eq!(message("fine", "echo all is well", &fallback, "Succeeded").await?, None);
    // The usual path is one that macOS takes no file at.
    let leave = |path: &str| format!("printf DONE >{path}");
    let usual = leave("/dev/termination-log");
    let said = message("usual", &usual, &json!({}), "Succeeded").await?;
    assert_eq!(said.as_deref(), Some("DONE"));
    let stranger =
        json!({"terminationMessagePath": "/dev/my-words", "securityContext": {"runAsUser": 10000}});
    let said = message("stranger", &leave("/dev/my-words"), &stranger, "Succeeded").await?;
    assert_eq!(said.as_deref(), Some("DONE"));
    // Nobody without sudo makes a link there.
    let locked = "registry.test/macos/speechless:1";
    scene.mac.add_image(locked, &json!({"uid": 501, "sudo": false}))?;
    let container = shell(&usual, &json!({"image": locked}));
    let tokenless = json!({"automountServiceAccountToken": false});
    scene.create(&scene.pod("locked", &container, &tokenless)).await?;
    assert_eq!(end_of(&scene.phase("locked", "Failed").await?)?.message, None);
    scene.told("pod", "locked", "no termination message can be left at /dev/termination-log").await?;
    // One container after the other in the same guest.
    let container = |name: &str, script: &str| json!({"name": name, "image": IMAGE, "command": ["/bin/sh", "-c", script]});
    let extra = json!({"initContainers": [container("first", "printf first >/dev/termination-log")]});
    scene.create(&scene.pod("two", &shell("true", &json!({})), &extra)).await?;
    let pod = scene.phase("two", "Succeeded").await?;
    assert_eq!(end_of(&pod)?.message, None);
    let first = &pod.status.as_ref().context("status")?.init_container_statuses.as_ref().context("init")?[0];
    let ended = first.state.as_ref().and_then(|state| state.terminated.as_ref()).context("not ended")?;
    assert_eq!(ended.message.as_deref(), Some("first"));
    Ok(())
}

#[tokio::test]
async fn signals_are_told_by_their_number() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("signals").await?;
    for (name, code) in [("term", 143), ("kill", 137), ("segv", 139)] {
        // Kubernetes takes `$$` for a `$`.
        let script = format!("kill -{} $$$$", name.to_uppercase());
        scene.create(&scene.pod(name, &shell(&script, &json!({})), &json!({}))).await?;
        assert_eq!(end_of(&scene.phase(name, "Failed").await?)?.exit_code, code, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn what_a_command_leaves_running_does_not_hold_its_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("daemon").await?;
    scene
        .create(&scene.pod("daemon", &shell("sleep 1000 & echo left it; exit 4", &json!({})), &json!({})))
        .await?;
    let pod = scene.phase("daemon", "Failed").await?;
    assert_eq!(end_of(&pod)?.exit_code, 4);
    assert_eq!(scene.log(&pod, "main", 0)?, ["left it"]);
    scene.no_vms().await
}

#[tokio::test]
async fn a_command_that_kills_all_it_can_still_tells_its_exit_code() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("rampage").await?;
    // The one who waits for its end is killed, and what it leaves behind holds its output open. The brackets keep the pattern
    // from finding this very script.
    let script = "sleep 1000 & until p=$(pgrep -f 'read -r _ [<]'); do sleep 0.1; done; kill -9 $p; exit 6";
    scene.create(&scene.pod("rampage", &shell(script, &json!({})), &json!({}))).await?;
    assert_eq!(end_of(&scene.phase("rampage", "Failed").await?)?.exit_code, 6);
    scene.no_vms().await
}

#[tokio::test]
async fn standard_input_and_a_terminal_are_as_the_pod_wants_them() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("terminal").await?;
    let script = "[ -t 0 ] && echo in; [ -t 1 ] && echo out; read -t 1 line; echo $?";
    let log = async |name: &str, extra: Value| {
        let container = json!({"command": ["/bin/bash", "-c", script]});
        let mut container = container;
        container["stdin"] = extra["stdin"].clone();
        container["tty"] = extra["tty"].clone();
        scene.create(&scene.pod(name, &container, &json!({}))).await?;
        let pod = scene.phase(name, "Succeeded").await?;
        let lines = scene.log(&pod, "main", 0)?;
        anyhow::Ok(lines.iter().map(|line| line.trim().to_owned()).collect::<Vec<_>>().join(" "))
    };
    // Without standard input a read ends at once; with it, nothing comes, and the read times out (128 and more).
    assert_eq!(log("none", json!({"stdin": false, "tty": false})).await?, "1");
    let open = log("open", json!({"stdin": true, "tty": false})).await?;
    ensure!(open.parse::<i32>().is_ok_and(|code| code > 128), "{open}");
    let terminal = log("tty", json!({"stdin": true, "tty": true})).await?;
    ensure!(terminal.starts_with("in out "), "{terminal}");
    Ok(())
}

#[tokio::test]
async fn a_path_on_the_sealed_root_is_refused_in_words() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("sealed").await?;
    let spec = json!({"volumes": [{"name": "data", "emptyDir": {}}]});
    let container =
        |path: &str| shell("ls -d \"$1\"", &json!({"volumeMounts": [{"name": "data", "mountPath": path}]}));
    scene.create(&scene.pod("sealed", &container("/data"), &spec)).await?;
    let end = end_of(&scene.phase("sealed", "Failed").await?)?;
    assert_eq!(end.reason.as_deref(), Some("CreateContainerError"));
    scene
        .told("pod", "sealed", "volume mount /data cannot be had in the guest: macOS seals its root")
        .await?;
    let open = "registry.test/macos/open:1";
    scene.mac.add_image(open, &json!({"sealed": false}))?;
    let mut unsealed = container("/data");
    unsealed["image"] = json!(open);
    unsealed["command"] = json!(["/bin/ls", "-d", "/data"]);
    scene.create(&scene.pod("open", &unsealed, &spec)).await?;
    let pod = scene.phase("open", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["/data"]);
    Ok(())
}

#[tokio::test]
async fn a_newer_guest_agent_may_say_more() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("newer").await?;
    let image = "registry.test/macos/newer:1";
    scene.mac.add_image(image, &json!({"agentSaysStarted": true}))?;
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let extra = json!({"image": image, "readinessProbe": probe});
    scene.create(&scene.pod("newer", &shell("echo here; exit 5", &extra), &json!({}))).await?;
    let pod = scene.phase("newer", "Failed").await?;
    assert_eq!(end_of(&pod)?.exit_code, 5);
    assert_eq!(scene.log(&pod, "main", 0)?, ["here"]);
    scene.no_vms().await
}

#[tokio::test]
async fn what_the_guest_has_said_counts_though_its_agent_breaks_off() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("breaks-off").await?;
    let image = "registry.test/macos/breaks-off:1";
    scene.mac.add_image(image, &json!({"agentForgetsExit": true}))?;
    let extra = json!({"image": image, "terminationMessagePath": "/private/tmp/not/there/words"});
    let script = "echo here; printf bye >/private/tmp/not/there/words; exit 5";
    scene.create(&scene.pod("loud", &shell(script, &extra), &json!({}))).await?;
    let pod = scene.phase("loud", "Failed").await?;
    let end = end_of(&pod)?;
    assert_eq!((end.exit_code, end.message.as_deref()), (5, Some("bye")));
    assert_eq!(scene.log(&pod, "main", 0)?, ["here"]);
    // A hook that has succeeded has, and one that has failed has, too.
    let post_start = |script: &str| {
        let hook = json!({"exec": {"command": ["/bin/sh", "-c", script]}});
        json!({"image": image, "lifecycle": {"postStart": hook}})
    };
    let waits = "until [ -e /private/tmp/go ]; do sleep 0.05; done";
    let good = shell(waits, &post_start("touch /private/tmp/go"));
    scene.create(&scene.pod("good", &good, &json!({}))).await?;
    scene.phase("good", "Succeeded").await?;
    scene.create(&scene.pod("bad", &shell("sleep 1000", &post_start("exit 9")), &json!({}))).await?;
    let bad = end_of(&scene.phase("bad", "Failed").await?)?;
    assert_eq!(bad.message.as_deref(), Some("PostStartHookError: command `/bin/sh` exited with 9"));
    scene.told_as("bad", "FailedPostStartHook", "PostStartHook failed").await?;
    // One that has said nothing has run all the same, and once.
    let volumes = json!({"restartPolicy": "OnFailure", "volumes": [{"name": "trace", "emptyDir": {}}]});
    let mounts = json!([{"name": "trace", "mountPath": "/private/tmp/trace"}]);
    let extra = json!({"image": image, "volumeMounts": mounts});
    let script = "echo >>/private/tmp/trace/runs; [ $(wc -l </private/tmp/trace/runs) = 1 ]";
    scene.create(&scene.pod("silent", &shell(script, &extra), &volumes)).await?;
    let pod = scene.phase("silent", "Succeeded").await?;
    assert_eq!(end_of(&pod)?.exit_code, 0);
    scene.no_vms().await
}

#[tokio::test]
async fn every_container_can_have_a_volume_at_tmp() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("tmp").await?;
    let mounts = json!([{"name": "tmp", "mountPath": "/tmp"}]);
    // The first try fails, and the second one finds what it has left.
    let init = "[ -e /tmp/tried ] || { echo once >/tmp/tried; exit 1; }; echo twice >>/tmp/tried";
    let spec = json!({
        "restartPolicy": "OnFailure", "volumes": [{"name": "tmp", "emptyDir": {}}],
        "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["alias.test"]}],
        "initContainers": [{"name": "init", "image": crate::scene::IMAGE, "command": ["/bin/sh", "-c", init], "volumeMounts": mounts}],
    });
    let script = "cat /tmp/tried; grep -c alias.test /etc/hosts";
    scene.create(&scene.pod("tmp", &shell(script, &json!({"volumeMounts": mounts})), &spec)).await?;
    let pod = scene.phase("tmp", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["once", "twice", "1"]);
    Ok(())
}
