//! Kubeconfig files: the credentials in one, and the one that the agent writes after a bootstrap.

use std::io;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::Config;
use kube::config::{
    AuthInfo, Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo, NamedContext,
};
use serde_json::json;

use super::certificate::{CertificateFacts, CertifiedKey};
use super::csr::user;
use super::decide::{FoundCredentials, Lifetime};
use super::store::CertificateStore;
use crate::error_chain::chain;
use crate::names::NodeName;

/// The name of the one cluster, user and context in a kubeconfig that the agent writes.
const ONLY: &str = "default";

/// A kubeconfig that the agent has read.
#[derive(Debug)]
pub(super) struct LoadedKubeconfig {
    pub(super) credentials: FoundCredentials,
    /// `None` if the kubeconfig cannot be used.
    pub(super) config: Option<Config>,
}

impl LoadedKubeconfig {
    fn unusable(why: impl Into<String>) -> Self {
        Self { credentials: FoundCredentials::Unusable(why.into()), config: None }
    }
}

pub(super) async fn load(path: &Path) -> Result<(Kubeconfig, Config), KubeconfigError> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &KubeConfigOptions::default()).await?;
    Ok((kubeconfig, config))
}

/// Reads the agent's kubeconfig, and finds out which credentials it has.
pub(super) async fn inspect(path: &Path, store: &CertificateStore, node: &NodeName) -> LoadedKubeconfig {
    let config = match load(path).await {
        Ok((_, config)) => config,
        Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == io::ErrorKind::NotFound => {
            return LoadedKubeconfig { credentials: FoundCredentials::Absent, config: None };
        }
        Err(error) => return LoadedKubeconfig::unusable(chain(&error)),
    };
    if is_own(&config.auth_info, store) {
        return match store.current() {
            Ok((certified, _)) if certified.facts.user != user(node) => {
                let certificate_user = &certified.facts.user;
                LoadedKubeconfig::unusable(format!(
                    "its certificate is for {certificate_user}, not for {}",
                    user(node)
                ))
            }
            Ok((certified, starts)) => {
                let lifetime =
                    Lifetime { starts, ends: certified.facts.ends, jitter: certified.facts.number };
                LoadedKubeconfig {
                    credentials: FoundCredentials::Own(lifetime),
                    config: Some(with_certificate(config, &certified)),
                }
            }
            Err(error) => LoadedKubeconfig::unusable(chain(&error)),
        };
    }
    match given_certificate(&config.auth_info) {
        None => LoadedKubeconfig { credentials: FoundCredentials::Endless, config: Some(config) },
        Some(Err(why)) => LoadedKubeconfig::unusable(why),
        Some(Ok(facts)) => LoadedKubeconfig {
            credentials: FoundCredentials::Given { ends: facts.ends },
            config: Some(config),
        },
    }
}

/// Whether the kubeconfig names the certificate that the agent requested, by whatever path.
fn is_own(user: &AuthInfo, store: &CertificateStore) -> bool {
    let (Some(named), own) = (user.client_certificate.as_deref().map(Path::new), store.current_path()) else {
        return false;
    };
    named == own || matches!((named.canonicalize(), own.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// The configuration with another certificate.
pub(super) fn with_certificate(mut config: Config, certified: &CertifiedKey) -> Config {
    let encode = |pem: &str| BASE64_STANDARD.encode(pem);
    // Through serde, because the type of the key has no other public constructor.
    let inline = json!({
        "client-certificate-data": encode(certified.certificate()),
        "client-key-data": encode(certified.key()),
    });
    if let Ok(AuthInfo { client_certificate_data, client_key_data, .. }) = serde_json::from_value(inline) {
        config.auth_info.client_certificate_data = client_certificate_data;
        config.auth_info.client_key_data = client_key_data;
    }
    // The file holds certificate and key: as `client_certificate` it would be read as two certificates.
    config.auth_info.client_certificate = None;
    config.auth_info.client_key = None;
    config
}

fn given_certificate(user: &AuthInfo) -> Option<Result<CertificateFacts, String>> {
    let pem = match (&user.client_certificate_data, &user.client_certificate) {
        (Some(data), _) => BASE64_STANDARD
            .decode(data)
            .map_err(|error| format!("its client-certificate-data is not base64: {error}")),
        (None, Some(path)) => std::fs::read(path)
            .map_err(|error| format!("its client-certificate {path} cannot be read: {error}")),
        (None, None) => return None,
    };
    Some(pem.and_then(|pem| CertificateFacts::read(&pem).map_err(|error| chain(&error))))
}

/// The kubeconfig to write after a bootstrap: the cluster of the bootstrap kubeconfig, with the certificate as the user.
pub(super) fn after_bootstrap(bootstrap: &Kubeconfig, certificate: &Path) -> Option<Kubeconfig> {
    let named = |wanted: &str| bootstrap.contexts.iter().find(|context| context.name == wanted);
    let context = named(bootstrap.current_context.as_deref()?)?.context.as_ref()?;
    let mut cluster = bootstrap.clusters.iter().find(|cluster| cluster.name == context.cluster)?.clone();
    ONLY.clone_into(&mut cluster.name);
    // Certificate and key are in one file, so that a reader never sees one without the other.
    let file = Some(certificate.to_string_lossy().into_owned());
    let identity = AuthInfo { client_certificate: file.clone(), client_key: file, ..AuthInfo::default() };
    let only = Context {
        cluster: ONLY.to_owned(),
        user: Some(ONLY.to_owned()),
        namespace: context.namespace.clone(),
        ..Context::default()
    };
    Some(Kubeconfig {
        api_version: Some("v1".to_owned()),
        kind: Some("Config".to_owned()),
        clusters: vec![cluster],
        auth_infos: vec![NamedAuthInfo {
            name: ONLY.to_owned(),
            auth_info: Some(identity),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext {
            name: ONLY.to_owned(),
            context: Some(only),
            ..NamedContext::default()
        }],
        current_context: Some(ONLY.to_owned()),
        ..Kubeconfig::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::certificate::tests::signed;
    use rcgen::KeyPair;
    use std::path::PathBuf;

    struct TestFiles {
        _dir: tempfile::TempDir,
        path: PathBuf,
        store: CertificateStore,
    }

    fn test_files() -> TestFiles {
        let dir = crate::testing::dir();
        let store = CertificateStore::client(&dir.path().join("pki"));
        TestFiles { path: dir.path().join("kubeconfig"), store, _dir: dir }
    }

    fn text(user: &str) -> String {
        format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: b, user: c, namespace: n}}}}], \
             clusters: [{{name: b, cluster: {{server: 'https://localhost:1', tls-server-name: t}}}}, {{name: z, cluster: {{}}}}], \
             users: [{{name: c, user: {user}}}]}}"
        )
    }

    async fn credentials(files: &TestFiles, node: &str) -> FoundCredentials {
        inspect(&files.path, &files.store, &node.parse().unwrap()).await.credentials
    }

    #[tokio::test]
    async fn the_credentials_of_a_kubeconfig_are_found() {
        let files = test_files();
        assert_eq!(credentials(&files, "a").await, FoundCredentials::Absent);
        for broken in
            ["{", "{}", &text("{client-certificate-data: AAAA}"), &text("{client-certificate: /nowhere}")]
        {
            std::fs::write(&files.path, broken).unwrap();
            assert!(matches!(credentials(&files, "a").await, FoundCredentials::Unusable(_)), "{broken}");
        }
        std::fs::write(&files.path, text("{token: t}")).unwrap();
        assert_eq!(credentials(&files, "a").await, FoundCredentials::Endless);
        let pem = BASE64_STANDARD.encode(signed("admin", &KeyPair::generate().unwrap()));
        std::fs::write(&files.path, text(&format!("{{client-certificate-data: {pem}}}"))).unwrap();
        assert!(matches!(credentials(&files, "a").await, FoundCredentials::Given { .. }));
    }

    #[tokio::test]
    async fn a_kubeconfig_that_the_agent_wrote_has_its_own_certificate() {
        let files = test_files();
        std::fs::write(&files.path, text("{token: t}")).unwrap();
        let (bootstrap, _) = load(&files.path).await.unwrap();
        let own = after_bootstrap(&bootstrap, &files.store.current_path()).unwrap();
        assert_eq!(own.clusters.len(), 1);
        let yaml = serde_saphyr::to_string(&own).unwrap();
        assert!(!yaml.contains("token"), "{yaml}");
        std::fs::write(&files.path, yaml).unwrap();
        assert!(
            matches!(credentials(&files, "a").await, FoundCredentials::Unusable(_)),
            "there is no certificate yet"
        );

        let key = KeyPair::generate().unwrap();
        files.store.set_current(&CertifiedKey::new(&signed("system:node:a", &key), &key).unwrap()).unwrap();
        let found = inspect(&files.path, &files.store, &"a".parse().unwrap()).await;
        assert!(matches!(found.credentials, FoundCredentials::Own(_)), "{:?}", found.credentials);
        let config = found.config.unwrap();
        assert_eq!(config.tls_server_name.as_deref(), Some("t"));
        assert_eq!(config.default_namespace, "n");
        assert!(
            config.auth_info.client_certificate_data.is_some()
                && config.auth_info.client_certificate.is_none()
        );
        let FoundCredentials::Unusable(why) = credentials(&files, "b").await else {
            panic!("another Node's")
        };
        assert_eq!(why, "its certificate is for system:node:a, not for system:node:b");
    }
}
