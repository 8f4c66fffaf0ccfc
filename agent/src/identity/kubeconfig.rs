//! Kubeconfig files: the credentials in one, and the one that the agent writes after a bootstrap.

use std::io;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::Config;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use serde_json::json;

use super::certificate::{CertificateFacts, CertifiedKey};
use super::csr::user;
use super::decide::{FoundCredentials, Lifetime};
use super::store::CertificateStore;
use crate::error_chain::chain;
use crate::names::NodeName;

/// The name of the one cluster, user and context in a kubeconfig that the agent writes.
const ONLY: &str = "default";

pub(super) async fn load(path: &Path) -> Result<(Kubeconfig, Config), KubeconfigError> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &KubeConfigOptions::default()).await?;
    Ok((kubeconfig, config))
}

/// Reads the agent's kubeconfig: which credentials it has, and the configuration if they can be used.
pub(super) async fn inspect(
    path: &Path,
    store: &CertificateStore,
    node: &NodeName,
) -> (FoundCredentials, Option<Config>) {
    let config = match load(path).await {
        Ok((_, config)) => config,
        Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == io::ErrorKind::NotFound => {
            return (FoundCredentials::Absent, None);
        }
        Err(error) => return (FoundCredentials::Unusable(chain(&error)), None),
    };
    let is_own = is_own(&config.auth_info, store);
    match if is_own { own_certificate(config, store, node) } else { given_credentials(config) } {
        Ok((credentials, config)) => (credentials, Some(config)),
        Err(why) => (FoundCredentials::Unusable(why), None),
    }
}

fn own_certificate(
    config: Config,
    store: &CertificateStore,
    node: &NodeName,
) -> Result<(FoundCredentials, Config), String> {
    let (certified, starts) = store.current().map_err(|error| chain(&error))?;
    let CertificateFacts { ends, number: jitter, user: of, .. } = &certified.facts;
    if *of != user(node) {
        return Err(format!("its certificate is for {of}, not for {}", user(node)));
    }
    let lifetime = Lifetime { starts, ends: *ends, jitter: *jitter };
    Ok((FoundCredentials::Own(lifetime), with_certificate(config, &certified)))
}

fn given_credentials(config: Config) -> Result<(FoundCredentials, Config), String> {
    let user = &config.auth_info;
    let pem = match (&user.client_certificate_data, &user.client_certificate) {
        (Some(data), _) => BASE64_STANDARD
            .decode(data)
            .map_err(|error| format!("its client-certificate-data is not base64: {error}"))?,
        (None, Some(path)) => std::fs::read(path)
            .map_err(|error| format!("its client-certificate {path} cannot be read: {error}"))?,
        (None, None) => return Ok((FoundCredentials::Endless, config)),
    };
    let facts = CertificateFacts::read(&pem).map_err(|error| chain(&error))?;
    Ok((FoundCredentials::Given { ends: facts.ends }, config))
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
        "client-certificate-data": encode(&certified.certificate),
        "client-key-data": encode(&certified.key),
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

/// The kubeconfig to write after a bootstrap: the cluster of the bootstrap kubeconfig, with the certificate as the user.
pub(super) fn after_bootstrap(bootstrap: &Kubeconfig, certificate: &Path) -> Option<Kubeconfig> {
    let named = |wanted: &str| bootstrap.contexts.iter().find(|context| context.name == wanted);
    let context = named(bootstrap.current_context.as_deref()?)?.context.as_ref()?;
    let mut cluster = bootstrap.clusters.iter().find(|cluster| cluster.name == context.cluster)?.clone();
    ONLY.clone_into(&mut cluster.name);
    // Certificate and key are in one file, so that a reader never sees one without the other.
    let file = certificate.to_string_lossy();
    let own = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": ONLY, "user": {"client-certificate": file, "client-key": file}}],
        "contexts": [{"name": ONLY, "context": {"cluster": ONLY, "user": ONLY, "namespace": context.namespace}}],
        "current-context": ONLY,
    });
    serde_json::from_value(own).ok()
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

    async fn found(files: &TestFiles, node: &str) -> FoundCredentials {
        inspect(&files.path, &files.store, &node.parse().unwrap()).await.0
    }

    #[tokio::test]
    async fn the_credentials_of_a_kubeconfig_are_found() {
        let files = test_files();
        assert_eq!(found(&files, "a").await, FoundCredentials::Absent);
        for broken in
            ["{", "{}", &text("{client-certificate-data: AAAA}"), &text("{client-certificate: /nowhere}")]
        {
            std::fs::write(&files.path, broken).unwrap();
            assert!(matches!(found(&files, "a").await, FoundCredentials::Unusable(_)), "{broken}");
        }
        std::fs::write(&files.path, text("{token: t}")).unwrap();
        assert_eq!(found(&files, "a").await, FoundCredentials::Endless);
        let pem = BASE64_STANDARD.encode(signed("admin", &KeyPair::generate().unwrap()));
        std::fs::write(&files.path, text(&format!("{{client-certificate-data: {pem}}}"))).unwrap();
        assert!(matches!(found(&files, "a").await, FoundCredentials::Given { .. }));
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
            matches!(found(&files, "a").await, FoundCredentials::Unusable(_)),
            "there is no certificate yet"
        );

        let key = KeyPair::generate().unwrap();
        files.store.set_current(&CertifiedKey::new(&signed("system:node:a", &key), &key).unwrap()).unwrap();
        let (credentials, config) = inspect(&files.path, &files.store, &"a".parse().unwrap()).await;
        assert!(matches!(credentials, FoundCredentials::Own(_)), "{credentials:?}");
        let config = config.unwrap();
        assert_eq!(config.tls_server_name.as_deref(), Some("t"));
        assert_eq!(config.default_namespace, "n");
        assert!(
            config.auth_info.client_certificate_data.is_some()
                && config.auth_info.client_certificate.is_none()
        );
        let FoundCredentials::Unusable(why) = found(&files, "b").await else { panic!("another Node's") };
        assert_eq!(why, "its certificate is for system:node:a, not for system:node:b");
    }
}
