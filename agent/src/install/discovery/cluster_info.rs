//! The cluster's information, and whether it is the one that the user means.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::config::{AuthInfo, Cluster, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;

use super::ca_cert_hash::CaCertHash;
use super::signature;
use super::token::BootstrapToken;

/// The name of the one cluster, user and context in the kubeconfig.
const ONLY: &str = "default";

/// The `ConfigMap` `cluster-info`.
#[derive(Debug)]
pub(super) struct ClusterInfo(BTreeMap<String, String>);

impl ClusterInfo {
    pub(super) fn new(data: BTreeMap<String, String>) -> Self {
        Self(data)
    }

    pub(super) fn kubeconfig(&self) -> Option<&str> {
        self.0.get("kubeconfig").map(String::as_str)
    }

    fn signature(&self, token: &BootstrapToken) -> Option<&str> {
        self.0.get(&format!("jws-kubeconfig-{}", token.id())).map(String::as_str)
    }
}

/// Why the information is not the one that the user means.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CheckError {
    /// The cluster knows no such token.
    #[error(
        "the cluster has no valid token `{id}`: it may have expired, or be another cluster's; \
         `kubeadm token create --print-join-command` makes a new one"
    )]
    NoSignature {
        /// The token's id.
        id: String,
    },
    /// The signature is wrong.
    #[error(
        "the cluster's information is not signed with the token `{id}`: is the token complete, and of this cluster?"
    )]
    BadSignature {
        /// The token's id.
        id: String,
    },
    /// The information has no usable cluster.
    #[error("the cluster's information cannot be used: {0}")]
    Unusable(&'static str),
    /// The CA is another one.
    #[error(
        "the cluster's CA has the hash {found}, which is none of those given with --discovery-token-ca-cert-hash: \
         this is another cluster, or an attacker poses as it; compare with what `kubeadm token create --print-join-command` prints on the \
         control plane"
    )]
    OtherCa {
        /// The hash of the CA that the API server showed.
        found: String,
    },
}

/// A cluster that is known to be the right one.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Discovered {
    server: String,
    authority_pem: Vec<u8>,
    authorities: Vec<Vec<u8>>,
}

impl Discovered {
    /// The cluster's address for its Nodes.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// The cluster's CA.
    pub(super) fn authorities(&self) -> &[Vec<u8>] {
        &self.authorities
    }

    /// A kubeconfig with which the agent asks for its certificate.
    pub(crate) fn bootstrap_kubeconfig(&self, token: &BootstrapToken) -> Kubeconfig {
        let cluster = Cluster {
            server: Some(self.server.clone()),
            certificate_authority_data: Some(BASE64_STANDARD.encode(&self.authority_pem)),
            ..Cluster::default()
        };
        // Through serde, because the type of the token has no other public constructor.
        let user: Option<AuthInfo> = serde_json::from_value(json!({ "token": token.reveal() })).ok();
        let context = Context { cluster: ONLY.to_owned(), user: Some(ONLY.to_owned()), ..Context::default() };
        Kubeconfig {
            api_version: Some("v1".to_owned()),
            kind: Some("Config".to_owned()),
            clusters: vec![NamedCluster {
                name: ONLY.to_owned(),
                cluster: Some(cluster),
                ..NamedCluster::default()
            }],
            auth_infos: vec![NamedAuthInfo {
                name: ONLY.to_owned(),
                auth_info: user,
                ..NamedAuthInfo::default()
            }],
            contexts: vec![NamedContext {
                name: ONLY.to_owned(),
                context: Some(context),
                ..NamedContext::default()
            }],
            current_context: Some(ONLY.to_owned()),
            ..Kubeconfig::default()
        }
    }
}

impl fmt::Debug for Discovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discovered").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Checks the signature by the token, and the CA by the hashes. Without hashes any CA is taken.
pub(super) fn check(
    info: &ClusterInfo,
    token: &BootstrapToken,
    hashes: &[CaCertHash],
) -> Result<Discovered, CheckError> {
    let id = || token.id().to_owned();
    let kubeconfig = info.kubeconfig().ok_or(CheckError::Unusable("it has no kubeconfig"))?;
    let signature = info.signature(token).ok_or_else(|| CheckError::NoSignature { id: id() })?;
    if !signature::is_valid(signature, kubeconfig, token) {
        return Err(CheckError::BadSignature { id: id() });
    }
    let parsed =
        Kubeconfig::from_yaml(kubeconfig).map_err(|_| CheckError::Unusable("its kubeconfig is broken"))?;
    let [NamedCluster { cluster: Some(cluster), .. }] = &parsed.clusters[..] else {
        return Err(CheckError::Unusable("its kubeconfig does not have one cluster"));
    };
    let server = cluster.server.clone().filter(|server| server.starts_with("https://"));
    let server = server.ok_or(CheckError::Unusable("its kubeconfig names no API server"))?;
    let authority_pem = cluster.certificate_authority_data.as_deref();
    let authority_pem = authority_pem.and_then(|data| BASE64_STANDARD.decode(data).ok());
    let authority_pem = authority_pem.ok_or(CheckError::Unusable("its kubeconfig has no CA"))?;
    let authorities: Result<Vec<Vec<u8>>, _> = CertificateDer::pem_slice_iter(&authority_pem)
        .map(|certificate| certificate.map(|certificate| certificate.to_vec()))
        .collect();
    let authorities = authorities.map_err(|_| CheckError::Unusable("its CA is broken"))?;
    let found: Vec<CaCertHash> = authorities.iter().filter_map(|der| CaCertHash::of(der)).collect();
    let Some(first) = found.first() else { return Err(CheckError::Unusable("its CA is broken")) };
    if !hashes.is_empty() && !found.iter().any(|hash| hashes.contains(hash)) {
        return Err(CheckError::OtherCa { found: first.to_string() });
    }
    Ok(Discovered { server, authority_pem, authorities })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    fn authority() -> String {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    fn token() -> BootstrapToken {
        "abcdef.0123456789abcdef".parse().unwrap()
    }

    fn hash(pem: &str) -> CaCertHash {
        CaCertHash::of(&CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap()
    }

    fn kubeconfig(authority: &str) -> String {
        let data = BASE64_STANDARD.encode(authority);
        format!(
            "clusters:\n- name: ''\n  cluster:\n    server: https://api:6443\n    certificate-authority-data: {data}\n"
        )
    }

    fn info(kubeconfig: &str, signature: Option<String>) -> ClusterInfo {
        let mut data = BTreeMap::from([("kubeconfig".to_owned(), kubeconfig.to_owned())]);
        data.extend(signature.map(|signature| ("jws-kubeconfig-abcdef".to_owned(), signature)));
        ClusterInfo::new(data)
    }

    #[test]
    fn the_right_cluster_is_accepted_by_any_of_several_hashes() {
        let authority = authority();
        let text = kubeconfig(&authority);
        let info = info(&text, Some(signature::sign(&text, &token())));
        let other = hash(&self::authority());
        for hashes in [vec![], vec![hash(&authority)], vec![other, hash(&authority)]] {
            assert_eq!(check(&info, &token(), &hashes).unwrap().server(), "https://api:6443");
        }
        let config = check(&info, &token(), &[]).unwrap().bootstrap_kubeconfig(&token());
        let yaml = serde_saphyr::to_string(&config).unwrap();
        assert!(yaml.contains("abcdef.0123456789abcdef"), "the agent needs the token");
        assert!(!format!("{:?}", check(&info, &token(), &[])).contains("0123456789abcdef"));
    }

    #[test]
    fn each_wrong_cluster_has_its_error() {
        let authority = authority();
        let text = kubeconfig(&authority);
        let signed = |text: &str| info(text, Some(signature::sign(text, &token())));
        let wrong = |info: &ClusterInfo, hashes: &[CaCertHash]| check(info, &token(), hashes).unwrap_err();
        assert!(matches!(wrong(&info(&text, None), &[]), CheckError::NoSignature { .. }));
        let other = signature::sign("other", &token());
        assert!(matches!(wrong(&info(&text, Some(other)), &[]), CheckError::BadSignature { .. }));
        let error = wrong(&signed(&text), &[hash(&self::authority())]);
        assert_eq!(error, CheckError::OtherCa { found: hash(&authority).to_string() });
        for broken in ["{", "clusters: []", "clusters: [{name: a, cluster: {server: 'http://a'}}]"] {
            assert!(matches!(wrong(&signed(broken), &[]), CheckError::Unusable(_)), "{broken}");
        }
        assert!(matches!(wrong(&ClusterInfo::new(BTreeMap::new()), &[]), CheckError::Unusable(_)));
    }
}
