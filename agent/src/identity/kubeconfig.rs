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
use crate::fs::absent_is_none;
use crate::names::NodeName;

/// The name of the one cluster, user and context in a kubeconfig that the agent writes.
const ONLY: &str = "default";

pub(super) async fn load(path: &Path) -> Result<(Kubeconfig, Config), KubeconfigError> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &KubeConfigOptions::default()).await?;
    Ok((kubeconfig, config))
}

/// Credentials that can be used, as they were read from a kubeconfig.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) credentials: FoundCredentials,
    pub(super) config: Config,
    text: Vec<u8>,
}

impl Loaded {
    /// Whether the user or the agent has not replaced anything since then.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.text == other.text && self.credentials == other.credentials
    }
}

/// Reads the agent's kubeconfig. The error says why its credentials cannot be used.
pub(super) async fn inspect(
    path: &Path,
    store: &CertificateStore,
    node: &NodeName,
) -> Result<Loaded, FoundCredentials> {
    let text = match absent_is_none(std::fs::read(path)) {
        Ok(Some(text)) => text,
        Ok(None) => return Err(FoundCredentials::Absent),
        Err(error) => return Err(FoundCredentials::Unusable(chain(&error))),
    };
    let config = match load(path).await {
        Ok((_, config)) => config,
        Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == io::ErrorKind::NotFound => {
            return Err(FoundCredentials::Absent);
        }
        Err(error) => return Err(FoundCredentials::Unusable(chain(&error))),
    };
    let is_own = is_own(&config.auth_info, store);
    let found = if is_own { own_certificate(config, store, node) } else { given_credentials(config) };
    let (credentials, config) = found.map_err(FoundCredentials::Unusable)?;
    Ok(Loaded { credentials, config, text })
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
        match inspect(&files.path, &files.store, &node.parse().unwrap()).await {
            Ok(loaded) => loaded.credentials,
            Err(unusable) => unusable,
        }
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
    async fn replaced_credentials_are_noticed() {
        let files = test_files();
        let read = async || inspect(&files.path, &files.store, &"a".parse().unwrap()).await.unwrap();
        let certificate = files.path.with_file_name("certificate");
        let named = text(&format!("{{client-certificate: '{}'}}", certificate.display()));
        let until = |year| {
            let mut params = rcgen::CertificateParams::default();
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        std::fs::write(&certificate, until(2090)).unwrap();
        let mut before: Option<Loaded> = None;
        for (kubeconfig, year, is_same) in [
            (text("{token: t}"), 2090, false),
            (text("{token: t}"), 2090, true),
            (text("{token: u}"), 2090, false),
            (named.clone(), 2090, false),
            (named.clone(), 2090, true),
            // The kubeconfig is the same, and the file that it names is not.
            (named, 2091, false),
        ] {
            std::fs::write(&files.path, &kubeconfig).unwrap();
            std::fs::write(&certificate, until(year)).unwrap();
            let now = read().await;
            assert_eq!(before.is_some_and(|before| now.is_same_as(&before)), is_same, "{kubeconfig} {year}");
            before = Some(now);
        }
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
        let loaded = inspect(&files.path, &files.store, &"a".parse().unwrap()).await.unwrap();
        assert!(matches!(loaded.credentials, FoundCredentials::Own(_)), "{:?}", loaded.credentials);
        let config = loaded.config;
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
