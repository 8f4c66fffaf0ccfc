//! Keys and certificates of a control plane, as files in its directory.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::certificates::{Authority, Pair, write_signing_key};

/// A certificate file and its key file.
pub(super) type Files = (PathBuf, PathBuf);

/// All keys and certificates.
#[derive(Debug)]
pub(super) struct Pki {
    pub(super) cluster: Authority,
    pub(super) kubelet_client: Pair,
    pub(super) cluster_files: Files,
    pub(super) serving_files: Files,
    pub(super) kubelet_client_files: Files,
    /// Signs the certificate by which aggregated API servers know the API server.
    pub(super) front_proxy_files: Files,
    pub(super) front_proxy_client_files: Files,
    /// Signs service account tokens; the second is the public key.
    pub(super) service_account_files: Files,
}

impl Pki {
    pub(super) fn new(directory: &Path) -> Result<Self> {
        let cluster = Authority::new("kubernetes")?;
        let front_proxy = Authority::new("front-proxy")?;
        let kubelet_client = cluster.client("kube-apiserver-kubelet-client", None)?;
        Ok(Self {
            cluster_files: cluster.pair().write(directory, "ca")?,
            serving_files: cluster
                .server(&["127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc"])?
                .write(directory, "kube-apiserver")?,
            kubelet_client_files: kubelet_client.write(directory, "kubelet-client")?,
            front_proxy_files: front_proxy.pair().write(directory, "front-proxy-ca")?,
            front_proxy_client_files: front_proxy
                .client("front-proxy-client", None)?
                .write(directory, "front-proxy-client")?,
            service_account_files: write_signing_key(directory, "service-account")?,
            cluster,
            kubelet_client,
        })
    }
}
