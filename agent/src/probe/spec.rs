//! A container's probes, as its spec asks for them.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::env::expansion::expand;
use crate::state::StopCause;
use crate::state::container_spec::HttpGet;

/// The three questions that probes answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeKind {
    /// Has the container started? The other two wait for it.
    Startup,
    /// Does it still work? It is restarted when it does not.
    Liveness,
    /// Should it get traffic?
    Readiness,
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The probes of one container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Probes {
    pub(crate) startup: Option<ProbeSpec>,
    pub(crate) liveness: Option<ProbeSpec>,
    pub(crate) readiness: Option<ProbeSpec>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeSpec {
    /// The action. As in the kubelet, an unresolved port is reported at each probe and is no failure.
    pub(crate) action: Result<Action, BadAction>,
    /// How long after the container's start the first one is due.
    pub(crate) initial_delay: Duration,
    pub(crate) period: Duration,
    pub(crate) timeout: Duration,
    /// How many in a row must pass after a failure.
    pub(crate) success_threshold: u32,
    /// How many in a row must fail after a success.
    pub(crate) failure_threshold: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Run a command in the guest; 0 passes.
    Exec(Vec<String>),
    /// Make an HTTP request; 200 to 399 passes.
    HttpGet(HttpGet),
    /// Connect to a TCP port.
    TcpSocket {
        /// The Pod's address when absent.
        host: Option<String>,
        port: u16,
    },
    /// Ask by the gRPC health protocol, at the Pod's address.
    Grpc { port: u16, service: String },
}

/// An action that cannot be tried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadAction {
    #[error("port {0} not found")]
    UnknownPort(String),
    #[error("invalid port number: {0}")]
    InvalidPort(i32),
    /// The API server refuses such a Pod.
    #[error("the probe has neither exec, httpGet, tcpSocket nor grpc")]
    Missing,
}

impl Probes {
    pub(crate) fn of(container: &Container) -> Self {
        let read = |probe: Option<&Probe>| probe.map(|probe| ProbeSpec::read(probe, container));
        Self {
            startup: read(container.startup_probe.as_ref()),
            liveness: read(container.liveness_probe.as_ref()),
            readiness: read(container.readiness_probe.as_ref()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.startup.is_none() && self.liveness.is_none() && self.readiness.is_none()
    }

    pub(crate) fn into_each(self) -> impl Iterator<Item = (ProbeKind, ProbeSpec)> {
        let all = [
            (ProbeKind::Startup, self.startup),
            (ProbeKind::Liveness, self.liveness),
            (ProbeKind::Readiness, self.readiness),
        ];
        all.into_iter().filter_map(|(kind, spec)| Some((kind, spec?)))
    }
}

impl ProbeSpec {
    fn read(probe: &Probe, container: &Container) -> Self {
        // The API server fills these in. It treats 0 like an absent field.
        let number = |field: Option<i32>, default: u32| {
            field.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0).unwrap_or(default)
        };
        let seconds = |field, default| Duration::from_secs(number(field, default).into());
        Self {
            action: Action::read(probe, container),
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: number(probe.success_threshold, 1),
            failure_threshold: number(probe.failure_threshold, 3),
        }
    }

    /// How long to wait before the first probe of a container that has run for `ran`. The probes of containers that an
    /// agent finds running are spread by `share` of a period, or all would come at once.
    pub(crate) fn first_after(&self, ran: Duration, share: f64) -> Duration {
        self.initial_delay.saturating_sub(ran) + self.period.mul_f64(share.clamp(0.0, 1.0))
    }
}

impl Action {
    fn read(probe: &Probe, container: &Container) -> Result<Self, BadAction> {
        if let Some(exec) = &probe.exec {
            // As in the kubelet, only variables with a literal value are known here.
            let value = |name: &str| {
                let named = container.env.iter().flatten().rev().find(|variable| variable.name == name);
                named.map(|variable| variable.value.clone().unwrap_or_default())
            };
            let words = exec.command.iter().flatten();
            Ok(Self::Exec(words.map(|word| expand(word, value)).collect()))
        } else if let Some(get) = &probe.http_get {
            Ok(Self::HttpGet(HttpGet::read(get, container)?))
        } else if let Some(socket) = &probe.tcp_socket {
            let host = socket.host.clone().filter(|host| !host.is_empty());
            Ok(Self::TcpSocket { host, port: port(&socket.port, container)? })
        } else if let Some(grpc) = &probe.grpc {
            let service = grpc.service.clone().unwrap_or_default();
            Ok(Self::Grpc { port: number(grpc.port)?, service })
        } else {
            Err(BadAction::Missing)
        }
    }
}

#[cfg(test)]
impl ProbeSpec {
    /// A probe of a TCP port, every millisecond.
    pub(crate) fn example(success_threshold: u32, failure_threshold: u32) -> Self {
        Self {
            action: Ok(Action::TcpSocket { host: None, port: 1 }),
            initial_delay: Duration::ZERO,
            period: Duration::from_millis(1),
            timeout: Duration::from_secs(20),
            success_threshold,
            failure_threshold,
        }
    }
}

/// A port by its number, or by the name that the container gives it.
pub(crate) fn port(port: &IntOrString, container: &Container) -> Result<u16, BadAction> {
    match port {
        IntOrString::Int(port) => number(*port),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(name));
            let written = || name.parse().map_err(|_| BadAction::UnknownPort(name.clone()));
            number(named.map_or_else(written, |port| Ok(port.container_port))?)
        }
    }
}

fn number(port: i32) -> Result<u16, BadAction> {
    u16::try_from(port).ok().filter(|&port| port > 0).ok_or(BadAction::InvalidPort(port))
}

/// The grace period of a stop: that of the failed probe, else the Pod's.
pub(crate) fn grace(pod: &Pod, cause: StopCause) -> Option<i64> {
    let spec = pod.spec.as_ref()?;
    let container = spec.containers.first();
    let probe = container.and_then(|container| match cause {
        StopCause::FailedStartup => container.startup_probe.as_ref(),
        StopCause::FailedLiveness => container.liveness_probe.as_ref(),
        StopCause::Changed | StopCause::Newer => None,
    });
    let own = probe.and_then(|probe| probe.termination_grace_period_seconds);
    own.or(spec.termination_grace_period_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{from_json, merged};
    use serde_json::{Value, json};

    fn container(extra: &Value) -> Container {
        let ports = json!([{"name": "http", "containerPort": 8080}]);
        let usual = json!({"name": "main", "ports": ports, "env": [{"name": "A", "value": "1"}]});
        from_json(merged(&usual, extra))
    }

    fn readiness(probe: &Value) -> ProbeSpec {
        Probes::of(&container(&json!({"readinessProbe": probe}))).readiness.unwrap()
    }

    #[test]
    fn absent_fields_have_the_kubelets_defaults() {
        let seconds = Duration::from_secs;
        let spec = readiness(&json!({"tcpSocket": {"port": 1}, "periodSeconds": 0}));
        assert_eq!((spec.initial_delay, spec.period, spec.timeout), (seconds(0), seconds(10), seconds(1)));
        assert_eq!((spec.success_threshold, spec.failure_threshold), (1, 3));
        let spec = readiness(&json!({
            "tcpSocket": {"port": 1}, "initialDelaySeconds": 5, "periodSeconds": 2, "timeoutSeconds": 3,
            "successThreshold": 4, "failureThreshold": 6,
        }));
        assert_eq!((spec.initial_delay, spec.period, spec.timeout), (seconds(5), seconds(2), seconds(3)));
        assert_eq!((spec.success_threshold, spec.failure_threshold), (4, 6));
        assert!(Probes::of(&container(&json!({}))).is_empty());
    }

    #[test]
    fn ports_have_numbers_or_the_containers_names() {
        let socket = |port: Value| match readiness(&json!({"tcpSocket": {"port": port}})).action {
            Ok(Action::TcpSocket { port, .. }) => Ok(port),
            Ok(other) => panic!("{other:?}"),
            Err(bad) => Err(bad.to_string()),
        };
        let failed = |words: &str| Err(words.to_owned());
        assert_eq!([json!(80), json!("http"), json!("81")].map(socket), [Ok(80), Ok(8080), Ok(81)]);
        assert_eq!(socket(json!("https")), failed("port https not found"));
        assert_eq!(socket(json!(0)), failed("invalid port number: 0"));
        assert_eq!(socket(json!(65536)), failed("invalid port number: 65536"));
    }

    #[test]
    fn variables_that_the_spec_sets_are_expanded_in_commands() {
        let spec = readiness(&json!({"exec": {"command": ["test", "$(A)", "$(B)", "$$(A)"]}}));
        let words = ["test", "1", "$(B)", "$(A)"].map(str::to_owned).to_vec();
        assert_eq!(spec.action, Ok(Action::Exec(words)));
    }

    #[test]
    fn the_first_probe_waits_for_the_initial_delay_and_a_share_of_a_period() {
        let seconds = Duration::from_secs;
        let spec = ProbeSpec { initial_delay: seconds(5), period: seconds(8), ..ProbeSpec::example(1, 1) };
        for (ran, share, expected) in [(0, 0.0, 5), (3, 0.0, 2), (60, 0.0, 0), (60, 0.5, 4)] {
            assert_eq!(spec.first_after(seconds(ran), share), seconds(expected), "{ran} {share}");
        }
    }

    #[test]
    fn the_grace_period_of_the_probe_that_failed_comes_first() {
        let pod = |own: Value| -> Pod {
            let probe = json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": own});
            let container = json!({"name": "main", "livenessProbe": probe});
            let spec = json!({"terminationGracePeriodSeconds": 30, "containers": [container]});
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        assert_eq!(grace(&pod(json!(5)), StopCause::FailedLiveness), Some(5));
        assert_eq!(grace(&pod(json!(5)), StopCause::FailedStartup), Some(30));
        assert_eq!(grace(&pod(json!(null)), StopCause::FailedLiveness), Some(30));
        assert_eq!(grace(&pod(json!(5)), StopCause::Changed), Some(30));
    }
}
