//! Certificate signing requests: the object that the agent creates, and the cluster's answer in it.

pub(super) mod issuance;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use sha2::{Digest, Sha256};

use super::alt_names::AltNames;
use crate::names::NodeName;

/// A signer of the cluster, and the usages that it allows for a key that is not RSA.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signer {
    name: &'static str,
    usages: [&'static str; 2],
    /// Whether the agent can do nothing without the certificate. Many clusters approve no serving certificate, and Nodes work without.
    is_needed: bool,
}

/// Signs the certificates with which Nodes are clients of the API server.
pub(super) const CLIENT: Signer = Signer {
    name: "kubernetes.io/kube-apiserver-client-kubelet",
    usages: ["digital signature", "client auth"],
    is_needed: true,
};

/// Signs the certificates with which Nodes serve the kubelet API.
pub(super) const SERVING: Signer = Signer {
    name: "kubernetes.io/kubelet-serving",
    usages: ["digital signature", "server auth"],
    is_needed: false,
};
const GROUP: &str = "system:nodes";

/// The user that a Node is to the API server.
pub(super) fn user(node: &NodeName) -> String {
    format!("system:node:{node}")
}

words! {
    /// Whose credentials send the request.
    pub(super) enum Requester {
        Bootstrap = "bootstrap",
        Node = "node",
    }
}

/// The certificate that the agent asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct WantedCertificate<'a> {
    pub(super) signer: Signer,
    pub(super) requester: Requester,
    pub(super) node: &'a NodeName,
    /// Absent for the certificate of a client.
    pub(super) alt_names: Option<&'a AltNames>,
}

/// The request for a Node's certificate.
///
/// Its name follows from its content, so that a second request finds the first one. It also follows from the requester: the bootstrap
/// credentials, which may have other rights, can send a request although the Node's own is not approved.
fn request(wanted: &WantedCertificate, key: &KeyPair) -> Result<CertificateSigningRequest, rcgen::Error> {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, GROUP);
    subject.push(DnType::CommonName, user(wanted.node));
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    if let Some(alt_names) = wanted.alt_names {
        params.subject_alt_names = alt_names.to_sans()?;
    }
    let pem = params.serialize_request(key)?.pem()?;
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name(wanted, key)), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: wanted.signer.name.to_owned(),
            usages: Some(wanted.signer.usages.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

fn name(wanted: &WantedCertificate, key: &KeyPair) -> String {
    let WantedCertificate { signer, requester, node, alt_names } = wanted;
    let (user, alt_names) = (user(node), alt_names.map(AltNames::to_strings).unwrap_or_default());
    let mut digest = Sha256::new();
    let parts = [requester.as_str(), signer.name, GROUP, &user].into_iter().chain(signer.usages);
    for part in parts.chain(alt_names.iter().map(String::as_str)) {
        digest.update(part);
        // Separates the parts: no two lists of parts have the same bytes.
        digest.update([0]);
    }
    digest.update(key.public_key_raw());
    let hash: [u8; 32] = digest.finalize().into();
    hash[..20].iter().fold("node-csr-".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum CsrAnswer {
    Unapproved,
    /// Approved, without a certificate yet.
    Unsigned,
    Issued(String),
    /// Denied or failed, in the cluster's words.
    Refused(String),
}

fn answer(request: &CertificateSigningRequest) -> CsrAnswer {
    let Some(status) = &request.status else { return CsrAnswer::Unapproved };
    let conditions = || status.conditions.iter().flatten();
    if let Some(refusal) = conditions().find(|one| one.type_ == "Denied" || one.type_ == "Failed") {
        return CsrAnswer::Refused(words(refusal));
    }
    match &status.certificate {
        Some(certificate) if !certificate.0.is_empty() => {
            CsrAnswer::Issued(String::from_utf8_lossy(&certificate.0).into_owned())
        }
        _ if conditions().any(|one| one.type_ == "Approved") => CsrAnswer::Unsigned,
        _ => CsrAnswer::Unapproved,
    }
}

fn words(refusal: &CertificateSigningRequestCondition) -> String {
    let verb = if refusal.type_ == "Denied" { "was denied" } else { "failed" };
    let why = [&refusal.reason, &refusal.message];
    let why: Vec<_> = why.into_iter().flatten().filter(|text| !text.is_empty()).map(String::as_str).collect();
    if why.is_empty() { verb.to_owned() } else { format!("{verb} ({})", why.join(": ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use x509_parser::prelude::{FromDer, X509CertificationRequest};

    fn client(node: &NodeName, requester: Requester) -> WantedCertificate<'_> {
        WantedCertificate { signer: CLIENT, requester, node, alt_names: None }
    }

    #[test]
    fn a_request_names_the_node_as_its_subject() {
        let key = KeyPair::generate().unwrap();
        let request = request(&client(&"mac-1".parse().unwrap(), Requester::Node), &key).unwrap();
        let pem = String::from_utf8(request.spec.request.0).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let (_, parsed) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        let subject = parsed.certification_request_info.subject.to_string();
        assert_eq!(subject, "O=system:nodes, CN=system:node:mac-1");
        assert_eq!(request.spec.usages.unwrap(), ["digital signature", "client auth"]);
    }

    #[test]
    fn the_name_of_a_request_follows_from_its_content() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let named = |node: &str, key, requester| {
            request(&client(&node.parse().unwrap(), requester), key).unwrap().metadata.name.unwrap()
        };
        let name = named("a", &one, Requester::Node);
        assert_eq!(named("a", &one, Requester::Node), name);
        for another in [
            named("b", &one, Requester::Node),
            named("a", &other, Requester::Node),
            named("a", &one, Requester::Bootstrap),
        ] {
            assert_ne!(another, name);
        }
        assert_eq!(name.len(), "node-csr-".len() + 40);
    }

    #[test]
    fn a_request_for_a_serving_certificate_has_the_addresses_of_the_node() {
        let (key, node) = (KeyPair::generate().unwrap(), "mac-1".parse().unwrap());
        let request = |address: &str| {
            let alt_names = AltNames::of_node(&node, address.parse().unwrap());
            let wanted = WantedCertificate {
                signer: SERVING,
                requester: Requester::Node,
                node: &node,
                alt_names: Some(&alt_names),
            };
            request(&wanted, &key).unwrap()
        };
        let one = request("10.0.0.1");
        assert_eq!(one.metadata.name, request("10.0.0.1").metadata.name);
        assert_ne!(one.metadata.name, request("10.0.0.2").metadata.name, "another address, another request");
        assert_eq!(one.spec.usages.unwrap(), ["digital signature", "server auth"]);
        let (_, pem) = x509_parser::pem::parse_x509_pem(&one.spec.request.0).unwrap();
        let (_, parsed) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        let extensions = format!("{:?}", parsed.requested_extensions().unwrap().collect::<Vec<_>>());
        assert!(extensions.contains("DNSName(\"mac-1\")"), "{extensions}");
        assert!(extensions.contains("IPAddress([10, 0, 0, 1])"), "{extensions}");
    }

    #[test]
    fn the_answer_follows_from_status_and_conditions() {
        let approved = json!({"type": "Approved", "status": "True"});
        let denied = json!({"type": "Denied", "status": "True", "reason": "No", "message": "not this Mac"});
        let failed = json!({"type": "Failed", "status": "True"});
        for (status, expected) in [
            (json!(null), CsrAnswer::Unapproved),
            (json!({}), CsrAnswer::Unapproved),
            (json!({"conditions": [approved]}), CsrAnswer::Unsigned),
            (json!({"conditions": [approved], "certificate": ""}), CsrAnswer::Unsigned),
            (json!({"conditions": [approved], "certificate": "cGVt"}), CsrAnswer::Issued("pem".to_owned())),
            (json!({"conditions": [denied]}), CsrAnswer::Refused("was denied (No: not this Mac)".to_owned())),
            (json!({"conditions": [approved, failed]}), CsrAnswer::Refused("failed".to_owned())),
        ] {
            let mut object = json!({"metadata": {}, "spec": {"request": "", "signerName": CLIENT.name}});
            if status != Value::Null {
                object["status"] = status.clone();
            }
            assert_eq!(answer(&serde_json::from_value(object).unwrap()), expected, "{status}");
        }
    }
}
