use super::*;
use crate::testing::{from_json, merged};
use serde_json::{Value, json};

fn pod(spec: &Value) -> Pod {
    from_json(json!({"spec": spec}))
}

fn with_container(extra: &Value) -> Pod {
    let container = merged(&json!({"name": "main", "image": "registry.test/macos:15"}), extra);
    pod(&json!({"containers": [container]}))
}

/// A Pod with one container that only boots, and these fields.
fn boot_only(fields: &Value) -> Pod {
    pod(&merged(&json!({"containers": [{"name": "a", "image": "i"}]}), fields))
}

#[test]
fn a_plain_pod_is_a_vm_that_boots() {
    let plan = admit(&with_container(&json!({}))).unwrap();
    assert_eq!((plan.image.as_str(), plan.size), ("registry.test/macos:15", Size::default()));
}

#[test]
fn an_image_that_is_spelt_in_another_way_is_refused() {
    let refusal = |image: &str| admit(&with_container(&json!({"image": image}))).map_err(|why| why.message);
    assert!(refusal("registry.test/macos:Sequoia").is_ok());
    for image in ["registry.test/MacOS:15", "Registry.test/macos:15", "registry.test//macos:15"] {
        let why = refusal(image).unwrap_err();
        assert!(why.starts_with("spec.containers[0].image: ") && why.contains("small letters"), "{why}");
    }
    assert!(refusal("registry.test/macos@sha256:0").unwrap_err().contains("64 digits"));
}

#[test]
fn limits_else_requests_size_the_vm() {
    let size = |resources: Value| admit(&with_container(&json!({"resources": resources}))).unwrap().size;
    let of = |cpu, memory_mib| Size { cpu, memory_mib };
    assert_eq!(size(json!({"requests": {"cpu": "2", "memory": "4Gi"}})), of(Some(2), Some(4096)));
    assert_eq!(size(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "3500m"}})), of(Some(4), None));
}

#[test]
fn the_strictest_pull_policy_of_all_containers_counts() {
    let pull = |init: &str, main: &str| {
        let container = |name: &str, policy: &str| json!({"name": name, "image": "i", "command": ["true"], "imagePullPolicy": policy});
        let spec =
            json!({"initContainers": [container("init", init)], "containers": [container("main", main)]});
        admit(&pod(&spec)).unwrap().pull
    };
    assert_eq!(pull("IfNotPresent", "IfNotPresent"), PullPolicy::IfNotPresent);
    assert_eq!(pull("Always", "IfNotPresent"), PullPolicy::Always);
    assert_eq!(pull("IfNotPresent", "Always"), PullPolicy::Always);
    assert_eq!(pull("Never", "IfNotPresent"), PullPolicy::Never);
    assert_eq!(pull("Never", "Always"), PullPolicy::Always);
}

#[test]
fn each_vm_is_read_from_its_own_containers() {
    let container = |name: &str, image: &str, policy: &str, memory: &str| {
        json!({
            "name": name, "image": image, "command": ["true"], "imagePullPolicy": policy,
            "resources": {"limits": {"memory": memory}}, "ports": [{"containerPort": 80, "hostPort": 8080}],
        })
    };
    let init = [container("one", "b", "Always", "8Gi"), container("two", "a", "Never", "2Gi")];
    let pod =
        pod(&json!({"initContainers": init, "containers": [container("main", "a", "IfNotPresent", "4Gi")]}));
    let main = admit(&pod).unwrap();
    assert_eq!((main.image.as_str(), main.pull, main.size.memory_mib), ("a", PullPolicy::Never, Some(4096)));
    let [own, _] = Segment::all(pod.spec.as_ref().unwrap()).try_into().unwrap();
    let own = read_segment(&pod, &own).unwrap();
    assert_eq!((own.image.as_str(), own.pull, own.size.memory_mib), ("b", PullPolicy::Always, Some(8192)));
    assert_eq!((own.container.as_str(), own.init.len(), own.memory_is_limit), ("main", 2, true));
    // Ports of the host lead to the main container.
    assert_eq!((own.host_ports.len(), main.host_ports.len()), (0, 1));
}

#[test]
fn init_containers_with_an_image_of_their_own_are_admitted() {
    let refusal = |init: Value, main: Value| {
        let init = merged(&json!({"name": "init", "image": "b", "command": ["true"]}), &init);
        let main = merged(&json!({"name": "main", "image": "a"}), &main);
        admit(&pod(&json!({"initContainers": [init], "containers": [main]}))).map_err(|why| why.message)
    };
    assert!(refusal(json!({}), json!({"command": ["true"]})).is_ok());
    assert!(refusal(json!({}), json!({})).is_ok(), "the main container's VM only boots");
    for (init, field) in [
        (json!({"image": "a"}), "spec.initContainers: "),
        (json!({"command": []}), "spec.initContainers[0].command: "),
        (json!({"image": "registry.test/MacOS:15"}), "spec.initContainers[0].image: "),
        (json!({"image": ""}), "spec.initContainers[0].image: "),
        (json!({"resources": {"limits": {"cpu": "99E"}}}), "spec.initContainers[0].resources.cpu: "),
    ] {
        let why = refusal(init, json!({})).unwrap_err();
        assert!(why.starts_with(field), "{why}");
    }
}

#[test]
fn fields_that_need_a_command_are_refused_for_a_vm_that_only_boots() {
    let own = [
        json!({"workingDir": "/tmp"}),
        json!({"stdin": true}),
        json!({"tty": true}),
        json!({"terminationMessagePath": "/tmp/last-words"}),
        json!({"terminationMessagePolicy": "FallbackToLogsOnError"}),
    ];
    for field in own {
        let refusal = admit(&with_container(&field)).unwrap_err();
        assert!(refusal.message.contains("needs a container with a command"), "{refusal:?}");
        let with_command = with_container(&merged(&field, &json!({"command": ["true"]})));
        assert_eq!(admit(&with_command).err(), None, "{field}");
    }
    let whole = [
        json!({"setHostnameAsFQDN": true}),
        json!({"hostnameOverride": "c.test"}),
        json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.53"]}}),
    ];
    for field in whole {
        assert!(admit(&boot_only(&field)).is_err(), "{field}");
    }
    // The API server and StatefulSets fill these in.
    let container = json!({"name": "a", "image": "i", "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File", "securityContext": {}});
    let filled =
        json!({"containers": [container], "securityContext": {}, "hostname": "a-0", "subdomain": "a"});
    assert_eq!(admit(&pod(&filled)).err(), None);
}

/// The Pod Security Standard `restricted` wants `runAsNonRoot` of every Pod.
#[test]
fn a_vm_that_only_boots_may_name_a_user_for_its_hooks_and_probes() {
    let commands = [
        json!({"lifecycle": {"postStart": {"exec": {"command": ["true"]}}}}),
        json!({"lifecycle": {"preStop": {"exec": {"command": ["true"]}}}}),
        json!({"readinessProbe": {"exec": {"command": ["true"]}}}),
    ];
    let users = [json!({"runAsUser": 501}), json!({"runAsGroup": 20}), json!({"runAsNonRoot": true})];
    let others = json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
        "readinessProbe": {"tcpSocket": {"port": 22}}});
    for user in users {
        let admitted = |container: &Value, of_pod: bool| {
            let container = merged(container, &json!({"name": "a", "image": "i"}));
            let context = json!({"securityContext": user});
            admit(&if of_pod {
                pod(&merged(&context, &json!({"containers": [container]})))
            } else {
                pod(&json!({"containers": [merged(&container, &context)]}))
            })
        };
        for of_pod in [false, true] {
            for container in commands.iter().chain([&others]) {
                assert_eq!(admitted(container, of_pod).err(), None, "{user} {container}");
            }
        }
    }
}

#[test]
fn a_vm_that_only_boots_may_name_groups_only_for_its_hooks_and_probes() {
    let groups = json!({"supplementalGroups": [7], "supplementalGroupsPolicy": "Strict"});
    let refusal = admit(&boot_only(&json!({"securityContext": groups}))).unwrap_err();
    assert!(refusal.message.contains("needs a container with a command"), "{refusal:?}");
    let probe = json!({"exec": {"command": ["true"]}});
    let container = json!({"name": "a", "image": "i", "readinessProbe": probe});
    assert_eq!(admit(&pod(&json!({"containers": [container], "securityContext": groups}))).err(), None);
}

#[test]
fn a_request_is_not_taken_for_a_limit() {
    let is_limit = |resources: Value| {
        let plan = admit(&with_container(&json!({"resources": resources}))).unwrap();
        (plan.cpu_is_limit, plan.memory_is_limit)
    };
    assert_eq!(is_limit(json!({"requests": {"cpu": "2"}})), (false, false));
    assert_eq!(is_limit(json!({"limits": {"ephemeral-storage": "1Gi"}})), (false, false));
    // Fields that many Pods set.
    let one = json!({"requests": {"cpu": "100m", "memory": "4Gi"}, "limits": {"memory": "4Gi"}});
    assert_eq!(is_limit(one), (false, true));
    assert_eq!(is_limit(json!({"limits": {"cpu": "4", "memory": "4Gi"}})), (true, true));
}

#[test]
fn an_admitted_pod_is_read_without_checks() {
    let refused = with_container(&json!({"securityContext": {"privileged": true}}));
    assert!(admit(&refused).is_err());
    assert_eq!(read(&refused).unwrap().image, "registry.test/macos:15");
}

#[test]
fn host_ports_are_read() {
    let ports = json!([
        {"containerPort": 22},
        {"containerPort": 80, "hostPort": 8080},
        {"containerPort": 53, "hostPort": 5353, "protocol": "UDP", "hostIP": "10.0.0.1"},
    ]);
    let plan = admit(&with_container(&json!({"ports": ports}))).unwrap();
    let web = HostPort { protocol: Protocol::Tcp, address: None, port: 8080, guest_port: 80 };
    let address = Some("10.0.0.1".parse().unwrap());
    let names = HostPort { protocol: Protocol::Udp, address, port: 5353, guest_port: 53 };
    assert_eq!(plan.host_ports, [web, names]);
}

#[test]
fn a_refusal_names_its_field() {
    let table = vec![
        (pod(&json!({"containers": []})), "spec.containers"),
        (pod(&json!({"containers": [{"name": "a"}, {"name": "b"}]})), "spec.containers"),
        (boot_only(&json!({"hostNetwork": true})), "spec.hostNetwork"),
        (boot_only(&json!({"os": {"name": "linux"}})), "spec.os"),
        (boot_only(&json!({"volumes": [{"name": "v", "nfs": {"path": "/"}}]})), "spec.volumes[0].nfs"),
        (
            with_container(&json!({"volumeMounts": [{"name": "v", "mountPath": "/"}]})),
            "spec.containers[0].volumeMounts[0].mountPath",
        ),
        (
            with_container(
                &json!({"ports": [{"containerPort": 1}, {"containerPort": 1, "hostPort": 1, "protocol": "SCTP"}]}),
            ),
            "spec.containers[0].ports[1].protocol",
        ),
        (
            with_container(&json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k"}}}]})),
            "spec.containers[0].env[0].valueFrom.fileKeyRef",
        ),
        (
            with_container(&json!({"resources": {"limits": {"cpu": "9E"}}})),
            "spec.containers[0].resources.cpu",
        ),
        (
            pod(&json!({"containers": [{"name": "a", "image": "i", "command": ["a"]}],
                "initContainers": [{"name": "b", "image": "i", "command": ["b"], "resources": {"limits": {"memory": "99E"}}}]})),
            "spec.initContainers[0].resources.memory",
        ),
    ];
    for (pod, field) in table {
        let refusal = admit(&pod).unwrap_err();
        assert!(refusal.message.starts_with(&format!("{field}: ")), "{refusal:?}");
    }
}

#[test]
fn the_annotation_for_the_serial_number_is_read_or_refused() {
    let annotated = |text: &str| {
        let mut pod = with_container(&json!({}));
        pod.metadata.annotations = Some([(SERIAL.to_owned(), text.to_owned())].into());
        pod
    };
    assert_eq!(admit(&annotated("image")).unwrap().serial, Some(Serial::Image));
    assert_eq!(admit(&annotated("random")).unwrap().serial, Some(Serial::Random));
    assert_eq!(admit(&with_container(&json!({}))).unwrap().serial, None);
    let refused = admit(&annotated("yes")).unwrap_err().message;
    assert!(refused.starts_with("metadata.annotations[tart-kubelet.tuist.dev/serial]: "), "{refused}");
    // A Pod that an agent of another version admitted stays admitted.
    assert_eq!(read(&annotated("yes")).unwrap().serial, None);
}

#[test]
fn the_service_account_token_volume_is_admitted() {
    let sources = json!([
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]);
    let token = json!({"name": "kube-api-access-x", "projected": {"defaultMode": 420, "sources": sources}});
    let mount = json!({"name": "kube-api-access-x", "readOnly": true,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
    let container = json!({"name": "a", "image": "i", "volumeMounts": [mount]});
    let pod = pod(&json!({"containers": [container], "volumes": [token]}));
    assert_eq!(admit(&pod).err(), None);
}
