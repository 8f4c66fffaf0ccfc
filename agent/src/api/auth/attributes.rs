//! What a request is to the authorizer: a verb on a subresource of this Node. The mapping is the kubelet's, with one difference: see
//! [`Attributes::of`].

use http::Method;

/// A request as the authorizer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(super) verb: &'static str,
    /// The subresources of `nodes`, any of which is enough, the narrowest first.
    pub(super) subresources: &'static [&'static str],
}

impl Attributes {
    /// Commands, terminals and connections need `create`, whatever the method. The kubelet asks for `get` when a WebSocket begins with a
    /// GET, so that an account which may only read Nodes can run commands in all their Pods.
    pub(in crate::api) fn of(method: &Method, path: &str) -> Self {
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let verb = match (first, method) {
            ("exec" | "attach" | "portForward" | "run", _) | (_, &Method::POST) => "create",
            (_, &Method::GET | &Method::HEAD | &Method::OPTIONS) => "get",
            (_, &Method::PUT) => "update",
            (_, &Method::PATCH) => "patch",
            (_, &Method::DELETE) => "delete",
            // No role allows it, unless it allows everything.
            _ => "unknown",
        };
        let subresources: &[&str] = match first {
            "stats" => &["stats"],
            "metrics" => &["metrics"],
            "logs" => &["log"],
            "checkpoint" => &["checkpoint"],
            "pods" | "runningpods" => &["pods", "proxy"],
            "healthz" => &["healthz", "proxy"],
            "configz" => &["configz", "proxy"],
            _ => &["proxy"],
        };
        Self { verb, subresources }
    }

    #[cfg(test)]
    pub(in crate::api) fn verb(&self) -> &'static str {
        self.verb
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_path_is_a_subresource_and_a_method_a_verb() {
        for (method, path, verb, subresources) in [
            (Method::GET, "/containerLogs/n/p/c", "get", &["proxy"][..]),
            (Method::GET, "/exec/n/p/c", "create", &["proxy"]),
            (Method::POST, "/exec/n/p/c", "create", &["proxy"]),
            (Method::GET, "//exec/n/p/c", "create", &["proxy"]),
            (Method::GET, "/attach/n/p/c", "create", &["proxy"]),
            (Method::GET, "/portForward/n/p", "create", &["proxy"]),
            (Method::PUT, "/run/n/p/c", "create", &["proxy"]),
            (Method::GET, "/stats/summary", "get", &["stats"]),
            (Method::GET, "/metrics", "get", &["metrics"]),
            (Method::GET, "/metrics/resource", "get", &["metrics"]),
            (Method::GET, "/metricsx", "get", &["proxy"]),
            (Method::GET, "/logs/system.log", "get", &["log"]),
            (Method::GET, "/pods", "get", &["pods", "proxy"]),
            (Method::GET, "/runningpods/", "get", &["pods", "proxy"]),
            (Method::GET, "/healthz", "get", &["healthz", "proxy"]),
            (Method::GET, "/configz", "get", &["configz", "proxy"]),
            (Method::DELETE, "/", "delete", &["proxy"]),
            (Method::TRACE, "/pods", "unknown", &["pods", "proxy"]),
        ] {
            let found = Attributes::of(&method, path);
            assert_eq!(found, Attributes { verb, subresources }, "{method} {path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_of_a_stream_is_ever_a_read(path in "/{1,3}(exec|attach|portForward|run)(/.*)?") {
            for method in [Method::GET, Method::HEAD, Method::POST, Method::OPTIONS, Method::DELETE] {
                prop_assert_eq!(Attributes::of(&method, &path).verb, "create");
            }
        }
    }
}
