//! What the agent logs in with: a kubeconfig that is complete in one file.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::config::{AuthInfo, Kubeconfig, KubeconfigError};
use serde_json::json;

use crate::identity::skips_tls_verify;

/// What the agent logs in with.
#[derive(Clone)]
pub(crate) enum Credentials {
    /// It asks for its own certificate with these.
    Bootstrap(Kubeconfig),
    /// It uses these as they are.
    Given(Kubeconfig),
}

/// A kubeconfig that the agent cannot be given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    /// The file cannot be read.
    #[error("cannot use the kubeconfig {}", .0.display())]
    Kubeconfig(PathBuf, #[source] Box<KubeconfigError>),
    /// The kubeconfig has no cluster and user to use.
    #[error("the kubeconfig {} has no current context with a cluster and a user", .0.display())]
    NoContext(PathBuf),
    /// The kubeconfig logs in by another program.
    #[error("the kubeconfig {} logs in by another program, which a Node cannot; give one with a token or a certificate", .0.display())]
    Program(PathBuf),
    /// The agent would trust every server for ever.
    #[error(
        "the bootstrap kubeconfig {} has insecure-skip-tls-verify, and the agent would obey every machine that answers in place of the API server; put \
         certificate-authority-data in its place",
        .0.display()
    )]
    SkipsTlsVerify(PathBuf),
    /// A file that the kubeconfig names cannot be read.
    #[error("the kubeconfig {} names {file}, which cannot be read", kubeconfig.display())]
    File {
        /// The kubeconfig.
        kubeconfig: PathBuf,
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The kubeconfig cannot be written.
    #[error("cannot write a kubeconfig")]
    Render(#[from] serde_saphyr::ser::Error),
}

impl Credentials {
    /// The kubeconfig as text.
    pub(crate) fn text(&self) -> Result<String, CredentialsError> {
        let (Self::Bootstrap(kubeconfig) | Self::Given(kubeconfig)) = self;
        Ok(serde_saphyr::to_string(kubeconfig)?)
    }

    /// The API server.
    pub(crate) fn server(&self) -> Option<&str> {
        let (Self::Bootstrap(kubeconfig) | Self::Given(kubeconfig)) = self;
        server(kubeconfig)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Bootstrap(_) => "Bootstrap",
            Self::Given(_) => "Given",
        };
        f.debug_tuple(name).finish()
    }
}

/// The API server of a kubeconfig with one cluster.
pub(crate) fn server(kubeconfig: &Kubeconfig) -> Option<&str> {
    kubeconfig.clusters.first()?.cluster.as_ref()?.server.as_deref()
}

/// The same for a bootstrap: the agent's own kubeconfig will trust whom this one trusts.
pub(crate) fn read_bootstrap(path: &Path) -> Result<Kubeconfig, CredentialsError> {
    let kubeconfig = read(path)?;
    if skips_tls_verify(&kubeconfig) {
        return Err(CredentialsError::SkipsTlsVerify(path.to_owned()));
    }
    Ok(kubeconfig)
}

/// Reads a kubeconfig, and makes it complete: its current context only, with the contents of the files that it names.
pub(crate) fn read(path: &Path) -> Result<Kubeconfig, CredentialsError> {
    let mut kubeconfig = Kubeconfig::read_from(path)
        .map_err(|error| CredentialsError::Kubeconfig(path.to_owned(), Box::new(error)))?;
    let no_context = || CredentialsError::NoContext(path.to_owned());
    let current = kubeconfig.current_context.clone().ok_or_else(no_context)?;
    kubeconfig.contexts.retain(|context| context.name == current);
    let context = kubeconfig.contexts.first().and_then(|context| context.context.clone());
    let context = context.ok_or_else(no_context)?;
    kubeconfig.clusters.retain(|cluster| cluster.name == context.cluster);
    kubeconfig.auth_infos.retain(|user| Some(&user.name) == context.user.as_ref());
    let cluster = kubeconfig.clusters.first_mut().and_then(|cluster| cluster.cluster.as_mut());
    let cluster = cluster.ok_or_else(no_context)?;
    let read = |file: &str| {
        std::fs::read(file).map_err(|source| CredentialsError::File {
            kubeconfig: path.to_owned(),
            file: file.to_owned(),
            source,
        })
    };
    if let Some(file) = cluster.certificate_authority.take() {
        cluster.certificate_authority_data = Some(BASE64_STANDARD.encode(read(&file)?));
    }
    let user = kubeconfig.auth_infos.first_mut().and_then(|user| user.auth_info.as_mut());
    let user = user.ok_or_else(no_context)?;
    if user.exec.is_some() || user.auth_provider.is_some() {
        return Err(CredentialsError::Program(path.to_owned()));
    }
    if let Some(file) = user.client_certificate.take() {
        user.client_certificate_data = Some(BASE64_STANDARD.encode(read(&file)?));
    }
    // Through serde, because the types of secrets have no other public constructor.
    if let Some(file) = user.client_key.take() {
        let key = json!({ "client-key-data": BASE64_STANDARD.encode(read(&file)?) });
        user.client_key_data =
            serde_json::from_value::<AuthInfo>(key).ok().and_then(|user| user.client_key_data);
    }
    if let Some(file) = user.token_file.take() {
        let token = String::from_utf8_lossy(&read(&file)?).trim().to_owned();
        user.token =
            serde_json::from_value::<AuthInfo>(json!({ "token": token })).ok().and_then(|user| user.token);
    }
    Ok(kubeconfig)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn kubeconfig(user: &str) -> String {
        format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: b, user: c}}}}, {{name: z, context: {{cluster: z}}}}], \
             clusters: [{{name: b, cluster: {{server: 'https://b:1', certificate-authority: ca.crt}}}}, {{name: z, cluster: {{server: 'https://z'}}}}], \
             users: [{{name: c, user: {user}}}, {{name: z, user: {{token: foreign}}}}]}}"
        )
    }

    #[test]
    fn a_kubeconfig_becomes_complete_and_has_no_other_cluster() {
        let dir = crate::testing::dir();
        write(dir.path(), "ca.crt", "CA");
        write(dir.path(), "token", "sesame\n");
        let path = write(dir.path(), "kubeconfig", &kubeconfig("{tokenFile: token}"));
        let credentials = Credentials::Given(read(&path).unwrap());
        assert_eq!(credentials.server(), Some("https://b:1"));
        let text = credentials.text().unwrap();
        assert!(text.contains("sesame") && text.contains(&BASE64_STANDARD.encode("CA")), "{text}");
        assert!(
            !text.contains("foreign") && !text.contains("https://z") && !text.contains("ca.crt"),
            "{text}"
        );
        assert!(!format!("{credentials:?}").contains("sesame"));
    }

    #[test]
    fn what_a_node_cannot_use_is_refused() {
        let dir = crate::testing::dir();
        write(dir.path(), "ca.crt", "CA");
        let refused = |text: &str| read(&write(dir.path(), "kubeconfig", text)).unwrap_err();
        let program = refused(&kubeconfig("{exec: {apiVersion: v1, command: aws}}"));
        assert!(matches!(program, CredentialsError::Program(_)), "{program}");
        assert!(matches!(refused("{}"), CredentialsError::NoContext(_)));
        let insecure = kubeconfig("{token: t}")
            .replace("certificate-authority: ca.crt", "insecure-skip-tls-verify: true");
        let path = write(dir.path(), "kubeconfig", &insecure);
        assert!(matches!(read_bootstrap(&path), Err(CredentialsError::SkipsTlsVerify(_))));
        assert!(read(&path).is_ok(), "the agent uses a kubeconfig of the user as it is");
        assert!(matches!(refused(&kubeconfig("{tokenFile: nowhere}")), CredentialsError::File { .. }));
        assert!(matches!(read(Path::new("/nowhere")), Err(CredentialsError::Kubeconfig(..))));
    }
}
