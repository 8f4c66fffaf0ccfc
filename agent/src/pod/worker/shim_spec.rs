//! The containers and the identity of a VM in its shim's spec, made from the Pod.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, LifecycleHandler, Pod, PodSecurityContext, PodSpec, SecurityContext,
};
use kube::ResourceExt;

use crate::env::expansion::{expand, lookup};
use crate::error_chain::chain;
use crate::state::container_spec::HttpGet;
use crate::state::{
    ContainerSpec, GuestCommand, GuestDns, GuestIdentity, GuestUser, Hook, Mount, Termination,
};

/// The longest name that a machine can have.
const MAX_HOSTNAME: usize = 63;

/// What is known of a container only when its VM is planned.
#[derive(Debug, Clone, Default)]
pub(super) struct ContainerInputs {
    /// Its variables, in order.
    pub(super) variables: Vec<(String, String)>,
    pub(super) mounts: Vec<Mount>,
    pub(super) log: PathBuf,
    /// Whether its variables may be others when the container starts.
    pub(super) asks_for_command: bool,
}

pub(super) fn container(pod: &Pod, container: &Container, inputs: ContainerInputs) -> ContainerSpec {
    let lifecycle = container.lifecycle.as_ref();
    let hook = |handler: Option<&LifecycleHandler>| handler.and_then(|handler| hook(container, handler));
    ContainerSpec {
        name: container.name.clone(),
        command: command(pod, container, inputs.variables),
        asks_for_command: inputs.asks_for_command,
        mounts: inputs.mounts,
        termination: Termination {
            path: container
                .termination_message_path
                .clone()
                .filter(|path| !path.is_empty())
                .unwrap_or_else(|| "/dev/termination-log".to_owned()),
            or_log: container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError"),
        },
        post_start: hook(lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref())),
        pre_stop: hook(lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref())),
        log: inputs.log,
    }
}

/// What a container runs; `args` without `command` are the command line, since a VM image has no entry point.
pub(super) fn command(pod: &Pod, container: &Container, env: Vec<(String, String)>) -> Option<GuestCommand> {
    let security = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let user = user(security, container.security_context.as_ref());
    let words = container.command.iter().chain(&container.args).flatten();
    let argv: Vec<String> = words.map(|word| expand(word, |name| lookup(&env, name))).collect();
    let working_dir = container.working_dir.clone().filter(|dir| !dir.is_empty());
    let (stdin, tty) = (container.stdin == Some(true), container.tty == Some(true));
    let stdin_once = container.stdin_once == Some(true);
    (!argv.is_empty()).then_some(GuestCommand { argv, env, working_dir, user, stdin, stdin_once, tty })
}

/// The user that a container runs as. The container's own security context comes before the Pod's.
pub(super) fn user(pod: Option<&PodSecurityContext>, container: Option<&SecurityContext>) -> GuestUser {
    let id = |own: Option<i64>, pods: Option<i64>| own.or(pods).and_then(|id| u32::try_from(id).ok());
    GuestUser {
        uid: id(container.and_then(|c| c.run_as_user), pod.and_then(|p| p.run_as_user)),
        gid: id(container.and_then(|c| c.run_as_group), pod.and_then(|p| p.run_as_group)),
        not_root: container
            .and_then(|c| c.run_as_non_root)
            .or_else(|| pod.and_then(|p| p.run_as_non_root))
            .unwrap_or(false),
        groups: pod
            .and_then(|p| p.supplemental_groups.as_ref())
            .map(|groups| groups.iter().filter_map(|&group| u32::try_from(group).ok()).collect())
            .unwrap_or_default(),
        only_groups: pod.and_then(|p| p.supplemental_groups_policy.as_deref()) == Some("Strict"),
    }
}

/// The Pod's fields for host names and users that have no effect on a guest that only boots: its image decides.
pub(super) fn left_to_image(spec: &PodSpec, main: &Container) -> Vec<&'static str> {
    let (pod, container) = (spec.security_context.as_ref(), main.security_context.as_ref());
    let names = |field: &Option<String>| field.as_ref().is_some_and(|name| !name.is_empty());
    let fields = [
        ("hostname", names(&spec.hostname)),
        ("subdomain", names(&spec.subdomain)),
        ("securityContext.runAsUser", pod.is_some_and(|it| it.run_as_user.is_some())),
        ("securityContext.runAsGroup", pod.is_some_and(|it| it.run_as_group.is_some())),
        ("securityContext.runAsNonRoot", pod.is_some_and(|it| it.run_as_non_root == Some(true))),
        ("containers[0].securityContext.runAsUser", container.is_some_and(|it| it.run_as_user.is_some())),
        ("containers[0].securityContext.runAsGroup", container.is_some_and(|it| it.run_as_group.is_some())),
        (
            "containers[0].securityContext.runAsNonRoot",
            container.is_some_and(|it| it.run_as_non_root == Some(true)),
        ),
    ];
    fields.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field).collect()
}

fn hook(container: &Container, handler: &LifecycleHandler) -> Option<Hook> {
    if let Some(exec) = &handler.exec {
        return Some(Hook::Exec(exec.command.clone().unwrap_or_default()));
    }
    if let Some(sleep) = &handler.sleep {
        return Some(Hook::Sleep(Duration::from_secs(sleep.seconds.try_into().unwrap_or(0))));
    }
    let get = HttpGet::read(handler.http_get.as_ref()?, container);
    Some(get.map_or_else(|error| Hook::Impossible(chain(&error)), Hook::HttpGet))
}

/// The guest's host name, its entries for /etc/hosts, and its resolver.
pub(super) fn identity(pod: &Pod, cluster_domain: &str) -> GuestIdentity {
    let spec = pod.spec.clone().unwrap_or_default();
    let given = |field: Option<String>| field.filter(|value| !value.is_empty());
    let dns = spec.dns_config.unwrap_or_default();
    let chosen = given(spec.hostname_override);
    // `hostnameOverride` has no domain.
    let subdomain = given(spec.subdomain).filter(|_| chosen.is_none());
    let mut name = chosen.or_else(|| given(spec.hostname)).unwrap_or_else(|| pod.name_any());
    name.truncate(MAX_HOSTNAME);
    let short = name.trim_end_matches(['-', '.']).to_owned();
    let namespace = pod.namespace().unwrap_or_default();
    let full = subdomain.map(|subdomain| format!("{short}.{subdomain}.{namespace}.svc.{cluster_domain}"));
    let aliases = spec.host_aliases.into_iter().flatten();
    GuestIdentity {
        hostname: match &full {
            Some(full) if spec.set_hostname_as_fqdn == Some(true) => full.clone(),
            _ => short.clone(),
        },
        own_names: full.into_iter().chain([short]).collect(),
        aliases: aliases.map(|alias| (alias.ip, alias.hostnames.unwrap_or_default())).collect(),
        dns: GuestDns {
            servers: each_once(dns.nameservers.unwrap_or_default()),
            searches: each_once(dns.searches.unwrap_or_default()),
            replaces: spec.dns_policy.as_deref() == Some("None"),
        },
    }
}

/// The first of each, in their order: a resolver has no use for the same name twice.
fn each_once(names: Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    names.into_iter().filter(|name| seen.insert(name.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{from_json, merged};
    use serde_json::{Value, json};

    fn pod(spec: &Value) -> Pod {
        let spec = merged(&json!({"containers": []}), spec);
        from_json(json!({"metadata": {"name": "web-0", "namespace": "ci"}, "spec": spec}))
    }

    fn spec_of(extra: &Value, pod_extra: &Value) -> ContainerSpec {
        let main = merged(&json!({"name": "main", "image": "i"}), extra);
        let pod = pod(&merged(&json!({"containers": [main]}), pod_extra));
        let variables = vec![("A".into(), "b".into())];
        let inputs = ContainerInputs { variables, ..ContainerInputs::default() };
        container(&pod, &pod.spec.as_ref().unwrap().containers[0], inputs)
    }

    #[test]
    fn args_alone_are_the_command_line() {
        let argv = |extra: Value| spec_of(&extra, &json!({})).command.map(|command| command.argv.join(" "));
        assert_eq!(argv(json!({})), None);
        assert_eq!(argv(json!({"args": ["make", "$(A)", "$(C)"]})).as_deref(), Some("make b $(C)"));
        assert_eq!(argv(json!({"command": ["make"], "args": ["test"]})).as_deref(), Some("make test"));
    }

    #[test]
    fn the_containers_user_comes_before_the_pods() {
        let user = |own: &Value, pods: &Value| {
            let extra = json!({"args": ["x"], "securityContext": own});
            spec_of(&extra, &json!({"securityContext": pods})).command.unwrap().user
        };
        let of = |uid, gid, not_root| GuestUser { uid, gid, not_root, ..GuestUser::default() };
        let groups = json!({"supplementalGroups": [5, 6], "supplementalGroupsPolicy": "Strict"});
        let in_groups = GuestUser { groups: vec![5, 6], only_groups: true, ..GuestUser::default() };
        let table = [
            (json!({}), json!({}), of(None, None, false)),
            (json!({"runAsUser": 1}), json!({"runAsUser": 2, "runAsGroup": 3}), of(Some(1), Some(3), false)),
            (json!({"runAsNonRoot": false}), json!({"runAsNonRoot": true}), of(None, None, false)),
            (json!({}), json!({"runAsNonRoot": true}), of(None, None, true)),
            (json!({}), groups, in_groups),
        ];
        for (own, pods, expected) in table {
            assert_eq!(user(&own, &pods), expected, "{own} {pods}");
        }
    }

    #[test]
    fn what_a_guest_that_only_boots_goes_by_its_image_in_is_named() {
        let named = |names: Value, pods: Value, own: Value| {
            let main = json!({"name": "main", "securityContext": own});
            let spec = json!({"containers": [main], "securityContext": pods});
            let spec: PodSpec = from_json(merged(&spec, &names));
            left_to_image(&spec, &spec.containers[0]).join(" ")
        };
        let nothing = json!({"hostname": ""});
        assert_eq!(named(nothing, json!({"runAsNonRoot": false, "fsGroup": 1}), json!({})), "");
        assert_eq!(
            named(json!({}), json!({"runAsUser": 1, "runAsNonRoot": true}), json!({"runAsGroup": 2})),
            "securityContext.runAsUser securityContext.runAsNonRoot containers[0].securityContext.runAsGroup"
        );
        let names = json!({"hostname": "web-0", "subdomain": "web"});
        let named = named(names, json!({"runAsUser": 1}), json!({}));
        assert_eq!(named, "hostname subdomain securityContext.runAsUser");
    }

    #[test]
    fn hooks_are_read_with_their_named_ports() {
        let extra = json!({
            "ports": [{"name": "web", "containerPort": 8080}],
            "lifecycle": {
                "postStart": {"httpGet": {"port": "web", "path": "/up", "scheme": "HTTPS"}},
                "preStop": {"exec": {"command": ["bye"]}},
            },
        });
        let spec = spec_of(&extra, &json!({}));
        let Some(Hook::HttpGet(get)) = spec.post_start else { panic!("{:?}", spec.post_start) };
        assert_eq!((get.https, get.port, get.path.as_str(), get.host), (true, 8080, "/up", None));
        assert_eq!(spec.pre_stop, Some(Hook::Exec(vec!["bye".into()])));
    }

    #[test]
    fn a_guest_is_called_as_its_pod_is() {
        let full = "web-0.b.ci.svc.cluster.local";
        let (long, cut) = (format!("{}-x", "a".repeat(62)), "a".repeat(62));
        let table = [
            (json!({}), "web-0", "web-0"),
            (json!({"hostname": "a", "subdomain": "b"}), "a", "a.b.ci.svc.cluster.local a"),
            (json!({"subdomain": "b", "setHostnameAsFQDN": true}), full, &format!("{full} web-0")),
            (json!({"hostname": "a", "subdomain": "b", "hostnameOverride": "c.test"}), "c.test", "c.test"),
            (json!({"hostname": long}), &cut, &cut),
        ];
        for (spec, hostname, own_names) in table {
            let identity = identity(&pod(&spec), "cluster.local");
            assert_eq!(identity.hostname, hostname, "{spec}");
            assert_eq!(identity.own_names.join(" "), own_names, "{spec}");
        }
    }

    #[test]
    fn names_are_looked_up_as_the_pod_says() {
        let dns = |spec: Value| identity(&pod(&spec), "cluster.local").dns;
        assert!(dns(json!({"dnsPolicy": "ClusterFirst"})).is_empty());
        let config =
            json!({"nameservers": ["192.0.2.53", "192.0.2.53"], "searches": ["b.test", "a.test", "b.test"]});
        let all = dns(json!({"dnsPolicy": "None", "dnsConfig": config}));
        let expected = GuestDns {
            servers: vec!["192.0.2.53".into()],
            searches: vec!["b.test".into(), "a.test".into()],
            replaces: true,
        };
        assert_eq!(all, expected);
        assert!(!dns(json!({"dnsPolicy": "Default", "dnsConfig": config})).replaces);
    }
}
