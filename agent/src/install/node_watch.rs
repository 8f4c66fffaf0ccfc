//! The Node of this Mac, as the API server has it, asked with the agent's own credentials.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::{Api, Client};
use tokio::time::{sleep, timeout};

use super::AgentSettings;
use crate::apiserver::call::{CallError, DEADLINE, call};
use crate::error_chain::chain;
use crate::identity::{CredentialSources, Identity, IdentityError};
use crate::state::StateDir;

/// The namespace of the Leases of Nodes.
const LEASES: &str = "kube-node-lease";
/// For how long the Lease is asked for while the API server does not answer.
const RENEWAL_DEADLINE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(1);

/// How far the Mac is on its way to a Node that is Ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The agent has no certificate yet.
    NoCertificate,
    /// The API server cannot be asked.
    NoAnswer(String),
    /// The API server has no such Node.
    NotRegistered,
    /// The Node is not ready.
    NotReady(String),
    /// The Node is ready as the old agent has left it: the new one has not renewed the Lease yet.
    Stale,
    /// The Node is ready.
    Ready {
        /// Whether it gets no Pods, as after it was drained.
        is_cordoned: bool,
    },
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCertificate => f.write_str(
                "the agent has no certificate yet; if the cluster does not approve it by itself, look at `kubectl get csr` and \
                 approve it with `kubectl certificate approve`",
            ),
            Self::NoAnswer(why) => write!(f, "the API server gives no answer: {why}"),
            Self::NotRegistered => f.write_str("the agent has not registered the Node yet"),
            Self::NotReady(why) => write!(f, "the Node is not ready: {why}"),
            Self::Stale => f.write_str("the new agent has not renewed the Node's Lease yet"),
            Self::Ready { .. } => f.write_str("the Node is ready"),
        }
    }
}

/// A client with the agent's own credentials.
pub(crate) async fn client(settings: &AgentSettings) -> Result<Client, IdentityError> {
    let pki = StateDir::at(&settings.state_dir).pki_path();
    // Without a bootstrap this only reads.
    let sources = CredentialSources { kubeconfig: settings.kubeconfig.clone(), bootstrap: None, pki };
    let access = Identity::establish(sources, settings.node.clone()).await?.access();
    access
        .client(None)
        .map_err(|error| IdentityError::Credentials(settings.kubeconfig.clone(), Box::new(error)))
}

/// The Node.
pub(crate) async fn node(client: &Client, settings: &AgentSettings) -> Result<Option<Node>, CallError> {
    call(DEADLINE, Api::<Node>::all(client.clone()).get_opt(&settings.node.to_string())).await
}

/// Which renewal of the Node's Lease the API server has; `None` if it has none, or cannot be asked for half a minute. The clocks of Mac and
/// cluster may differ, so that the time of the renewal says less.
pub(crate) async fn renewal(settings: &AgentSettings) -> Option<String> {
    let ask = async {
        while settings.kubeconfig.exists() {
            // One call that fails must not let the Node's old condition count as the new agent's.
            if let Ok(client) = client(settings).await
                && let Ok(renewal) = lease(&client, settings).await
            {
                return renewal;
            }
            sleep(PAUSE).await;
        }
        None
    };
    timeout(RENEWAL_DEADLINE, ask).await.ok().flatten()
}

async fn lease(client: &Client, settings: &AgentSettings) -> Result<Option<String>, CallError> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let lease = call(DEADLINE, leases.get_opt(&settings.node.to_string())).await?;
    Ok(lease.and_then(|lease| lease.metadata.resource_version))
}

/// How far the Mac is. `old` is the last renewal of an agent that has ended since.
pub(crate) async fn look(settings: &AgentSettings, old: Option<&str>) -> Progress {
    if !settings.kubeconfig.exists() {
        return Progress::NoCertificate;
    }
    let client = match client(settings).await {
        Ok(client) => client,
        Err(error) => return Progress::NoAnswer(chain(&error)),
    };
    match node(&client, settings).await {
        Ok(Some(node)) => match (judge(&node), old) {
            (Progress::Ready { .. }, Some(old)) => match lease(&client, settings).await {
                Ok(new) => judge_renewed(&node, old, new.as_deref()),
                Err(error) => Progress::NoAnswer(error.without_content()),
            },
            (progress, _) => progress,
        },
        Ok(None) => Progress::NotRegistered,
        // The Node authorizer knows a new Node a moment later.
        Err(error) if error.is_forbidden() => Progress::NotRegistered,
        Err(error) => Progress::NoAnswer(error.without_content()),
    }
}

/// The conditions of a Node.
pub(crate) fn conditions(node: &Node) -> &[NodeCondition] {
    node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

/// The same for a Node that an old agent may have left as it is.
fn judge_renewed(node: &Node, old: &str, new: Option<&str>) -> Progress {
    match judge(node) {
        Progress::Ready { .. } if new.is_none_or(|new| new == old) => Progress::Stale,
        progress => progress,
    }
}

fn judge(node: &Node) -> Progress {
    let ready = conditions(node).iter().find(|condition| condition.type_ == "Ready");
    match ready {
        Some(condition) if condition.status == "True" => {
            let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
            Progress::Ready { is_cordoned }
        }
        Some(condition) => {
            let message = condition.message.as_deref().or(condition.reason.as_deref());
            Progress::NotReady(message.unwrap_or("it does not say why").to_owned())
        }
        None => Progress::NotReady("the agent has not said so yet".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_is_ready_when_its_condition_says_so() {
        let node =
            |conditions| serde_json::from_value(json!({ "status": { "conditions": conditions } })).unwrap();
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        assert_eq!(judge(&node(ready.clone())), Progress::Ready { is_cordoned: false });
        let cordoned = json!({ "spec": { "unschedulable": true }, "status": { "conditions": ready } });
        let cordoned = serde_json::from_value(cordoned).unwrap();
        assert_eq!(judge(&cordoned), Progress::Ready { is_cordoned: true });
        // What an agent that has ended said of it is no answer of the new one.
        assert_eq!(judge_renewed(&cordoned, "7", Some("7")), Progress::Stale);
        assert_eq!(judge_renewed(&cordoned, "7", None), Progress::Stale);
        assert_eq!(judge_renewed(&cordoned, "7", Some("8")), Progress::Ready { is_cordoned: true });
        let told = json!([{ "type": "Ready", "status": "False", "reason": "R", "message": "no tart" }]);
        assert_eq!(judge(&node(told)), Progress::NotReady("no tart".into()));
        assert!(matches!(judge(&node(json!([]))), Progress::NotReady(_)));
    }
}
