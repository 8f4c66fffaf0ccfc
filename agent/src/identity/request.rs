//! A certificate signing request: what the agent asks for, and what the cluster has answered so far.

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use sha2::{Digest, Sha256};

use crate::names::NodeName;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const GROUP: &str = "system:nodes";
/// The signer allows these, and for a key that is not RSA no other.
const USAGES: [&str; 2] = ["digital signature", "client auth"];

/// The user that a Node is to the API server.
pub(crate) fn user(node: &NodeName) -> String {
    format!("system:node:{node}")
}

/// In whose name a certificate is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// That of the bootstrap credentials.
    Bootstrap,
    /// The Node's own.
    Node,
}

/// The request for a Node's certificate.
///
/// Its name follows from what is asked for and by whom, so asking twice finds the first request instead of making a second.
/// But what nobody approves for the Node does not keep the bootstrap credentials, which may have other rights, from asking.
pub(crate) fn request(
    node: &NodeName,
    key: &KeyPair,
    asker: Asker,
) -> Result<CertificateSigningRequest, rcgen::Error> {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, GROUP);
    subject.push(DnType::CommonName, user(node));
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    let pem = params.serialize_request(key)?.pem()?;
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name(node, key, asker)), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

fn name(node: &NodeName, key: &KeyPair, asker: Asker) -> String {
    let asker = match asker {
        Asker::Bootstrap => "bootstrap",
        Asker::Node => "node",
    };
    let mut digest = Sha256::new();
    for part in [asker, SIGNER, GROUP, &user(node)].into_iter().chain(USAGES) {
        digest.update(part);
        // No two lists of parts give the same bytes.
        digest.update([0]);
    }
    digest.update(key.public_key_raw());
    let hash: [u8; 32] = digest.finalize().into();
    hash[..20].iter().fold("node-csr-".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

/// What has become of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CsrAnswer {
    /// Nobody has approved it.
    Unapproved,
    /// It is approved, and there is no certificate yet.
    Unsigned,
    /// There is a certificate.
    Issued(String),
    /// There will never be one, in the cluster's words.
    Refused(String),
}

/// Reads the answer off a request.
pub(crate) fn answer(request: &CertificateSigningRequest) -> CsrAnswer {
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

    fn node() -> NodeName {
        "mac-1".parse().unwrap()
    }

    #[test]
    fn a_request_says_who_the_node_is() {
        let key = KeyPair::generate().unwrap();
        let request = request(&node(), &key, Asker::Node).unwrap();
        let pem = String::from_utf8(request.spec.request.0).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let (_, parsed) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        let subject = parsed.certification_request_info.subject.to_string();
        assert_eq!(subject, "O=system:nodes, CN=system:node:mac-1");
        assert_eq!(request.spec.usages.unwrap(), ["digital signature", "client auth"]);
    }

    #[test]
    fn asking_again_asks_for_the_same() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let named = |node: &str, key, asker| {
            request(&node.parse().unwrap(), key, asker).unwrap().metadata.name.unwrap()
        };
        let name = named("a", &one, Asker::Node);
        assert_eq!(named("a", &one, Asker::Node), name);
        for another in [
            named("b", &one, Asker::Node),
            named("a", &other, Asker::Node),
            named("a", &one, Asker::Bootstrap),
        ] {
            assert_ne!(another, name);
        }
        assert_eq!(name.len(), "node-csr-".len() + 40);
    }

    #[test]
    fn answers_are_told_apart() {
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
            let mut object = json!({"metadata": {}, "spec": {"request": "", "signerName": SIGNER}});
            if status != Value::Null {
                object["status"] = status.clone();
            }
            assert_eq!(answer(&serde_json::from_value(object).unwrap()), expected, "{status}");
        }
    }
}
