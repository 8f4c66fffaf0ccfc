//! A container's environment, as the command in the guest sees it.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, state_of};

/// A value that is nowhere else, so that it can be looked for.
const SECRET: &str = "sesame-opens-nothing-but-this";

fn object(kind: &str, name: &str, data: &Value) -> String {
    let field = if kind == "Secret" { "stringData" } else { "data" };
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, field: data}).to_string()
}

#[tokio::test]
async fn variables_come_from_everywhere() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("variables").await?;
    scene
        .kubectl
        .apply(&object("ConfigMap", "settings", &json!({"COLOUR": "red", "SHAPE": "round"})))
        .await?;
    scene.kubectl.apply(&object("Secret", "keys", &json!({"token": SECRET}))).await?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "web"}},
    });
    scene.kubectl.apply(&service.to_string()).await?;
    let from = |source: Value| json!({"valueFrom": source});
    let variable = |name: &str, mut source: Value| {
        source["name"] = json!(name);
        source
    };
    let field = |path: &str| from(json!({"fieldRef": {"fieldPath": path}}));
    let script = "echo \"$P_COLOUR $P_SHAPE $TOKEN $ME $NODE $APP $CORES $GREETING\"; echo \"$IP\"; \
                  echo \"$MEMORY $DISK ${ABSENT-unset}\"; \
                  [ -n \"$WEB_SERVICE_HOST\" ] && [ -n \"$KUBERNETES_SERVICE_HOST\" ] && echo linked";
    let container = json!({
        "command": ["/bin/sh", "-c", script],
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "settings"}}, {"secretRef": {"name": "none", "optional": true}}],
        "env": [
            variable("TOKEN", from(json!({"secretKeyRef": {"name": "keys", "key": "token"}}))),
            variable("ME", field("metadata.name")),
            variable("NODE", field("spec.nodeName")),
            variable("APP", field("metadata.labels['app']")),
            variable("IP", field("status.podIP")),
            variable("CORES", from(json!({"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}))),
            variable("MEMORY", from(json!({"resourceFieldRef": {
                "containerName": "main", "resource": "requests.memory", "divisor": "1Mi",
            }}))),
            variable("DISK", from(json!({"resourceFieldRef": {"resource": "limits.ephemeral-storage", "divisor": "1Ki"}}))),
            variable("ABSENT", from(json!({"configMapKeyRef": {"name": "settings", "key": "none", "optional": true}}))),
            variable("GREETING", json!({"value": "hello $(ME) $(NOBODY)"})),
        ],
        "resources": {
            "requests": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1Mi"},
            "limits": {"ephemeral-storage": "2Mi"},
        },
    });
    let mut pod = scene.pod("all", &container, &json!({}));
    pod["metadata"]["labels"] = json!({"app": "demo"});
    scene.create(&pod).await?;
    let running = wait::until(&scene.pods, "all", "an address", DEADLINE, |pod| {
        pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some())
    });
    let address = running.await?.status.and_then(|status| status.pod_ip).unwrap_or_default();
    let pod = scene.phase("all", "Succeeded").await?;
    let log = scene.log(&pod, "main", 0)?;
    assert_eq!(
        log,
        [
            format!("red round {SECRET} all {} demo 250 hello all $(NOBODY)", scene.node),
            address,
            "64 2048 unset".to_owned(),
            "linked".to_owned(),
        ]
    );
    // A Pod that is over has no use for its secrets, nor has the disk.
    scene.no_vms().await?;
    scene.nowhere_on_disk(SECRET).await
}

#[tokio::test]
async fn all_that_the_pod_knows_of_itself_can_be_a_variable() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("fields").await?;
    scene.kubectl.apply(&object("Secret", "keys", &json!({"TOKEN": SECRET}))).await?;
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
    let mut env: Vec<Value> = fields
        .iter()
        .map(|(name, path)| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}))
        .collect();
    // Without a limit it is what the Node has for Pods.
    let cores = json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}});
    env.push(json!({"name": "CORES", "valueFrom": cores}));
    let script = "echo $NAMESPACE $POD_UID $NOTE $ACCOUNT $HOST $HOSTS $S_TOKEN; [ $IP = $IPS ] && echo $CORES; \
                  echo ${KUBERNETES_SERVICE_HOST:+master} ${WEB_SERVICE_HOST:-unlinked}";
    let from = json!([{"prefix": "S_", "secretRef": {"name": "keys"}}]);
    let container = json!({"command": ["/bin/sh", "-c", script], "env": env, "envFrom": from});
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]},
    });
    scene.kubectl.apply(&service.to_string()).await?;
    let mut pod = scene.pod("fields", &container, &json!({"enableServiceLinks": false}));
    pod["metadata"]["annotations"] = json!({"note": "well"});
    scene.create(&pod).await?;
    let pod = scene.phase("fields", "Succeeded").await?;
    let node = scene.nodes.get(&scene.node).await?;
    let cores = node.status.and_then(|status| status.allocatable?.get("cpu").cloned()).map(|cpu| cpu.0);
    let cores = cores.unwrap_or_default();
    let cores = cores.strip_suffix('m').map_or_else(|| format!("{cores}000"), str::to_owned);
    let (namespace, uid) = (scene.namespace(), pod.metadata.uid.clone().unwrap_or_default());
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
async fn a_name_that_no_shell_can_set_is_one_all_the_same() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("odd-names").await?;
    let (old, admin) = ("registry.test/macos/old:1", "registry.test/macos/admin:1");
    scene.mac.add_image(old, &json!({"agentVersion": "0.9.0"}))?;
    scene.mac.add_image(admin, &json!({"uid": 501}))?;
    scene.kubectl.apply(&object("ConfigMap", "settings", &json!({"my.key": "it's here"}))).await?;
    for (name, image, user) in [("old", old, json!({})), ("other", admin, json!({"runAsUser": 12345}))] {
        let container = json!({
            "image": image, "securityContext": user, "command": ["/usr/bin/env"],
            "envFrom": [{"configMapRef": {"name": "settings"}}], "env": [{"name": "UID", "value": "my own"}],
        });
        scene.create(&scene.pod(name, &container, &json!({}))).await?;
        let log = scene.log(&scene.phase(name, "Succeeded").await?, "main", 0)?;
        for line in ["my.key=it's here", "UID=my own"] {
            ensure!(log.iter().any(|said| said == line), "{name}: {log:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_is_missing_is_told_and_heals() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("missing").await?;
    let env = json!([
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "a"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "later", "key": "b"}}},
    ]);
    let container = json!({"command": ["/bin/sh", "-c", "echo $A$B"], "env": env});
    scene.create(&scene.pod("heal", &container, &json!({}))).await?;
    let waits = async |words: &str| {
        let waits = wait::until(&scene.pods, "heal", words, DEADLINE, |pod| {
            let state = state_of(pod).and_then(|state| state.waiting);
            state.is_some_and(|waiting| {
                waiting.reason.as_deref() == Some("CreateContainerConfigError")
                    && waiting.message.is_some_and(|message| message.contains(words))
            })
        });
        waits.await.map(drop)
    };
    waits("configmap \"late\" not found").await?;
    scene.told("pod", "heal", "Error: configmap \"late\" not found").await?;
    scene.kubectl.apply(&object("ConfigMap", "late", &json!({"z": "1"}))).await?;
    waits("couldn't find key a in ConfigMap").await?;
    scene.kubectl.apply(&object("ConfigMap", "late", &json!({"a": "1"}))).await?;
    waits("secret \"later\" not found").await?;
    // The byte ff is no text.
    let raw =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "later"}, "data": {"b": "/w=="}});
    scene.kubectl.apply(&raw.to_string()).await?;
    waits(&format!("key b in Secret {}/later is not valid UTF-8", scene.namespace())).await?;
    scene.kubectl.apply(&object("Secret", "later", &json!({"b": "2"}))).await?;
    let pod = scene.phase("heal", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["12"]);
    Ok(())
}

#[tokio::test]
async fn a_secret_is_in_no_list_of_arguments_and_no_log() -> Result<()> {
    let (scene, agent) = Scene::with_agent("discreet").await?;
    scene.kubectl.apply(&object("Secret", "keys", &json!({"token": SECRET}))).await?;
    // The shell reads each list itself: a program that looks for the word would have it in its own.
    let script = "for f in /proc/[0-9]*/cmdline; do a=$(tr '\\0' ' ' <\"$f\" 2>/dev/null); \
                  case $a in *\"$TOKEN\"*) echo \"$f\";; esac; done; echo looked for ${#TOKEN}";
    let container = json!({
        "command": ["/bin/sh", "-c", script],
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}],
    });
    scene.create(&scene.pod("discreet", &container, &json!({}))).await?;
    let pod = scene.phase("discreet", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, [format!("looked for {}", SECRET.len())]);
    ensure!(!agent.log()?.contains(SECRET), "the agent's log has it");
    ensure!(!scene.shim_log("discreet").await?.contains(SECRET), "the shim's log has it");
    let told = scene.kubectl.run(["get", "events", "--output", "json"]).await?;
    ensure!(!told.contains(SECRET), "an Event has it");
    Ok(())
}

#[tokio::test]
async fn a_guest_agent_that_ignores_variables_is_no_obstacle() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("old-agent").await?;
    let image = "registry.test/macos/old:1";
    scene.mac.add_image(image, &json!({"agentVersion": "0.9.0"}))?;
    let container = json!({
        "image": image, "workingDir": "/private/tmp",
        "command": ["/bin/sh", "-c", "echo $WHO in $PWD"],
        "env": [{"name": "WHO", "value": "it's me"}],
    });
    scene.create(&scene.pod("old", &container, &json!({}))).await?;
    let pod = scene.phase("old", "Succeeded").await?;
    assert_eq!(scene.log(&pod, "main", 0)?, ["it's me in /private/tmp"]);
    Ok(())
}

#[tokio::test]
async fn a_vm_that_only_boots_finds_its_environment_and_says_how_it_ended() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("boot").await?;
    let image = "registry.test/macos/appliance:1";
    let shares = "/Volumes/My Shared Files";
    scene.kubectl.apply(&object("ConfigMap", "settings", &json!({"COLOUR": "red"}))).await?;
    scene.kubectl.apply(&object("Secret", "keys", &json!({"token": SECRET}))).await?;
    let file = format!("'{shares}/pod_environment/environment'");
    // All but the address is there from the start.
    let script = format!(
        "[ -e {file} ] || exit; . {file}; early=\"$GREETING $COLOUR ${{#TOKEN}} $ME\"; \
         until grep -q ^URL= {file}; do sleep 0.05; done; . {file}; \
         printf '7\\n%s' \"$early; $GREETING $COLOUR $IP $URL\" >'{shares}/pod_status/status'; \
         (echo x >'{shares}/pod_environment/y') 2>/dev/null && echo writable >>'{shares}/pod_status/status'; \
         sudo shutdown -h now"
    );
    scene.mac.add_image(image, &json!({"boot": ["/bin/sh", "-c", script]}))?;
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let container = json!({
        "image": image,
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "env": [
            {"name": "GREETING", "value": "it's over"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
            {"name": "ME", "valueFrom": field("metadata.name")},
            {"name": "IP", "valueFrom": field("status.podIP")},
            {"name": "URL", "value": "http://$(IP)/"},
        ],
    });
    let spec = json!({"hostname": "boot-0", "subdomain": "boots", "securityContext": {"runAsNonRoot": true}});
    scene.create(&scene.pod("boot", &container, &spec)).await?;
    let pod = scene.phase("boot", "Failed").await?;
    let end = state_of(&pod).and_then(|state| state.terminated);
    let end = end.map(|end| (end.exit_code, end.message.unwrap_or_default()));
    let ip = pod.status.and_then(|status| status.pod_ip).unwrap_or_default();
    let said = format!("it's over red {} boot; it's over red {ip} http://{ip}/", SECRET.len());
    assert_eq!(end, Some((7, said)));
    let words = "No effect on what a VM's image boots: hostname, subdomain, securityContext.runAsNonRoot. \
                 Of such fields, hooks and probes by exec heed the securityContext only";
    scene.told_as("boot", "LeftToImage", words).await?;
    scene.no_vms().await?;
    scene.nowhere_on_disk(SECRET).await
}

#[tokio::test]
async fn a_vm_that_only_boots_finds_its_volumes() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("boot-volume").await?;
    scene.kubectl.apply(&object("ConfigMap", "settings", &json!({"mode": "fast"}))).await?;
    let image = "registry.test/macos/reader:1";
    let shares = "/Volumes/My Shared Files";
    let script = format!(
        "printf '3\\n%s' \"$(cat '{shares}/settings/mode')\" >'{shares}/pod_status/status'; sudo shutdown -h now"
    );
    scene.mac.add_image(image, &json!({"boot": ["/bin/sh", "-c", script]}))?;
    let mounts = json!([{"name": "settings", "mountPath": "/etc/settings"}]);
    let spec = json!({"volumes": [{"name": "settings", "configMap": {"name": "settings"}}]});
    scene.create(&scene.pod("reader", &json!({"image": image, "volumeMounts": mounts}), &spec)).await?;
    let end = state_of(&scene.phase("reader", "Failed").await?).and_then(|state| state.terminated);
    let end = end.map(|end| (end.exit_code, end.message.unwrap_or_default()));
    assert_eq!(end, Some((3, "fast".to_owned())));
    Ok(())
}

#[tokio::test]
async fn a_hostile_status_file_is_not_followed() -> Result<()> {
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
        scene.create(&scene.pod(name, &json!({"image": image}), &json!({}))).await?;
        let pod = scene.phase(name, "Succeeded").await?;
        let end = state_of(&pod).and_then(|state| state.terminated);
        assert_eq!(end.and_then(|end| end.message), None, "{name}");
        scene.kubectl.run(["delete", "pod", name]).await?;
    }
    scene.nothing_left().await
}
