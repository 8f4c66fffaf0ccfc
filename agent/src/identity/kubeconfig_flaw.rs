//! What is wrong with a kubeconfig that can be used: other users of the Mac can read or change it, or it trusts every server.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kube::config::Kubeconfig;
use nix::unistd::geteuid;

/// A flaw of a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KubeconfigFlaw {
    #[error("other users of this machine can read {} (mode {mode:o}), and the credentials in it", path.display())]
    Readable { path: PathBuf, mode: u32 },
    #[error("other users of this machine can change {} (mode {mode:o}), and so have the agent obey another server", path.display())]
    Writable { path: PathBuf, mode: u32 },
    #[error("{} belongs to another user of this machine (number {owner}), who can have the agent obey another server", path.display())]
    Foreign { path: PathBuf, owner: u32 },
    #[error(
        "insecure-skip-tls-verify: the agent obeys every machine that answers in place of the API server"
    )]
    SkipsTlsVerify,
}

impl KubeconfigFlaw {
    /// What mends it.
    pub(crate) fn mend(&self) -> String {
        match self {
            Self::Readable { path, .. } | Self::Writable { path, .. } => {
                format!("sudo chmod 600 {}", path.display())
            }
            Self::Foreign { path, .. } => format!("give {} to the agent's user with chown", path.display()),
            Self::SkipsTlsVerify => {
                "put certificate-authority-data in place of insecure-skip-tls-verify".to_owned()
            }
        }
    }

    /// Whether another user can have the agent obey another server, so that the agent must not use the file.
    pub(super) fn is_fatal(&self) -> bool {
        matches!(self, Self::Writable { .. } | Self::Foreign { .. })
    }
}

/// The flaws of a kubeconfig that is there.
pub(crate) fn kubeconfig_flaws(path: &Path) -> Vec<KubeconfigFlaw> {
    let skips = Kubeconfig::read_from(path).is_ok_and(|kubeconfig| skips_tls_verify(&kubeconfig));
    access_flaw(path).into_iter().chain(skips.then_some(KubeconfigFlaw::SkipsTlsVerify)).collect()
}

/// Whether the cluster of the current context is trusted without a certificate.
pub(crate) fn skips_tls_verify(kubeconfig: &Kubeconfig) -> bool {
    let current =
        kubeconfig.contexts.iter().find(|one| Some(&one.name) == kubeconfig.current_context.as_ref());
    let named = current.and_then(|context| context.context.as_ref()).map(|context| &context.cluster);
    let cluster = kubeconfig.clusters.iter().find(|one| Some(&one.name) == named);
    let cluster = cluster.and_then(|cluster| cluster.cluster.as_ref());
    cluster.is_some_and(|cluster| cluster.insecure_skip_tls_verify == Some(true))
}

/// What other users of the machine can do with a file; `None` also for a file that is not there.
pub(super) fn access_flaw(path: &Path) -> Option<KubeconfigFlaw> {
    let file = path.metadata().ok()?;
    judge(path, file.mode() & 0o777, file.uid(), geteuid().as_raw())
}

/// Root may have written the file of the agent's user, and the file of any user is as good for root.
fn judge(path: &Path, mode: u32, owner: u32, own: u32) -> Option<KubeconfigFlaw> {
    let path = path.to_owned();
    if owner != own && owner != 0 && own != 0 {
        Some(KubeconfigFlaw::Foreign { path, owner })
    } else if mode & 0o002 != 0 {
        Some(KubeconfigFlaw::Writable { path, mode })
    } else if mode & 0o077 != 0 {
        Some(KubeconfigFlaw::Readable { path, mode })
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_for_its_user_alone() {
        let path = || PathBuf::from("/k");
        let readable = |mode| Some(KubeconfigFlaw::Readable { path: path(), mode });
        let writable = |mode| Some(KubeconfigFlaw::Writable { path: path(), mode });
        let foreign = Some(KubeconfigFlaw::Foreign { path: path(), owner: 502 });
        let table = [
            ((0o600, 501, 501), None),
            ((0o400, 501, 501), None),
            ((0o600, 0, 501), None),
            ((0o600, 501, 0), None),
            ((0o644, 501, 501), readable(0o644)),
            ((0o640, 501, 501), readable(0o640)),
            ((0o660, 501, 501), readable(0o660)),
            ((0o602, 501, 501), writable(0o602)),
            ((0o666, 0, 501), writable(0o666)),
            ((0o600, 502, 501), foreign),
        ];
        for ((mode, owner, own), flaw) in table {
            assert_eq!(judge(&path(), mode, owner, own), flaw, "{mode:o} {owner} {own}");
        }
        assert!(writable(0o602).is_some_and(|flaw| flaw.is_fatal()));
        assert!(readable(0o644).is_some_and(|flaw| !flaw.is_fatal() && flaw.mend() == "sudo chmod 600 /k"));
    }

    #[test]
    fn only_the_cluster_of_the_current_context_counts() {
        let text = |current: &str| {
            format!(
                "{{current-context: {current}, contexts: [{{name: a, context: {{cluster: safe, user: u}}}}, \
                 {{name: b, context: {{cluster: open, user: u}}}}], clusters: [{{name: safe, cluster: {{server: 'https://a'}}}}, \
                 {{name: open, cluster: {{server: 'https://b', insecure-skip-tls-verify: true}}}}]}}"
            )
        };
        for (current, skips) in [("a", false), ("b", true), ("c", false)] {
            let kubeconfig = Kubeconfig::from_yaml(&text(current)).unwrap();
            assert_eq!(skips_tls_verify(&kubeconfig), skips, "{current}");
        }
    }
}
