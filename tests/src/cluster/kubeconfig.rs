//! Kubeconfig files.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::certificates::Pair;

/// How a user proves who it is.
#[derive(Debug, Clone)]
pub enum Credentials {
    /// By a client certificate.
    Certificate(Pair),
    /// By a bearer token.
    Token(String),
    /// Not at all.
    Absent,
}

/// Writes a kubeconfig for one user of one cluster, complete in one file.
pub fn write(path: &Path, server: &str, authority: &str, credentials: &Credentials) -> Result<()> {
    let authority = BASE64_STANDARD.encode(authority);
    let user = match credentials {
        Credentials::Certificate(pair) => format!(
            "client-certificate-data: {}\n    client-key-data: {}",
            BASE64_STANDARD.encode(&pair.certificate),
            BASE64_STANDARD.encode(&pair.key),
        ),
        Credentials::Token(token) => format!("token: {token}"),
        Credentials::Absent => "{}".to_owned(),
    };
    let kubeconfig = format!(
        "\
apiVersion: v1
kind: Config
clusters:
- name: test
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: test
  user:
    {user}
contexts:
- name: test
  context:
    cluster: test
    user: test
current-context: test
"
    );
    // The agent warns of credentials that other users can read.
    std::fs::write(path, kubeconfig)
        .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o600)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// A client that uses a kubeconfig; it belongs to the runtime that makes it.
pub async fn client(path: &Path) -> Result<Client> {
    let make = async || -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(path)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    };
    make().await.with_context(|| format!("cannot make a client from {}", path.display()))
}
