//! The values of a container's variables, and which one wins: a pure function.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvFromSource, EnvVarSource, Pod, Secret};
use kube::ResourceExt;

use super::downward::{self, DownwardError};
use super::expansion::expand;
use crate::apiserver::watched_objects::ObjectError;
use crate::quantity::ResourceList;

/// Why a container has no environment. The words are the kubelet's, which people search for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("configmap \"{0}\" not found")]
    ConfigMapMissing(String),
    #[error("secret \"{0}\" not found")]
    SecretMissing(String),
    /// The kind is `ConfigMap` or `Secret`.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    KeyMissing { key: String, kind: &'static str, namespace: String, name: String },
    #[error(transparent)]
    Downward(#[from] DownwardError),
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("services have not yet been read at least once, cannot construct envvars: {0}")]
    Services(#[source] ObjectError),
    #[error(
        "key {key} in Secret {namespace}/{name} is not valid UTF-8: no environment variable can be made of it; mount the Secret as a volume"
    )]
    NotText { key: String, namespace: String, name: String },
    #[error("the value of environment variable {0} has a NUL byte")]
    Nul(String),
    #[error("environment variable {0}: fileKeyRef is not supported by this node")]
    FileKeyRef(String),
}

/// The objects and facts when a container is about to start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// The `ConfigMaps` that its environment names; nothing for one that does not exist.
    pub(crate) config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    /// The Secrets that its environment names; nothing for one that does not exist.
    pub(crate) secrets: BTreeMap<String, Option<Arc<Secret>>>,
    /// The variables for Services.
    pub(crate) services: Vec<(String, String)>,
    pub(crate) host_ip: Option<IpAddr>,
    pub(crate) allocatable: Arc<ResourceList>,
}

/// A container's environment.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Names, each of them once, and values. Some are secret. [`POD_IP`](crate::state::POD_IP) stands for the Pod's address.
    pub(crate) variables: Vec<(String, String)>,
}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.variables.iter().map(|(name, _)| name).collect();
        f.debug_struct("Resolved").field("names", &names).finish()
    }
}

/// Variables in the order in which they were first set.
#[derive(Default)]
struct Variables {
    list: Vec<(String, String)>,
    places: HashMap<String, usize>,
}

impl Variables {
    fn set(&mut self, name: String, value: String) {
        match self.places.get(&name) {
            Some(&place) => self.list[place].1 = value,
            None => {
                self.places.insert(name.clone(), self.list.len());
                self.list.push((name, value));
            }
        }
    }

    fn get(&self, name: &str) -> Option<String> {
        self.places.get(name).map(|&place| self.list[place].1.clone())
    }
}

/// A container's variables. Those from whole objects override those for Services, and its own override both. Each of its own can use
/// all that were set before it.
pub(crate) fn resolve(pod: &Pod, container: &Container, known: &Snapshot) -> Result<Resolved, ConfigError> {
    let mut variables = Variables::default();
    for (name, value) in &known.services {
        variables.set(name.clone(), value.clone());
    }
    let sources = Sources { pod, container, known, namespace: pod.namespace().unwrap_or_default() };
    for from in container.env_from.iter().flatten() {
        // As in the kubelet, every name that the API server accepts is one.
        for (key, value) in sources.whole(from)? {
            let name = format!("{}{key}", from.prefix.as_deref().unwrap_or_default());
            let value = without_nul(&name, value)?;
            variables.set(name, value);
        }
    }
    for variable in container.env.iter().flatten() {
        let literal = variable.value.as_deref().filter(|value| !value.is_empty());
        let value = match (literal, &variable.value_from) {
            (Some(literal), _) => {
                let literal = without_nul(&variable.name, literal.to_owned())?;
                Some(expand(&literal, |name| variables.get(name)))
            }
            (None, Some(from)) => sources.one(&variable.name, from)?,
            (None, None) => Some(String::new()),
        };
        // A missing optional value leaves an earlier one in place.
        if let Some(value) = value {
            variables.set(variable.name.clone(), value);
        }
    }
    Ok(Resolved { variables: variables.list })
}

fn without_nul(name: &str, value: String) -> Result<String, ConfigError> {
    if value.contains('\0') { Err(ConfigError::Nul(name.to_owned())) } else { Ok(value) }
}

/// An object that an environment names; nothing when it is optional and does not exist.
fn found<'a, T>(
    objects: &'a BTreeMap<String, Option<Arc<T>>>,
    name: &str,
    optional: Option<bool>,
    missing: fn(String) -> ConfigError,
) -> Result<Option<&'a T>, ConfigError> {
    match objects.get(name).and_then(Option::as_deref) {
        None if optional != Some(true) => Err(missing(name.to_owned())),
        found => Ok(found),
    }
}

/// Where values come from.
struct Sources<'a> {
    pod: &'a Pod,
    container: &'a Container,
    known: &'a Snapshot,
    namespace: String,
}

impl Sources<'_> {
    /// All of an object; nothing when it is optional and does not exist.
    fn whole(&self, from: &EnvFromSource) -> Result<Vec<(String, String)>, ConfigError> {
        let (maps, secrets) = (&self.known.config_maps, &self.known.secrets);
        if let Some(source) = &from.config_map_ref {
            let object = found(maps, &source.name, source.optional, ConfigError::ConfigMapMissing)?;
            Ok(object.and_then(|object| object.data.clone()).into_iter().flatten().collect())
        } else if let Some(source) = &from.secret_ref {
            let object = found(secrets, &source.name, source.optional, ConfigError::SecretMissing)?;
            let data = object.and_then(|object| object.data.as_ref()).into_iter().flatten();
            data.map(|(key, value)| Ok((key.clone(), self.text(&source.name, key, &value.0)?))).collect()
        } else {
            Ok(Vec::new())
        }
    }

    /// One value; nothing when it is optional and does not exist.
    fn one(&self, variable: &str, from: &EnvVarSource) -> Result<Option<String>, ConfigError> {
        if let Some(source) = &from.field_ref {
            return Ok(Some(downward::field(&source.field_path, self.pod, self.known.host_ip)?));
        }
        if let Some(source) = &from.resource_field_ref {
            let allocatable = &self.known.allocatable;
            return Ok(Some(downward::resource(source, self.pod, Some(self.container), allocatable)?));
        }
        let (kind, name, key, optional, value) = if let Some(source) = &from.config_map_key_ref {
            let object =
                found(&self.known.config_maps, &source.name, source.optional, ConfigError::ConfigMapMissing)?;
            let value = object.and_then(|object| object.data.as_ref()?.get(&source.key).cloned());
            ("ConfigMap", &source.name, &source.key, source.optional, value)
        } else if let Some(source) = &from.secret_key_ref {
            let object =
                found(&self.known.secrets, &source.name, source.optional, ConfigError::SecretMissing)?;
            let value = object.and_then(|object| object.data.as_ref()?.get(&source.key));
            let value = value.map(|value| self.text(&source.name, &source.key, &value.0)).transpose()?;
            ("Secret", &source.name, &source.key, source.optional, value)
        } else if from.file_key_ref.is_some() {
            return Err(ConfigError::FileKeyRef(variable.to_owned()));
        } else {
            return Ok(Some(String::new()));
        };
        match value {
            Some(value) => Ok(Some(without_nul(variable, value)?)),
            None if optional == Some(true) => Ok(None),
            None => Err(ConfigError::KeyMissing {
                key: key.clone(),
                kind,
                namespace: self.namespace.clone(),
                name: name.clone(),
            }),
        }
    }

    /// A Secret's value. It must be text: the guest agent accepts nothing else.
    fn text(&self, secret: &str, key: &str, bytes: &[u8]) -> Result<String, ConfigError> {
        let text = str::from_utf8(bytes).map(str::to_owned);
        text.map_err(|_| ConfigError::NotText {
            key: key.to_owned(),
            namespace: self.namespace.clone(),
            name: secret.to_owned(),
        })
    }
}
