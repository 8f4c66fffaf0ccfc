//! Kubeconfig files: what the agent finds in one, and the one that it writes for itself.

use std::io;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::Config;
use kube::config::{
    AuthInfo, Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo, NamedContext,
};
use serde_json::json;

use super::certificate::{CertificateFacts, Pair};
use super::decide::{Seen, Term};
use super::request::user;
use super::store::Store;
use crate::error_chain::chain;
use crate::names::NodeName;

/// The name of the one cluster, user and context in a kubeconfig that the agent writes.
const ONLY: &str = "default";

/// A kubeconfig and what it gives.
#[derive(Debug)]
pub(crate) struct Found {
    /// What it holds, for the decision.
    pub(crate) seen: Seen,
    /// How it reaches the API server, if it can be used.
    pub(crate) config: Option<Config>,
}

impl Found {
    fn unusable(why: impl Into<String>) -> Self {
        Self { seen: Seen::Unusable(why.into()), config: None }
    }
}

/// Reads a kubeconfig.
pub(crate) async fn load(path: &Path) -> Result<(Kubeconfig, Config), KubeconfigError> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &KubeConfigOptions::default()).await?;
    Ok((kubeconfig, config))
}

/// Looks at the agent's kubeconfig.
pub(crate) async fn look(path: &Path, store: &Store, node: &NodeName) -> Found {
    let config = match load(path).await {
        Ok((_, config)) => config,
        Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == io::ErrorKind::NotFound => {
            return Found { seen: Seen::Absent, config: None };
        }
        Err(error) => return Found::unusable(chain(&error)),
    };
    if is_own(&config.auth_info, store) {
        return match store.current() {
            Ok((pair, _)) if pair.facts.user != user(node) => {
                Found::unusable(format!("its certificate is for {}, not for {}", pair.facts.user, user(node)))
            }
            Ok((pair, starts)) => {
                let term = Term { starts, ends: pair.facts.ends, jitter: pair.facts.number };
                Found { seen: Seen::Own(term), config: Some(with_pair(config, &pair)) }
            }
            Err(error) => Found::unusable(chain(&error)),
        };
    }
    match given_certificate(&config.auth_info) {
        None => Found { seen: Seen::Endless, config: Some(config) },
        Some(Err(why)) => Found::unusable(why),
        Some(Ok(facts)) => Found { seen: Seen::Given { ends: facts.ends }, config: Some(config) },
    }
}

/// Whether a certificate is the one that the agent got for itself, by whatever path it is named.
fn is_own(user: &AuthInfo, store: &Store) -> bool {
    let (Some(named), own) = (user.client_certificate.as_deref().map(Path::new), store.current_path()) else {
        return false;
    };
    named == own || matches!((named.canonicalize(), own.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// The same, with another certificate.
pub(crate) fn with_pair(mut config: Config, pair: &Pair) -> Config {
    let encode = |pem: &str| BASE64_STANDARD.encode(pem);
    // By the same door as a file, for the key is of a type that only serde makes for us.
    let inline = json!({
        "client-certificate-data": encode(pair.certificate()),
        "client-key-data": encode(pair.key()),
    });
    if let Ok(AuthInfo { client_certificate_data, client_key_data, .. }) = serde_json::from_value(inline) {
        config.auth_info.client_certificate_data = client_certificate_data;
        config.auth_info.client_key_data = client_key_data;
    }
    // One file holds both, and would be sent as two certificates.
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

/// The kubeconfig for a certificate that was got with a bootstrap kubeconfig: the same cluster, another user.
pub(crate) fn after_bootstrap(bootstrap: &Kubeconfig, certificate: &Path) -> Option<Kubeconfig> {
    let named = |wanted: &str| bootstrap.contexts.iter().find(|context| context.name == wanted);
    let context = named(bootstrap.current_context.as_deref()?)?.context.as_ref()?;
    let mut cluster = bootstrap.clusters.iter().find(|cluster| cluster.name == context.cluster)?.clone();
    ONLY.clone_into(&mut cluster.name);
    // Key and certificate are in one file, so a reader never sees one without the other.
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

    struct Place {
        _dir: tempfile::TempDir,
        path: PathBuf,
        store: Store,
    }

    fn place() -> Place {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let store = Store::new(&dir.path().join("pki"));
        Place { path: dir.path().join("kubeconfig"), store, _dir: dir }
    }

    fn text(user: &str) -> String {
        format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: b, user: c, namespace: n}}}}], \
             clusters: [{{name: b, cluster: {{server: 'https://localhost:1', tls-server-name: t}}}}, {{name: z, cluster: {{}}}}], \
             users: [{{name: c, user: {user}}}]}}"
        )
    }

    async fn seen(place: &Place, node: &str) -> Seen {
        look(&place.path, &place.store, &node.parse().unwrap()).await.seen
    }

    #[tokio::test]
    async fn what_is_in_a_kubeconfig() {
        let place = place();
        assert_eq!(seen(&place, "a").await, Seen::Absent);
        for broken in
            ["{", "{}", &text("{client-certificate-data: AAAA}"), &text("{client-certificate: /nowhere}")]
        {
            std::fs::write(&place.path, broken).unwrap();
            assert!(matches!(seen(&place, "a").await, Seen::Unusable(_)), "{broken}");
        }
        std::fs::write(&place.path, text("{token: t}")).unwrap();
        assert_eq!(seen(&place, "a").await, Seen::Endless);
        let pem = BASE64_STANDARD.encode(signed("admin", &KeyPair::generate().unwrap()));
        std::fs::write(&place.path, text(&format!("{{client-certificate-data: {pem}}}"))).unwrap();
        assert!(matches!(seen(&place, "a").await, Seen::Given { .. }));
    }

    #[tokio::test]
    async fn what_the_agent_writes_is_its_own() {
        let place = place();
        std::fs::write(&place.path, text("{token: t}")).unwrap();
        let (bootstrap, _) = load(&place.path).await.unwrap();
        let own = after_bootstrap(&bootstrap, &place.store.current_path()).unwrap();
        assert_eq!(own.clusters.len(), 1);
        let yaml = serde_saphyr::to_string(&own).unwrap();
        assert!(!yaml.contains("token"), "{yaml}");
        std::fs::write(&place.path, yaml).unwrap();
        assert!(matches!(seen(&place, "a").await, Seen::Unusable(_)), "there is no certificate yet");

        let key = KeyPair::generate().unwrap();
        place.store.set_current(&Pair::new(&signed("system:node:a", &key), &key).unwrap()).unwrap();
        let found = look(&place.path, &place.store, &"a".parse().unwrap()).await;
        assert!(matches!(found.seen, Seen::Own(_)), "{:?}", found.seen);
        let config = found.config.unwrap();
        assert_eq!(config.tls_server_name.as_deref(), Some("t"));
        assert_eq!(config.default_namespace, "n");
        assert!(
            config.auth_info.client_certificate_data.is_some()
                && config.auth_info.client_certificate.is_none()
        );
        let Seen::Unusable(why) = seen(&place, "b").await else { panic!("another Node's") };
        assert_eq!(why, "its certificate is for system:node:a, not for system:node:b");
    }
}
