//! A container's environment, as the command in the guest sees it.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::scene::{PodView as _, Scene};

/// A value that is nowhere else, so that the test can look for it.
const SECRET: &str = "sesame-opens-nothing-but-this";

#[tokio::test]
async fn environment_has_variables_of_all_sources() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("variables").await?;
    let map = ["create", "configmap", "settings", "--from-literal=COLOUR=red", "--from-literal=SHAPE=round"];
    scene.kubectl.run(map).await?;
    scene.secret("keys", "token", SECRET).await?;
    scene.service("web", &json!({"selector": {"app": "web"}})).await?;
    let script = "echo \"$P_COLOUR $P_SHAPE $TOKEN $ME $NODE $APP $CORES $GREETING\"; echo \"$IP\"; \
                  echo \"$MEMORY $DISK ${ABSENT-unset}\"; \
                  [ -n \"$WEB_SERVICE_HOST\" ] && [ -n \"$KUBERNETES_SERVICE_HOST\" ] && echo linked";
    let resource = |fields: Value| json!({"resourceFieldRef": fields});
    let memory = json!({"containerName": "main", "resource": "requests.memory", "divisor": "1Mi"});
    let absent = json!({"configMapKeyRef": {"name": "settings", "key": "none", "optional": true}});
    let from = json!([
        {"prefix": "P_", "configMapRef": {"name": "settings"}}, {"secretRef": {"name": "none", "optional": true}},
    ]);
    scene
        .pod("all")
        .label("app", "demo")
        .sh(script)
        .container(json!({"envFrom": from}))
        .env_secret("TOKEN", "keys", "token")
        .env_field("ME", "metadata.name")
        .env_field("NODE", "spec.nodeName")
        .env_field("APP", "metadata.labels['app']")
        .env_field("IP", "status.podIP")
        .env_from("CORES", resource(json!({"resource": "requests.cpu", "divisor": "1m"})))
        .env_from("MEMORY", resource(memory))
        .env_from("DISK", resource(json!({"resource": "limits.ephemeral-storage", "divisor": "1Ki"})))
        .env_from("ABSENT", absent)
        .env("GREETING", "hello $(ME) $(NOBODY)")
        .resources(json!({
            "requests": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1Mi"},
            "limits": {"ephemeral-storage": "2Mi"},
        }))
        .create()
        .await?;
    let running = scene.until("all", "an address", |pod| pod.ip().is_some()).await?;
    let pod = scene.phase("all", "Succeeded").await?;
    assert_eq!(
        scene.log(&pod, "main", 0)?,
        [
            format!("red round {SECRET} all {} demo 250 hello all $(NOBODY)", scene.node),
            running.ip().unwrap_or_default().to_owned(),
            "64 2048 unset".to_owned(),
            "linked".to_owned(),
        ]
    );
    // The agent deletes the secrets of a Pod that has ended.
    scene.no_vms().await?;
    scene.nowhere_on_disk(SECRET).await
}

#[tokio::test]
async fn environment_has_all_downward_api_fields() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("fields").await?;
    scene.secret("keys", "TOKEN", SECRET).await?;
    let fields = [
        ("NAMESPACE", "metadata.namespace"),
        ("POD_UID", "metadata.uid"),
        ("NOTE", "metadata.annotations['note']"),
        ("ACCOUNT", "spec.serviceAccountName"),
        ("HOST", "status.hostIP"),
        ("HOSTS", "status.hostIPs"),
        ("IP", "status.podIP"),
        ("IPS", "status.podIPs"),
    ];
    let script = "echo $NAMESPACE $POD_UID $NOTE $ACCOUNT $HOST $HOSTS $S_TOKEN; [ $IP = $IPS ] && echo $CORES; \
                  echo ${KUBERNETES_SERVICE_HOST:+master} ${WEB_SERVICE_HOST:-unlinked}";
    let from = json!([{"prefix": "S_", "secretRef": {"name": "keys"}}]);
    scene.service("web", &json!({})).await?;
    let pod = scene.pod("fields").annotation("note", "well").sh(script).container(json!({"envFrom": from}));
    let pod = fields.iter().fold(pod, |pod, (name, path)| pod.env_field(name, path));
    // Without a limit it is what the Node has for Pods.
    let pod = pod.env_from("CORES", json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}));
    let pod = pod.spec(json!({"enableServiceLinks": false})).create_until("Succeeded").await?;
    let node = scene.nodes.get(&scene.node).await?;
    let cores = node.status.and_then(|status| status.allocatable?.get("cpu").cloned()).map(|cpu| cpu.0);
    let cores = cores.unwrap_or_default();
    let cores = cores.strip_suffix('m').map_or_else(|| format!("{cores}000"), str::to_owned);
    let (namespace, uid) = (scene.namespace(), pod.uid_of()?);
    assert_eq!(
        scene.log(&pod, "main", 0)?,
        [
            format!("{namespace} {uid} well default 127.0.0.1 127.0.0.1 {SECRET}"),
            cores,
            "master unlinked".to_owned(),
        ]
    );
    Ok(())
}

#[tokio::test]
async fn environment_has_names_that_no_shell_can_set() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("odd-names").await?;
    let (old, admin) = ("registry.test/macos/old:1", "registry.test/macos/admin:1");
    scene.mac.add_image(old, &json!({"agentVersion": "0.9.0"}))?;
    scene.mac.add_image(admin, &json!({"uid": 501}))?;
    scene.config_map("settings", "my.key", "it's here").await?;
    for (name, image, user) in [("old", old, json!({})), ("other", admin, json!({"runAsUser": 12345}))] {
        let log = scene
            .pod(name)
            .image(image)
            .command(["/usr/bin/env"])
            .env("UID", "my own")
            .container(json!({"envFrom": [{"configMapRef": {"name": "settings"}}]}))
            .security_context(user)
            .output()
            .await?;
        for line in ["my.key=it's here", "UID=my own"] {
            ensure!(log.iter().any(|said| said == line), "{name}: {log:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn pod_waits_for_missing_config_maps_and_secrets() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("missing").await?;
    let pod = scene.pod("heal").sh("echo $A$B").env_config_map("A", "late", "a");
    pod.env_secret("B", "later", "b").create().await?;
    let waits = async |words: &str| scene.waiting("heal", "CreateContainerConfigError", words).await;
    waits("configmap \"late\" not found").await?;
    scene.described("heal", "Error: configmap \"late\" not found").await?;
    scene.config_map("late", "z", "1").await?;
    waits("couldn't find key a in ConfigMap").await?;
    scene.config_map("late", "a", "1").await?;
    waits("secret \"later\" not found").await?;
    // The byte ff is no text.
    let raw =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "later"}, "data": {"b": "/w=="}});
    scene.apply(&raw).await?;
    waits(&format!("key b in Secret {}/later is not valid UTF-8", scene.namespace())).await?;
    scene.secret("later", "b", "2").await?;
    let pod = scene.phase("heal", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["12"]);
    Ok(())
}

#[tokio::test]
async fn secret_variable_is_in_no_argument_list_and_no_log() -> Result<()> {
    let (scene, agent) = Scene::with_agent("discreet").await?;
    scene.secret("keys", "token", SECRET).await?;
    // The shell reads each argument list itself: a program that looks for the secret would have it in its own list.
    let script = "for f in /proc/[0-9]*/cmdline; do a=$(tr '\\0' ' ' <\"$f\" 2>/dev/null); \
                  case $a in *\"$TOKEN\"*) echo \"$f\";; esac; done; echo looked for ${#TOKEN}";
    let output = scene.pod("discreet").sh(script).env_secret("TOKEN", "keys", "token").output().await?;
    assert_eq!(output, [format!("looked for {}", SECRET.len())]);
    ensure!(!agent.log()?.contains(SECRET), "the agent's log has it");
    ensure!(!scene.shim_log("discreet").await?.contains(SECRET), "the shim's log has it");
    ensure!(!scene.events().await?.contains(SECRET), "an Event has it");
    Ok(())
}

#[tokio::test]
async fn old_guest_agent_gets_variables_too() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("old-agent").await?;
    let image = "registry.test/macos/old:1";
    scene.mac.add_image(image, &json!({"agentVersion": "0.9.0"}))?;
    let output = scene
        .pod("old")
        .image(image)
        .sh("echo $WHO in $PWD")
        .env("WHO", "it's me")
        .container(json!({"workingDir": "/private/tmp"}))
        .output()
        .await?;
    assert_eq!(output, ["it's me in /private/tmp"]);
    Ok(())
}

#[tokio::test]
async fn boot_only_vm_reads_its_environment_and_writes_its_status() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("boot").await?;
    let image = "registry.test/macos/appliance:1";
    let shares = "/Volumes/My Shared Files";
    scene.config_map("settings", "COLOUR", "red").await?;
    scene.secret("keys", "token", SECRET).await?;
    let file = format!("'{shares}/pod_environment/environment'");
    // All variables but the address are there from the start.
    let script = format!(
        "[ -e {file} ] || exit; . {file}; early=\"$GREETING $COLOUR ${{#TOKEN}} $ME\"; \
         until grep -q ^URL= {file}; do sleep 0.05; done; . {file}; \
         printf '7\\n%s' \"$early; $GREETING $COLOUR $IP $URL\" >'{shares}/pod_status/status'; \
         (echo x >'{shares}/pod_environment/y') 2>/dev/null && echo writable >>'{shares}/pod_status/status'; \
         sudo shutdown -h now"
    );
    scene.mac.add_image(image, &json!({"boot": ["/bin/sh", "-c", script]}))?;
    let pod = scene
        .pod("boot")
        .image(image)
        .env("GREETING", "it's over")
        .env_secret("TOKEN", "keys", "token")
        .env_field("ME", "metadata.name")
        .env_field("IP", "status.podIP")
        .env("URL", "http://$(IP)/")
        .container(json!({"envFrom": [{"configMapRef": {"name": "settings"}}]}))
        .spec(json!({"hostname": "boot-0", "subdomain": "boots", "securityContext": {"runAsNonRoot": true}}))
        .create_until("Failed")
        .await?;
    let ip = pod.ip().unwrap_or_default();
    let said = format!("it's over red {} boot; it's over red {ip} http://{ip}/", SECRET.len());
    assert_eq!((pod.main().exit_code(), pod.main().message()), (Some(7), Some(said.as_str())));
    let words = "No effect on what a VM's image boots: hostname, subdomain, securityContext.runAsNonRoot. \
                 Of such fields, hooks and probes by exec heed the securityContext only";
    scene.event("boot", "LeftToImage", words).await?;
    scene.no_vms().await?;
    scene.nowhere_on_disk(SECRET).await
}

#[tokio::test]
async fn boot_only_vm_reads_its_volumes() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("boot-volume").await?;
    scene.config_map("settings", "mode", "fast").await?;
    let image = "registry.test/macos/reader:1";
    let shares = "/Volumes/My Shared Files";
    let script = format!(
        "printf '3\\n%s' \"$(cat '{shares}/settings/mode')\" >'{shares}/pod_status/status'; sudo shutdown -h now"
    );
    scene.mac.add_image(image, &json!({"boot": ["/bin/sh", "-c", script]}))?;
    let pod = scene
        .pod("reader")
        .image(image)
        .mount("settings", "/etc/settings")
        .volume("settings", json!({"configMap": {"name": "settings"}}))
        .create_until("Failed")
        .await?;
    assert_eq!((pod.main().exit_code(), pod.main().message()), (Some(3), Some("fast")));
    Ok(())
}

#[tokio::test]
async fn agent_does_not_follow_a_hostile_status_file() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("status").await?;
    let status = "/Volumes/My Shared Files/pod_status/status";
    for (name, trick) in [
        ("link", "ln -s /etc/passwd"),
        ("pipe", "mkfifo"),
        ("huge", "dd if=/dev/zero bs=1048576 count=64 2>/dev/null of="),
    ] {
        let image = format!("registry.test/macos/{name}:1");
        let separator = if trick.ends_with('=') { "" } else { " " };
        let script = format!("{trick}{separator}'{status}'; sudo shutdown -h now");
        scene.mac.add_image(&image, &json!({"boot": ["/bin/sh", "-c", script]}))?;
        let pod = scene.pod(name).image(image).create_until("Succeeded").await?;
        assert_eq!(pod.main().message(), None, "{name}");
        scene.delete(name).await?;
    }
    scene.nothing_left().await
}
