//! Services as environment variables.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as api;
use kube::Client;
use tokio::time::sleep;

use crate::apiserver::watched_objects::{
    ObjectError, Scope, SharedWatch, SharedWatches, WatchSlots, first_of,
};

/// The namespace of the API server's own Service, which every container gets.
const DEFAULT_NAMESPACE: &str = "default";
const API_SERVER: &str = "kubernetes";
/// How long Services are still watched after a Pod has asked for them.
const LINGER: Duration = Duration::from_mins(5);

/// The parts of a Service that its variables need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Service {
    namespace: String,
    name: String,
    /// Absent if it is headless.
    cluster_ip: Option<String>,
    ports: Vec<Port>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    /// Only the first may have none.
    name: Option<String>,
    number: i32,
    /// `TCP`, `UDP` or `SCTP`.
    protocol: String,
}

impl Service {
    fn keep(service: api::Service) -> Self {
        let spec = service.spec.unwrap_or_default();
        let port = |port: api::ServicePort| Port {
            name: port.name.filter(|name| !name.is_empty()),
            number: port.port,
            protocol: port.protocol.filter(|name| !name.is_empty()).unwrap_or_else(|| "TCP".to_owned()),
        };
        Self {
            namespace: service.metadata.namespace.unwrap_or_default(),
            name: service.metadata.name.unwrap_or_default(),
            cluster_ip: spec.cluster_ip.filter(|address| !address.is_empty() && address != "None"),
            ports: spec.ports.into_iter().flatten().map(port).collect(),
        }
    }
}

/// The Services of all namespaces that have Pods here. A namespace is watched a while longer than its Pods need it.
#[derive(Clone)]
pub(crate) struct Services(Arc<SharedWatches<api::Service, Service>>);

impl Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Services")
    }
}

impl Services {
    pub(crate) fn new(client: Client) -> Self {
        Self(Arc::new(SharedWatches::new(client, "service", Service::keep, WatchSlots::new())))
    }

    /// The Services of a Pod: those of its namespace if it wants `links`, and the API server's.
    pub(crate) fn of(&self, namespace: &str, links: bool) -> LinkedServices {
        let own = || self.watch(namespace, None);
        let api_server = || self.watch(DEFAULT_NAMESPACE, Some(API_SERVER));
        LinkedServices(match (links, namespace) {
            (true, DEFAULT_NAMESPACE) => vec![own()],
            (true, _) => vec![api_server(), own()],
            (false, _) => vec![api_server()],
        })
    }

    /// Keeps the watch for a while: the next Job's start need not wait for another list.
    fn watch(&self, namespace: &str, name: Option<&str>) -> SharedWatch<Service> {
        let scope = Scope { namespace: namespace.to_owned(), name: name.map(str::to_owned) };
        let watched = self.0.watch(scope);
        let kept = watched.clone();
        tokio::spawn(async move {
            sleep(LINGER).await;
            drop(kept);
        });
        watched
    }
}

#[derive(Debug)]
pub(crate) struct LinkedServices(Vec<SharedWatch<Service>>);

impl LinkedServices {
    pub(crate) async fn get(&mut self) -> Result<Vec<Arc<Service>>, ObjectError> {
        let mut services = Vec::new();
        for watched in &mut self.0 {
            services.extend(watched.get().await?.into_values());
        }
        Ok(services)
    }

    /// Waits until `get` may return something else. Safe to cancel.
    pub(crate) async fn changed(&mut self) {
        first_of(self.0.iter_mut().map(|watched| -> _ { Box::pin(watched.changed()) as _ }).collect()).await;
    }
}

/// The variables for Services, with the kubelet's names.
pub(crate) fn service_environment<'a>(
    namespace: &str,
    enable_service_links: bool,
    services: impl IntoIterator<Item = &'a Service>,
) -> Vec<(String, String)> {
    let mut told: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        if enable_service_links && service.namespace == namespace {
            told.insert(&service.name, service);
        } else if service.namespace == DEFAULT_NAMESPACE && service.name == API_SERVER {
            // A Service of that name in the Pod's own namespace wins.
            told.entry(&service.name).or_insert(service);
        }
    }
    told.into_values().flat_map(variables).collect()
}

fn variables(service: &Service) -> Vec<(String, String)> {
    let Some(address) = &service.cluster_ip else { return Vec::new() };
    let prefix = upper(&service.name);
    let mut variables = vec![(format!("{prefix}_SERVICE_HOST"), address.clone())];
    let first = service.ports.first();
    variables.extend(first.map(|port| (format!("{prefix}_SERVICE_PORT"), port.number.to_string())));
    for port in &service.ports {
        let name = port.name.as_deref().map(|name| format!("{prefix}_SERVICE_PORT_{}", upper(name)));
        variables.extend(name.map(|name| (name, port.number.to_string())));
    }
    variables.extend(first.map(|port| (format!("{prefix}_PORT"), url(address, port))));
    for port in &service.ports {
        let protocol = port.protocol.to_ascii_lowercase();
        let prefix = format!("{prefix}_PORT_{}_{}", port.number, port.protocol.to_ascii_uppercase());
        variables.extend([
            (format!("{prefix}_PROTO"), protocol),
            (format!("{prefix}_PORT"), port.number.to_string()),
            (format!("{prefix}_ADDR"), address.clone()),
            (prefix, url(address, port)),
        ]);
    }
    variables
}

fn url(address: &str, port: &Port) -> String {
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    format!("{}://{host}:{}", port.protocol.to_ascii_lowercase(), port.number)
}

fn upper(name: &str) -> String {
    name.replace('-', "_").to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::from_json;
    use serde_json::{Value, json};

    fn service(namespace: &str, name: &str, address: &str, ports: &Value) -> Service {
        let metadata = json!({"namespace": namespace, "name": name});
        let spec = json!({"clusterIP": address, "ports": ports});
        Service::keep(from_json(json!({"metadata": metadata, "spec": spec})))
    }

    fn told(namespace: &str, links: bool, services: &[Service]) -> Vec<String> {
        let variables = service_environment(namespace, links, services);
        variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn a_service_has_the_kubelets_variables() {
        let ports = json!([{"port": 6379, "name": "wire-1"}, {"port": 53, "protocol": "UDP", "name": "dns"}]);
        let redis = service("ns", "redis-main", "10.0.0.11", &ports);
        let mut variables = told("ns", true, &[redis]);
        variables.sort();
        let expected = [
            "REDIS_MAIN_PORT=tcp://10.0.0.11:6379",
            "REDIS_MAIN_PORT_53_UDP=udp://10.0.0.11:53",
            "REDIS_MAIN_PORT_53_UDP_ADDR=10.0.0.11",
            "REDIS_MAIN_PORT_53_UDP_PORT=53",
            "REDIS_MAIN_PORT_53_UDP_PROTO=udp",
            "REDIS_MAIN_PORT_6379_TCP=tcp://10.0.0.11:6379",
            "REDIS_MAIN_PORT_6379_TCP_ADDR=10.0.0.11",
            "REDIS_MAIN_PORT_6379_TCP_PORT=6379",
            "REDIS_MAIN_PORT_6379_TCP_PROTO=tcp",
            "REDIS_MAIN_SERVICE_HOST=10.0.0.11",
            "REDIS_MAIN_SERVICE_PORT=6379",
            "REDIS_MAIN_SERVICE_PORT_DNS=53",
            "REDIS_MAIN_SERVICE_PORT_WIRE_1=6379",
        ];
        assert_eq!(variables, expected);
    }

    #[test]
    fn a_container_gets_the_services_of_its_namespace_and_the_api_servers() {
        let port = json!([{"port": 443}]);
        let all = [
            service("default", "kubernetes", "10.0.0.1", &port),
            service("default", "other", "10.0.0.2", &port),
            service("ns", "web", "10.0.0.3", &port),
            service("ns", "headless", "None", &port),
            service("ns", "external", "", &port),
        ];
        let hosts = |namespace, links, services: &[Service]| -> Vec<String> {
            told(namespace, links, services).into_iter().filter(|v| v.contains("_SERVICE_HOST=")).collect()
        };
        let api_server = "KUBERNETES_SERVICE_HOST=10.0.0.1";
        assert_eq!(hosts("ns", true, &all), [api_server, "WEB_SERVICE_HOST=10.0.0.3"]);
        assert_eq!(hosts("ns", false, &all), [api_server]);
        assert_eq!(hosts("default", true, &all), [api_server, "OTHER_SERVICE_HOST=10.0.0.2"]);
        assert_eq!(hosts("default", false, &all), [api_server]);
        let own = service("ns", "kubernetes", "10.0.0.9", &port);
        for order in [[&all[0], &own], [&own, &all[0]]] {
            let services = order.map(Clone::clone);
            assert_eq!(hosts("ns", true, &services), ["KUBERNETES_SERVICE_HOST=10.0.0.9"]);
        }
    }

    #[test]
    fn an_ipv6_address_is_bracketed_in_urls_only() {
        let service = service("ns", "a", "fd00::1", &json!([{"port": 80}]));
        let variables = told("ns", true, &[service]);
        assert!(variables.contains(&"A_PORT=tcp://[fd00::1]:80".to_owned()), "{variables:?}");
        assert!(variables.contains(&"A_SERVICE_HOST=fd00::1".to_owned()), "{variables:?}");
    }
}
