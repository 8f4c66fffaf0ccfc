//! The identity of a cluster, from the kubeconfig: a Node can read nothing else that identifies it.

use std::collections::BTreeSet;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::Config;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cluster {
    pub(crate) server: String,
    /// Digests of the certificate authorities in the kubeconfig; empty if the client trusts the system's authorities.
    pub(crate) authorities: BTreeSet<String>,
}

impl Cluster {
    pub(super) fn of(config: &Config) -> Self {
        let digest = |certificate: &Vec<u8>| BASE64_STANDARD.encode(Sha256::digest(certificate));
        Self {
            server: config.cluster_url.to_string(),
            authorities: config.root_cert.iter().flatten().map(digest).collect(),
        }
    }

    /// Whether it is certainly another cluster. A cluster may change its address or replace its authority; both at once is another
    /// cluster.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        let known = !self.authorities.is_empty() && !other.authorities.is_empty();
        known && self.server != other.server && self.authorities.is_disjoint(&other.authorities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_the_same_while_its_address_or_an_authority_is() {
        let of = |server: &str, authorities: &[&[u8]]| {
            let mut config = Config::new(server.parse().unwrap());
            config.root_cert = Some(authorities.iter().map(|one| one.to_vec()).collect());
            Cluster::of(&config)
        };
        let here = of("https://a:6443", &[b"old", b"new"]);
        for (other, differs) in [
            (of("https://a:6443", &[b"else"]), false),
            (of("https://b:6443", &[b"new"]), false),
            (of("https://b:6443", &[]), false),
            (of("https://b:6443", &[b"else"]), true),
        ] {
            assert_eq!(
                (here.differs_from(&other), other.differs_from(&here)),
                (differs, differs),
                "{other:?}"
            );
        }
    }
}
