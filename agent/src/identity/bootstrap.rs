//! TLS bootstrap: a certificate by the credentials of the bootstrap kubeconfig.

use std::convert::Infallible;
use std::path::Path;

use kube::config::KubeconfigError;
use tokio::time::sleep;
use tracing::info;

use super::access::AccessUpdater;
use super::csr::Requester;
use super::csr::issuance::request_certificate;
use super::decide::UnusableReason;
use super::kubeconfig::{after_bootstrap, load};
use super::store::CertificateStore;
use super::{
    ApiAccess, CredentialSources, IdentityError, LOOK_INTERVAL, client_certificate, connection,
    skips_tls_verify,
};
use crate::fs::secret_file::write_secret;
use crate::names::NodeName;

/// Requests a certificate with the bootstrap credentials and writes the kubeconfig that uses it.
///
/// The pending key is forgotten last: after a crash before that, the next agent finds the request and its certificate again.
pub(super) async fn bootstrap(
    sources: &CredentialSources,
    store: &CertificateStore,
    node: &NodeName,
    reason: &UnusableReason,
) -> Result<(), IdentityError> {
    let target = &sources.kubeconfig;
    info!(kubeconfig = %target.display(), %reason, "getting a certificate by TLS bootstrap");
    let Some(path) = &sources.bootstrap else {
        return Err(IdentityError::Kubeconfig { path: target.clone(), reason: reason.clone() });
    };
    let unusable = |error| IdentityError::Bootstrap(path.clone(), Box::new(error));
    let (first, config) = load(path).await.map_err(unusable)?;
    if skips_tls_verify(&first) {
        return Err(IdentityError::SkipsTlsVerify(path.clone()));
    }
    let (access, updater) = ApiAccess::new(config);
    let client =
        access.client(None).map_err(|error| IdentityError::Credentials(path.clone(), Box::new(error)))?;
    let wanted = client_certificate(Requester::Bootstrap, node);
    let certified = tokio::select! {
        certified = request_certificate(client, &wanted, store) => certified,
        never = follow(path, &updater) => match never {},
    };
    let issuance = |source| IdentityError::Issuance { node: node.clone(), path: path.to_owned(), source };
    let certified = certified.map_err(issuance)?;
    store.set_current(&certified)?;
    // The user may have replaced the file while the request waited.
    let kubeconfig =
        load(path).await.ok().map(|(now, _)| now).filter(|now| !skips_tls_verify(now)).unwrap_or(first);
    let own = after_bootstrap(&kubeconfig, &store.current_path())
        .ok_or_else(|| unusable(KubeconfigError::CurrentContextNotSet))?;
    let text = serde_saphyr::to_string(&own).map_err(|error| IdentityError::Render(target.clone(), error))?;
    write_secret(target, text.as_bytes()).map_err(|error| IdentityError::Write(target.clone(), error))?;
    store.forget_pending()?;
    info!(kubeconfig = %target.display(), ends = %certified.facts.ends, "got a certificate and wrote the kubeconfig");
    Ok(())
}

/// Has the bootstrap use what is in its kubeconfig: a token may expire while the request waits for approval, for days perhaps.
async fn follow(path: &Path, updater: &AccessUpdater) -> Infallible {
    let mut used = std::fs::read(path).ok();
    loop {
        sleep(LOOK_INTERVAL).await;
        let now = std::fs::read(path).ok();
        if now == used {
            continue;
        }
        // The user may be about to write the file.
        if let Ok((kubeconfig, config)) = load(path).await
            && !skips_tls_verify(&kubeconfig)
            && connection::client(&config).is_ok()
        {
            info!(bootstrap = %path.display(), "using the new credentials in the bootstrap kubeconfig");
            updater.change(config);
            used = now;
        }
    }
}
