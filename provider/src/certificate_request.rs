//! What a certificate signing request asks for.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;

/// What a certificate is to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) common_names: Vec<String>,
    pub(crate) organizations: Vec<String>,
    pub(crate) dns_names: BTreeSet<String>,
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Whether there are names of any other kind.
    pub(crate) has_other_names: bool,
}

/// Reads a request in PEM.
pub(crate) fn parse(pem: &[u8]) -> Result<Content, String> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).map_err(|_| "it is no PEM".to_owned())?;
    let unreadable = |_| "it is no certificate signing request".to_owned();
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).map_err(unreadable)?;
    let info = &request.certification_request_info;
    let texts = |values: Vec<Option<&str>>| -> Vec<String> {
        values.into_iter().map(|value| value.unwrap_or_default().to_owned()).collect()
    };
    let mut content = Content {
        common_names: texts(info.subject.iter_common_name().map(|name| name.as_str().ok()).collect()),
        organizations: texts(info.subject.iter_organization().map(|name| name.as_str().ok()).collect()),
        ..Content::default()
    };
    let known = content.common_names.len() + content.organizations.len();
    // Any other part of the subject is one too many.
    content.has_other_names = info.subject.iter_attributes().count() != known;
    for extension in request.requested_extensions().into_iter().flatten() {
        if let ParsedExtension::SubjectAlternativeName(names) = extension {
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(dns) => drop(content.dns_names.insert((*dns).to_owned())),
                    GeneralName::IPAddress(bytes) => match address(bytes) {
                        Some(address) => drop(content.addresses.insert(address)),
                        None => content.has_other_names = true,
                    },
                    _ => content.has_other_names = true,
                }
            }
        }
    }
    Ok(content)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Whether a request is for a certificate of this Node: by the Node itself, or by the token that it has joined with.
pub(crate) fn is_of_node(request: &CertificateSigningRequest, node: &str) -> bool {
    let user = format!("system:node:{node}");
    let asked_by = request.spec.username.as_deref().unwrap_or_default();
    let names_it =
        || parse(&request.spec.request.0).is_ok_and(|content| content.common_names == [user.as_str()]);
    asked_by == user || (asked_by.starts_with("system:bootstrap:") && names_it())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn pem(organization: &str, sans: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, "system:node:mac");
        params.subject_alt_names = sans;
        let key = KeyPair::generate().unwrap();
        params.serialize_request(&key).unwrap().pem().unwrap().into_bytes()
    }

    #[test]
    fn a_real_request_is_read() {
        let sans = vec![
            SanType::DnsName("mac".try_into().unwrap()),
            SanType::IpAddress("10.0.0.1".parse().unwrap()),
        ];
        let read = parse(&pem("system:nodes", sans)).unwrap();
        assert_eq!(
            (read.common_names, read.organizations),
            (vec!["system:node:mac".to_owned()], vec!["system:nodes".to_owned()])
        );
        assert_eq!(
            (read.dns_names, read.addresses),
            (["mac".to_owned()].into(), ["10.0.0.1".parse().unwrap()].into())
        );
        assert!(!read.has_other_names);
        let uri = vec![SanType::URI("spiffe://x".try_into().unwrap())];
        assert!(parse(&pem("system:nodes", uri)).unwrap().has_other_names);
        assert!(parse(b"nonsense").is_err());
    }
}
