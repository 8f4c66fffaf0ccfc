//! Discovery: from the address of an API server and a bootstrap token to a cluster that is known to be the right one.
//!
//! It is kubeadm's protocol. The `ConfigMap` `cluster-info` in `kube-public` has a kubeconfig with the cluster's CA, and a signature of it
//! for each bootstrap token. The Mac fetches it without knowing the API server, checks the signature with the token and the CA with the
//! given hash, and fetches it once more from a server that the CA vouches for.

mod ca_cert_hash;
mod cluster_info;
mod endpoint;
mod signature;
mod token;

pub(crate) use ca_cert_hash::CaCertHash;
pub(crate) use cluster_info::Discovered;
pub(crate) use endpoint::ApiEndpoint;
pub(crate) use token::{BadToken, BootstrapToken};

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, Config};
use tokio::time::{Instant, sleep};

use self::cluster_info::{CheckError, ClusterInfo, check};
use crate::apiserver::call::{CallError, call};

/// How long one request may take.
const REQUEST_DEADLINE: Duration = Duration::from_secs(15);
/// A cluster signs for a new token a moment after the token was made.
const SIGNATURE_DEADLINE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_secs(1);

/// What the user knows of the cluster.
#[derive(Debug, Clone)]
pub(crate) struct Discovery {
    /// The API server.
    pub(crate) endpoint: ApiEndpoint,
    /// The bootstrap token.
    pub(crate) token: BootstrapToken,
    /// Hashes of the public key of the cluster's CA. One of them must fit.
    pub(crate) ca_cert_hashes: Vec<CaCertHash>,
    /// Whether the CA is taken without a hash.
    pub(crate) skips_ca_verification: bool,
}

/// Why the cluster is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiscoveryError {
    /// There is no hash to check the CA with.
    #[error(
        "give the hash of the cluster's CA with --discovery-token-ca-cert-hash, as `kubeadm token create --print-join-command` shows it; \
         without it any server could pose as the cluster (--discovery-token-unsafe-skip-ca-verification takes that risk)"
    )]
    NoHash,
    /// The API server cannot be asked.
    #[error(
        "cannot ask the API server {0} for the cluster's information; is the address right, and can this Mac reach it?"
    )]
    Unreachable(String, #[source] CallError),
    /// The API server has no such information, or shows it to no one.
    #[error(
        "the API server {0} shows no ConfigMap kube-public/cluster-info to those who join; \
         `kubeadm init phase bootstrap-token` makes it, or use `tart-kubelet install --bootstrap-kubeconfig`"
    )]
    NoClusterInfo(String, #[source] CallError),
    /// The information is not the one that the user means.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The API server's certificate is not signed by the cluster's CA.
    #[error(
        "the API server {0} is not one of the cluster that it describes: the cluster's CA does not vouch for it"
    )]
    Unverified(String, #[source] CallError),
    /// The two answers differ.
    #[error(
        "the API server {0} described another cluster when it was asked by a secure connection: an attacker may be in between"
    )]
    Changed(String),
    /// The TLS settings cannot be used.
    #[error("cannot connect to the API server")]
    Client(#[source] Box<kube::Error>),
}

/// Finds the cluster.
pub(crate) async fn discover(discovery: &Discovery) -> Result<Discovered, DiscoveryError> {
    if discovery.ca_cert_hashes.is_empty() && !discovery.skips_ca_verification {
        return Err(DiscoveryError::NoHash);
    }
    let server = discovery.endpoint.to_string();
    let mut config = Config::new(discovery.endpoint.uri());
    config.accept_invalid_certs = true;
    let client = Client::try_from(config).map_err(|error| DiscoveryError::Client(Box::new(error)))?;
    let start = Instant::now();
    let (info, found) = loop {
        let info = fetch(&client).await.map_err(|error| match error.code() {
            Some(401 | 403 | 404) => DiscoveryError::NoClusterInfo(server.clone(), error),
            _ => DiscoveryError::Unreachable(server.clone(), error),
        })?;
        match check(&info, &discovery.token, &discovery.ca_cert_hashes) {
            Ok(found) => break (info, found),
            Err(CheckError::NoSignature { .. }) if start.elapsed() < SIGNATURE_DEADLINE => sleep(POLL).await,
            Err(error) => return Err(error.into()),
        }
    };
    let mut config = Config::new(discovery.endpoint.uri());
    config.root_cert = Some(found.authorities().to_vec());
    let client = Client::try_from(config).map_err(|error| DiscoveryError::Client(Box::new(error)))?;
    let second = fetch(&client).await.map_err(|error| DiscoveryError::Unverified(server.clone(), error))?;
    if second.kubeconfig() != info.kubeconfig() {
        return Err(DiscoveryError::Changed(server));
    }
    Ok(found)
}

async fn fetch(client: &Client) -> Result<ClusterInfo, CallError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-public");
    let map = call(REQUEST_DEADLINE, api.get("cluster-info")).await?;
    Ok(ClusterInfo::new(map.data.unwrap_or_default()))
}
