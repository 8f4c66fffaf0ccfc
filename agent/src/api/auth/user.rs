//! The user who sends a request.

use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::UserInfo;
use rustls::pki_types::CertificateDer;
use x509_parser::parse_x509_certificate;

/// The group of every user that is known.
const AUTHENTICATED: &str = "system:authenticated";

/// A user as the API server knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct User {
    pub(super) name: String,
    pub(super) uid: Option<String>,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl User {
    fn new(
        name: String,
        uid: Option<String>,
        mut groups: Vec<String>,
        extra: BTreeMap<String, Vec<String>>,
    ) -> Self {
        if groups.iter().all(|group| group != AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Self { name, uid, groups, extra }
    }

    /// The owner of a client certificate: its common name, in the groups that its organizations name. `None` without a name.
    pub(super) fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = parse_x509_certificate(certificate).ok()?;
        let subject = parsed.subject();
        let name = subject.iter_common_name().next()?.as_str().ok().filter(|name| !name.is_empty())?;
        let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
        Some(Self::new(name.to_owned(), None, groups.map(str::to_owned).collect(), BTreeMap::new()))
    }

    /// The owner of a bearer token, as the API server names it. `None` without a name.
    pub(super) fn of_token(info: UserInfo) -> Option<Self> {
        let name = info.username.filter(|name| !name.is_empty())?;
        Some(Self::new(name, info.uid, info.groups.unwrap_or_default(), info.extra.unwrap_or_default()))
    }
}

#[cfg(test)]
impl User {
    pub(super) fn example(name: &str) -> Self {
        Self::new(name.to_owned(), None, Vec::new(), BTreeMap::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    fn certificate(names: &[(DnType, &str)]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, name) in names {
            params.distinguished_name.push(kind.clone(), *name);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_names_a_user_and_its_groups() {
        let named =
            certificate(&[(DnType::OrganizationName, "system:masters"), (DnType::CommonName, "admin")]);
        let user = User::of_certificate(&named).unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups),
            ("admin", vec!["system:masters".to_owned(), AUTHENTICATED.to_owned()])
        );
        let nameless = certificate(&[(DnType::OrganizationName, "system:masters")]);
        assert_eq!(User::of_certificate(&nameless), None);
        let empty = certificate(&[(DnType::CommonName, "")]);
        assert_eq!(User::of_certificate(&empty), None);
        assert_eq!(User::of_certificate(&CertificateDer::from(vec![0; 8])), None);
    }

    #[test]
    fn a_token_has_the_user_that_the_api_server_names() {
        let info = UserInfo {
            username: Some("system:serviceaccount:a:b".to_owned()),
            groups: Some(vec![AUTHENTICATED.to_owned()]),
            ..UserInfo::default()
        };
        let user = User::of_token(info).unwrap();
        assert_eq!(user.groups, [AUTHENTICATED], "a group is there once");
        assert_eq!(User::of_token(UserInfo::default()), None);
    }
}
