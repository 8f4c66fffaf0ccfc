//! How the shim sets a guest up before the command starts (host name, DNS, paths), and what it reads from the guest afterwards.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::scene::{PodBuilder, PodView as _, Scene, UNTIL_FINISHED, every_second, exec};

#[tokio::test]
async fn guest_has_the_pods_host_names() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("names").await?;
    let script =
        "hostname; grep -E 'foo.test|db-0' /etc/hosts | tr '\\t' ' ' | sed \"s/$TART_SIM_ADDRESS/ME/\"";
    let spec = json!({
        "hostname": "db-0", "subdomain": "db",
        "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["foo.test", "bar.test"]}],
    });
    let output = scene.pod("names").sh(script).spec(spec).output().await?;
    let namespace = scene.namespace();
    let own = format!("ME db-0.db.{namespace}.svc.cluster.local db-0");
    assert_eq!(output, ["db-0".to_owned(), own, "10.1.2.3 foo.test bar.test".to_owned()]);
    let spec = json!({"subdomain": "db", "setHostnameAsFQDN": true});
    let output = scene.pod("full").sh("hostname").spec(spec).output().await?;
    assert_eq!(output, [format!("full.db.{namespace}.svc.cluster.local")]);
    let script = "hostname; grep over.ride /etc/hosts | sed \"s/$TART_SIM_ADDRESS/ME/\"";
    let spec = json!({"hostname": "db-0", "subdomain": "db", "hostnameOverride": "over.ride.test"});
    let output = scene.pod("chosen").sh(script).spec(spec).output().await?;
    assert_eq!(output, ["over.ride.test", "ME\tover.ride.test"]);
    Ok(())
}

#[tokio::test]
async fn guest_has_the_pods_dns_config() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("lookup").await?;
    let image = "registry.test/macos/lookup:1";
    // As in real images, only root can change the DNS settings.
    let etc = scene.mac.add_image(image, &json!({"uid": 501}))?.join("rootfs/private/etc");
    std::fs::create_dir_all(&etc)?;
    std::fs::write(etc.join("resolv.conf"), "search lan\nnameserver 192.0.2.1\n")?;
    let pod = |name: &str| scene.pod(name).image(image).sh("grep -v '^#' /etc/resolv.conf");
    let looked_up = async |name: &str, spec: Value| pod(name).spec(spec).output().await;
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

    // The agent refuses what a guest cannot do.
    let refused = async |pod: PodBuilder<'_>, words: &str| {
        let name = pod.name().to_owned();
        pod.create_until("Failed").await?;
        scene.described(&name, words).await
    };
    let of_host = json!({"dnsPolicy": "ClusterFirstWithHostNet"});
    let words =
        "spec.dnsPolicy: can only be ClusterFirst or Default or None: a VM cannot share the host's network";
    refused(pod("of-host").spec(of_host), words).await?;
    let options = json!({"dnsConfig": {"options": [{"name": "ndots", "value": "2"}]}});
    let words = "spec.dnsConfig.options: macOS looks names up by rules of its own";
    refused(pod("options").spec(options), words).await?;
    let dns = json!({"dnsPolicy": "None", "dnsConfig": config});
    let words = "spec.dnsConfig: needs a container with a command";
    refused(scene.pod("boots").spec(dns.clone()), words).await?;
    let locked = "registry.test/macos/locked:1";
    scene.mac.add_image(locked, &json!({"uid": 501, "sudo": false}))?;
    let words = "the guest cannot be given the Pod's dnsConfig: networksetup refuses it for Ethernet, or the guest's user may not use sudo without a password";
    let pod = scene.pod("locked").image(locked).sh("true").spec(dns).spec(json!({"hostname": "x"}));
    refused(pod, words).await
}

#[tokio::test]
async fn termination_message_comes_from_a_file_or_the_log() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("words").await?;
    let words = "/private/tmp/words";
    let message = async |pod: PodBuilder<'_>, phase: &str| {
        anyhow::Ok(pod.create_until(phase).await?.main().end()?.message)
    };
    let file = scene.pod("file").sh("printf DONE >/private/tmp/words").message_path(words);
    assert_eq!(message(file, "Succeeded").await?.as_deref(), Some("DONE"));
    let long = scene.pod("long").sh("yes | head -c 100000 >/private/tmp/words").message_path(words);
    assert_eq!(message(long, "Succeeded").await?.map(|message| message.len()), Some(4096));
    let fallback = json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
    let log = scene.pod("log").sh("echo all is lost; exit 1").container(fallback.clone());
    assert_eq!(message(log, "Failed").await?.as_deref(), Some("all is lost\n"));
    let fine = scene.pod("fine").sh("echo all is well").container(fallback);
    assert_eq!(message(fine, "Succeeded").await?, None);
    // The default path is in a directory where macOS takes no file.
    let default = "printf DONE >/dev/termination-log";
    assert_eq!(message(scene.pod("usual").sh(default), "Succeeded").await?.as_deref(), Some("DONE"));
    let stranger = scene.pod("stranger").sh("printf DONE >/dev/my-words").message_path("/dev/my-words");
    let stranger = stranger.security_context(json!({"runAsUser": 10000}));
    assert_eq!(message(stranger, "Succeeded").await?.as_deref(), Some("DONE"));
    // Without sudo the shim cannot make a link there.
    let locked = "registry.test/macos/speechless:1";
    scene.mac.add_image(locked, &json!({"uid": 501, "sudo": false}))?;
    let tokenless = json!({"automountServiceAccountToken": false});
    let pod = scene.pod("locked").image(locked).sh(default).spec(tokenless);
    assert_eq!(message(pod, "Failed").await?, None);
    scene.described("locked", "no termination message can be left at /dev/termination-log").await?;
    // An init container before the main one, in the same guest.
    let pod = scene.pod("two").sh("true").init_sh("first", "printf first >/dev/termination-log");
    let pod = pod.create_until("Succeeded").await?;
    assert_eq!(pod.main().end()?.message, None);
    assert_eq!(pod.init().message(), Some("first"));
    Ok(())
}

#[tokio::test]
async fn exit_code_of_a_killed_command_has_the_signal() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("signals").await?;
    for (name, code) in [("term", 143), ("kill", 137), ("segv", 139)] {
        // Kubernetes takes `$$` for a `$`.
        let script = format!("kill -{} $$$$", name.to_uppercase());
        let pod = scene.pod(name).sh(script).create_until("Failed").await?;
        assert_eq!(pod.main().exit_code(), Some(code), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn background_process_of_the_command_does_not_delay_its_end() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("daemon").await?;
    let pod = scene.pod("daemon").sh("sleep 1000 & echo left it; exit 4").create_until("Failed").await?;
    assert_eq!(pod.main().exit_code(), Some(4));
    assert_eq!(scene.log(&pod, "main", 0)?, ["left it"]);
    scene.no_vms().await
}

#[tokio::test]
async fn exit_code_is_known_after_the_command_killed_its_waiter() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("rampage").await?;
    // The script kills the process that waits for its end, and its child holds its output open. The brackets keep the pattern from
    // matching this script itself.
    let script = "sleep 1000 & until p=$(pgrep -f 'read -r _ [<]'); do sleep 0.1; done; kill -9 $p; exit 6";
    let pod = scene.pod("rampage").sh(script).create_until("Failed").await?;
    assert_eq!(pod.main().exit_code(), Some(6));
    scene.no_vms().await
}

#[tokio::test]
async fn command_has_standard_input_and_a_terminal_on_request() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("terminal").await?;
    let script = "[ -t 0 ] && echo in; [ -t 1 ] && echo out; read -t 1 line; echo $?";
    let log = async |name: &str, fields: Value| {
        let lines = scene.pod(name).command(["/bin/bash", "-c", script]).container(fields).output().await?;
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
async fn mount_on_the_sealed_root_is_refused() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("sealed").await?;
    let pod = |name: &str| scene.pod(name).command(["/bin/ls", "-d", "/data"]).empty_dir("data", "/data");
    let sealed = pod("sealed").create_until("Failed").await?;
    assert_eq!(sealed.main().reason(), Some("CreateContainerError"));
    scene.described("sealed", "volume mount /data cannot be had in the guest: macOS seals its root").await?;
    let open = "registry.test/macos/open:1";
    scene.mac.add_image(open, &json!({"sealed": false}))?;
    assert_eq!(pod("open").image(open).output().await?, ["/data"]);
    Ok(())
}

#[tokio::test]
async fn unknown_messages_of_a_newer_guest_agent_are_ignored() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("newer").await?;
    let image = "registry.test/macos/newer:1";
    scene.mac.add_image(image, &json!({"agentSaysStarted": true}))?;
    let probe = every_second(json!({"exec": {"command": ["true"]}}));
    let pod = scene.pod("newer").image(image).sh("echo here; exit 5").readiness(probe);
    let pod = pod.create_until("Failed").await?;
    assert_eq!(pod.main().exit_code(), Some(5));
    assert_eq!(scene.log(&pod, "main", 0)?, ["here"]);
    scene.no_vms().await
}

#[tokio::test]
async fn results_count_when_the_guest_agent_breaks_off() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("breaks-off").await?;
    let image = "registry.test/macos/breaks-off:1";
    scene.mac.add_image(image, &json!({"agentForgetsExit": true}))?;
    let script = "echo here; printf bye >/private/tmp/not/there/words; exit 5";
    let pod = scene.pod("loud").image(image).sh(script).message_path("/private/tmp/not/there/words");
    let pod = pod.create_until("Failed").await?;
    assert_eq!((pod.main().exit_code(), pod.main().message()), (Some(5), Some("bye")));
    assert_eq!(scene.log(&pod, "main", 0)?, ["here"]);
    // The results of hooks count, too.
    let good = scene.pod("good").image(image).sh(UNTIL_FINISHED).post_start(exec("touch /private/tmp/go"));
    good.create_until("Succeeded").await?;
    let bad = scene.pod("bad").image(image).sh("sleep 1000").post_start(exec("exit 9"));
    let bad = bad.create_until("Failed").await?;
    assert_eq!(bad.main().message(), Some("PostStartHookError: command `/bin/sh` exited with 9"));
    scene.event("bad", "FailedPostStartHook", "PostStartHook failed").await?;
    // A command without output runs once.
    let script = "echo >>/private/tmp/trace/runs; [ $(wc -l </private/tmp/trace/runs) = 1 ]";
    let pod = scene
        .pod("silent")
        .image(image)
        .sh(script)
        .empty_dir("trace", "/private/tmp/trace")
        .restart_policy("OnFailure")
        .create_until("Succeeded")
        .await?;
    assert_eq!(pod.main().exit_code(), Some(0));
    scene.no_vms().await
}

#[tokio::test]
async fn every_container_can_mount_a_volume_at_tmp() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("tmp").await?;
    // The first try fails, and the second one finds the file of the first.
    let init = "[ -e /tmp/tried ] || { echo once >/tmp/tried; exit 1; }; echo twice >>/tmp/tried";
    let script = "cat /tmp/tried; grep -c alias.test /etc/hosts";
    let mounts = json!([{"name": "tmp", "mountPath": "/tmp"}]);
    let output = scene
        .pod("tmp")
        .sh(script)
        .empty_dir("tmp", "/tmp")
        .init_container("init", json!({"command": ["/bin/sh", "-c", init], "volumeMounts": mounts}))
        .restart_policy("OnFailure")
        .spec(json!({"hostAliases": [{"ip": "10.1.2.3", "hostnames": ["alias.test"]}]}))
        .output()
        .await?;
    assert_eq!(output, ["once", "twice", "1"]);
    Ok(())
}
