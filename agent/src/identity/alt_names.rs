//! The names and addresses that a serving certificate is for.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rcgen::SanType;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use crate::names::NodeName;

/// Subject alternative names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct AltNames {
    names: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
}

impl AltNames {
    /// Those of a Node: exactly what its status lists, as approvers compare them.
    pub(super) fn of_node(node: &NodeName, address: IpAddr) -> Self {
        Self { names: [node.to_string()].into(), addresses: [address].into() }
    }

    /// Those in a certificate.
    pub(super) fn of_certificate(certificate: &X509Certificate<'_>) -> Self {
        let mut found = Self::default();
        let listed = certificate.subject_alternative_name().ok().flatten();
        for name in listed.iter().flat_map(|extension| &extension.value.general_names) {
            match name {
                GeneralName::DNSName(name) => drop(found.names.insert((*name).to_owned())),
                GeneralName::IPAddress(bytes) => found.addresses.extend(address(bytes)),
                _ => {}
            }
        }
        found
    }

    pub(super) fn to_sans(&self) -> Result<Vec<SanType>, rcgen::Error> {
        let names = self.names.iter().map(|name| Ok(SanType::DnsName(name.as_str().try_into()?)));
        names.chain(self.addresses.iter().map(|address| Ok(SanType::IpAddress(*address)))).collect()
    }

    pub(super) fn to_strings(&self) -> Vec<String> {
        self.names.iter().cloned().chain(self.addresses.iter().map(IpAddr::to_string)).collect()
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    #[test]
    fn a_certificate_has_the_names_that_it_was_asked_for() {
        for address in ["10.0.0.1", "fd00::1"] {
            let wanted = AltNames::of_node(&"mac-1".parse().unwrap(), address.parse().unwrap());
            let mut params = CertificateParams::default();
            params.subject_alt_names = wanted.to_sans().unwrap();
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let (_, parsed) = x509_parser::parse_x509_certificate(certificate.der()).unwrap();
            assert_eq!(AltNames::of_certificate(&parsed), wanted);
            assert_eq!(wanted.to_strings(), ["mac-1", address]);
        }
    }
}
