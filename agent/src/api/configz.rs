//! `/configz`: the agent's settings, in the kubelet's words where it has any.

use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::auth;
use crate::logs::{MAX_FILE_SIZE, MAX_FILES};

/// The settings that are shown.
#[derive(Debug, Clone)]
pub(crate) struct KubeletSettings {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) max_pods: u32,
    pub(crate) client_ca_file: Option<PathBuf>,
    pub(crate) cluster_domain: String,
}

impl KubeletSettings {
    pub(super) fn render(&self) -> Value {
        let seconds = |duration: std::time::Duration| format!("{}s", duration.as_secs());
        let kubelet = json!({
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "address": self.address,
            "port": self.port,
            "readOnlyPort": 0,
            "authentication": {
                "x509": {"clientCAFile": self.client_ca_file},
                "webhook": {"enabled": true, "cacheTTL": seconds(auth::KNOWN_TOKEN)},
                "anonymous": {"enabled": false},
            },
            "authorization": {
                "mode": "Webhook",
                "webhook": {
                    "cacheAuthorizedTTL": seconds(auth::ALLOWED),
                    "cacheUnauthorizedTTL": seconds(auth::DENIED),
                },
            },
            "rotateCertificates": true,
            "serverTLSBootstrap": true,
            "tlsMinVersion": "VersionTLS12",
            "maxPods": self.max_pods,
            "clusterDomain": self.cluster_domain,
            "containerLogMaxSize": format!("{}Mi", MAX_FILE_SIZE >> 20),
            "containerLogMaxFiles": MAX_FILES,
            "enableSystemLogHandler": false,
        });
        json!({"kubeletconfig": kubelet})
    }
}
