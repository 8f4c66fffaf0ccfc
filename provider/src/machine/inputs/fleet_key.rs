//! The SSH keys of fleets: the Secret `<fleet>-ssh`. Hosts of a pool let a key in that was there when they were installed, so a key is made once and
//! registered before the first host is claimed.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::Mutex;

use crate::apiserver::{ApiError, call, delete};
use crate::pool::{Pool, PoolError};
use crate::ssh::{SshKey, SshKeyError};

const PRIVATE: &str = "id_ed25519";
const PUBLIC: &str = "id_ed25519.pub";

/// The keys of fleets. A key that was registered once is not asked for again.
pub(in crate::machine) struct FleetKeys {
    api: Api<SecretObject>,
    registered: Mutex<HashMap<String, SshKey>>,
}

/// Why a fleet has no key.
#[derive(Debug, thiserror::Error)]
pub(in crate::machine) enum FleetKeyError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("the Secret {name} has no usable {PRIVATE}")]
    Unusable {
        name: String,
        #[source]
        source: SshKeyError,
    },
    #[error("cannot register the SSH key")]
    Register(#[from] PoolError),
}

impl FleetKeys {
    pub(in crate::machine) fn new(client: &Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client.clone(), namespace), registered: Mutex::default() }
    }

    /// The key of a fleet, which hosts of the pool let in that are installed from now on. One machine at a time: two must not make two keys.
    pub(in crate::machine) async fn ensure(
        &self,
        fleet: &str,
        pool: &dyn Pool,
    ) -> Result<SshKey, FleetKeyError> {
        let mut registered = self.registered.lock().await;
        if let Some(key) = registered.get(fleet) {
            return Ok(key.clone());
        }
        let key = self.read_or_create(fleet).await?;
        pool.ensure_ssh_key(fleet, &key.authorized_key()).await?;
        registered.insert(fleet.to_owned(), key.clone());
        Ok(key)
    }

    /// Removes the key of a machine that has no fleet. The key of a fleet stays for its next machine.
    pub(in crate::machine) async fn remove(&self, fleet: &str, pool: &dyn Pool) -> Result<(), FleetKeyError> {
        let mut registered = self.registered.lock().await;
        registered.remove(fleet);
        pool.remove_ssh_key(fleet).await?;
        Ok(delete("delete the SSH key of the machine", &self.api, &secret_name(fleet)).await?)
    }

    async fn read_or_create(&self, fleet: &str) -> Result<SshKey, FleetKeyError> {
        let name = secret_name(fleet);
        if let Some(object) = call("read the SSH key of the fleet", self.api.get_opt(&name)).await? {
            return parse(&name, &object);
        }
        let key = SshKey::generate();
        let private =
            key.private_text().map_err(|source| FleetKeyError::Unusable { name: name.clone(), source })?;
        let data = [(PRIVATE, private), (PUBLIC, key.authorized_key())];
        let labels = [("tuist.dev/managed-by", "tart-provider"), ("tuist.dev/fleet", fleet)];
        let object = SecretObject {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            string_data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
            ..SecretObject::default()
        };
        match call("create the SSH key of the fleet", self.api.create(&PostParams::default(), &object)).await
        {
            Ok(_) => Ok(key),
            // Another provider was faster: its key is the fleet's.
            Err(error) if error.is_conflict() => {
                parse(&name, &call("read the SSH key of the fleet", self.api.get(&name)).await?)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn secret_name(fleet: &str) -> String {
    format!("{fleet}-ssh")
}

fn parse(name: &str, object: &SecretObject) -> Result<SshKey, FleetKeyError> {
    let data = object.data.as_ref().and_then(|data| data.get(PRIVATE));
    let text = data.map(|data| String::from_utf8_lossy(&data.0).into_owned()).unwrap_or_default();
    text.parse().map_err(|source| FleetKeyError::Unusable { name: name.to_owned(), source })
}
