//! What the provider knows about a host and shows to no one: the Secret `<machine>-bootstrap`.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};

use crate::apiserver::{ApiError, call, delete};
use crate::host::Secret;
use crate::pool::{Host, Password};
use crate::ssh::Fingerprint;

const PASSWORD: &str = "sudo-password";
const USER: &str = "ssh-username";
const FINGERPRINT: &str = "host-fingerprint";
/// What Scaleway shows in place of a password. Tried as one, it locks the account.
const SEALED: &[u8] = b"<sealed>";

/// What the provider knows about a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::machine) struct HostCredentials {
    /// The user.
    pub(in crate::machine) user: String,
    /// The user's password, if it was ever shown.
    pub(in crate::machine) password: Option<Secret>,
    /// The host key, once it was seen.
    pub(in crate::machine) fingerprint: Option<Fingerprint>,
}

impl HostCredentials {
    /// What the pool says about a host that has an address.
    pub(in crate::machine) fn of(host: &Host) -> Option<Self> {
        let password = match &host.password {
            Password::Known(password) => Some(password.clone()),
            Password::Sealed | Password::Absent => None,
        };
        let user = host.ssh.as_ref()?.user.clone();
        Some(Self { user, password, fingerprint: host.fingerprint.clone() })
    }
}

/// The Secrets of machines, in one namespace.
#[derive(Clone)]
pub(in crate::machine) struct CredentialStore {
    api: Api<SecretObject>,
}

impl CredentialStore {
    pub(in crate::machine) fn new(client: &Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client.clone(), namespace) }
    }

    /// `None` if there is no Secret, or one without a user.
    pub(in crate::machine) async fn read(&self, machine: &str) -> Result<Option<HostCredentials>, ApiError> {
        let read = call("read the credentials of the host", self.api.get_opt(&name(machine))).await?;
        Ok(read.and_then(|object| parse(&object.data.unwrap_or_default())))
    }

    pub(in crate::machine) async fn write(
        &self,
        machine: &str,
        known: &HostCredentials,
    ) -> Result<(), ApiError> {
        let password = known.password.as_ref().map(|password| password.expose().to_vec());
        let fingerprint = known.fingerprint.as_ref().map(ToString::to_string).map(String::into_bytes);
        let fields =
            [(USER, Some(known.user.clone().into_bytes())), (PASSWORD, password), (FINGERPRINT, fingerprint)];
        let data = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), ByteString(value?))));
        let labels = [("tuist.dev/managed-by", "tart-provider")];
        let object = SecretObject {
            metadata: ObjectMeta {
                name: Some(name(machine)),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            data: Some(data.collect()),
            ..SecretObject::default()
        };
        let apply = PatchParams::apply("tart-provider").force();
        call(
            "write the credentials of the host",
            self.api.patch(&name(machine), &apply, &Patch::Apply(&object)),
        )
        .await
        .map(drop)
    }

    pub(in crate::machine) async fn remove(&self, machine: &str) -> Result<(), ApiError> {
        delete("delete the credentials of the host", &self.api, &name(machine)).await
    }
}

fn name(machine: &str) -> String {
    format!("{machine}-bootstrap")
}

fn parse(data: &BTreeMap<String, ByteString>) -> Option<HostCredentials> {
    let field = |key| data.get(key).map(|value| value.0.as_slice()).filter(|value| !value.is_empty());
    let text = |key| field(key).and_then(|value| String::from_utf8(value.to_vec()).ok());
    Some(HostCredentials {
        user: text(USER)?,
        password: field(PASSWORD).filter(|value| *value != SEALED).map(|value| Secret::new(value.to_vec())),
        fingerprint: text(FINGERPRINT).and_then(|text| text.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(fields: &[(&str, &str)]) -> Option<HostCredentials> {
        let data =
            fields.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())));
        parse(&data.collect())
    }

    #[test]
    fn a_secret_of_the_go_provider_is_read() {
        let fingerprint = format!("SHA256:{}", "a".repeat(43));
        let read =
            parsed(&[(USER, "m1"), (PASSWORD, "horse"), (FINGERPRINT, &fingerprint)]).expect("credentials");
        assert_eq!(read.user, "m1");
        assert_eq!(read.password.map(|password| password.expose().to_vec()), Some(b"horse".to_vec()));
        assert_eq!(read.fingerprint.map(|known| known.to_string()), Some(fingerprint));
        assert_eq!(parsed(&[(PASSWORD, "horse")]), None);
    }

    #[test]
    fn a_sealed_or_empty_password_is_none() {
        for sealed in ["", "<sealed>"] {
            assert_eq!(parsed(&[(USER, "m1"), (PASSWORD, sealed)]).expect("credentials").password, None);
        }
    }
}
