//! The owner of tart's home. One home serves one Node of one cluster: two agents would delete each other's VMs as orphans, and each
//! other's images.
//!
//! ```text
//! tart-kubelet.lock    held by the one agent that works in this home
//! tart-kubelet.json    its Node and its cluster
//! ```

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::error_chain::chain;
use crate::fs::file::{self, FileError};
use crate::fs::lock::Lock;
use crate::identity::Cluster;
use crate::names::{NodeName, VmName};
use crate::tart::{Tart, VmLock, touched};

/// More than between any two steps of a shim that makes a VM.
const QUIET: Duration = Duration::from_mins(1);

const OWNER: &str = "tart-kubelet.json";

/// Tart's home belongs to this agent for as long as this value lives.
#[derive(Debug)]
pub(crate) struct TartHomeOwner {
    tart: Tart,
    node: String,
    /// The cluster that the home belonged to before, if that is known.
    before: Option<Cluster>,
    /// Whether an agent has worked in the home before.
    was_used: bool,
    _lock: Lock,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TartHomeError {
    #[error(
        "another tart-kubelet{} uses tart's home {}, and one home serves one Node: stop that agent, or give this one a \
         TART_HOME of its own", of_node(.node.as_deref()), .home.display()
    )]
    Held {
        home: PathBuf,
        /// The other agent's Node.
        node: Option<String>,
    },
    /// The home belongs to another Node, and VMs of its Pods run or are being made.
    #[error(
        "tart's home {} belongs to Node `{node}`, and VMs of its Pods are at work there: {}; start the agent as that Node \
         (--node-name), or stop these VMs with `tart stop`, or give this agent a TART_HOME of its own", .home.display(), list(.vms)
    )]
    Alive {
        home: PathBuf,
        node: String,
        /// Empty when tart is cloning one.
        vms: Vec<VmName>,
    },
    /// The same for a Node of the same name in another cluster.
    #[error(
        "tart's home {} belongs to Node `{node}` of another cluster ({server}), and VMs of its Pods are at work there: {}; start the \
         agent with a kubeconfig for that cluster, or stop these VMs with `tart stop`, or give this agent a TART_HOME of its own; if it \
         is the same cluster with a new address and a new authority, remove {}: the VMs run on",
        .home.display(), list(.vms), .home.join(OWNER).display()
    )]
    Elsewhere {
        home: PathBuf,
        node: String,
        /// The other cluster's API server.
        server: String,
        /// Empty when tart is cloning one.
        vms: Vec<VmName>,
    },
    #[error("cannot use tart's home")]
    State(#[from] FileError),
}

/// The content of tart-kubelet.json.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(in crate::state) enum Owner {
    /// Written by an agent that has no identity yet, or by an older one.
    Node(String),
    Member {
        node: String,
        cluster: Cluster,
    },
}

impl Owner {
    fn split(self) -> (String, Option<Cluster>) {
        match self {
            Self::Node(node) => (node, None),
            Self::Member { node, cluster } => (node, Some(cluster)),
        }
    }
}

fn of_node(node: Option<&str>) -> String {
    node.map_or_else(String::new, |node| format!(", for Node `{node}`,"))
}

fn list(vms: &[VmName]) -> String {
    match vms {
        [] => "one is being cloned".to_owned(),
        vms => vms.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl TartHomeOwner {
    /// Makes this agent the owner. It takes the home from another Node only when no VM of that Node's Pods runs or is being made.
    pub(crate) fn take(tart: &Tart, node: &NodeName) -> Result<Self, TartHomeError> {
        let home = tart.home();
        let lock_path = home.join("tart-kubelet.lock");
        file::create_private_dir(home)?;
        let lock = Lock::take(&lock_path).map_err(|source| FileError::new("lock", &lock_path, source))?;
        // After the lock: the agent that holds the lock writes the file.
        let owner = file::read::<Owner>(&owner_path(tart))?.map(Owner::split);
        let (owner, before) = owner.map_or((None, None), |(node, cluster)| (Some(node), cluster));
        let Some(lock) = lock else { return Err(TartHomeError::Held { home: home.to_owned(), node: owner }) };
        let node = node.to_string();
        let was_used = owner.is_some();
        let owned = |before| Self { tart: tart.clone(), node: node.clone(), before, was_used, _lock: lock };
        match owner {
            Some(owner) if owner == node => return Ok(owned(before)),
            Some(owner) => {
                if let Some(vms) = at_work(tart)? {
                    return Err(TartHomeError::Alive { home: home.to_owned(), node: owner, vms });
                }
            }
            None => {}
        }
        file::write_durably(&owner_path(tart), &Owner::Node(node.clone()))?;
        Ok(owned(None))
    }

    /// Whether an agent has worked in the home before this one.
    pub(crate) fn was_used(&self) -> bool {
        self.was_used
    }

    /// Whether an agent has ever worked in tart's home.
    pub(crate) fn has_owner(tart: &Tart) -> Result<bool, FileError> {
        let path = owner_path(tart);
        path.try_exists().map_err(|source| FileError::new("look for", &path, source))
    }

    /// Records the cluster, once the agent knows it. It takes the home from another cluster only when no VM of its Pods runs or is being
    /// made.
    ///
    /// Unless the home belonged to another cluster, a full disk is no error: only a running agent can free space on it.
    pub(crate) fn join(&self, cluster: Cluster) -> Result<(), TartHomeError> {
        if self.before.as_ref() == Some(&cluster) {
            return Ok(());
        }
        let other = self.before.as_ref().filter(|before| before.differs_from(&cluster));
        if let Some(before) = other
            && let Some(vms) = at_work(&self.tart)?
        {
            let (home, node) = (self.tart.home().to_owned(), self.node.clone());
            return Err(TartHomeError::Elsewhere { home, node, server: before.server.clone(), vms });
        }
        let owner = Owner::Member { node: self.node.clone(), cluster };
        match file::write_durably(&owner_path(&self.tart), &owner) {
            Err(error) if other.is_none() => {
                let error = chain(&error);
                warn!(error, "cannot record the cluster of tart's home; the next start tries again");
                Ok(())
            }
            written => Ok(written?),
        }
    }
}

fn owner_path(tart: &Tart) -> PathBuf {
    tart.home().join(OWNER)
}

/// The VMs of Pods that run or are being made; none of them if tart is only cloning one, `None` if there is no such VM. The shims of
/// another agent cannot be asked.
fn at_work(tart: &Tart) -> Result<Option<Vec<VmName>>, FileError> {
    let failed = |source| FileError::new("look into", tart.home(), source);
    let is_cloning = tart.is_cloning().map_err(failed)?;
    let mut vms = tart.vm_dirs().map_err(failed)?;
    vms.retain(|vm| {
        let is_quiet = touched(&tart.vm_dir(vm))
            .is_ok_and(|touched| SystemTime::now().duration_since(touched).is_ok_and(|quiet| quiet >= QUIET));
        // An unknown counts as work.
        !(is_quiet && crate::tart::vm_lock(&tart.vm_dir(vm)).is_ok_and(|lock| lock == VmLock::Free))
    });
    Ok((is_cloning || !vms.is_empty()).then_some(vms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;
    use std::fs::{self, File};

    const VM: &str = "tk-0b1c2d3e-0000-4000-8000-0123456789ab-0";

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    fn cluster(server: &str, authority: &str) -> Cluster {
        let authorities = [authority.to_owned()].into();
        Cluster { server: format!("https://{server}:6443"), authorities }
    }

    #[test]
    fn another_node_gets_the_home_when_no_vm_is_at_work() {
        let _quiet = crate::testing::no_programs();
        let dir = dir();
        let tart = Tart::in_home("/tart".as_ref(), dir.path());
        let words = |name: &str| TartHomeOwner::take(&tart, &node(name)).unwrap_err().to_string();
        let held = TartHomeOwner::take(&tart, &node("a")).unwrap();
        let refused = words("b");
        assert!(refused.contains("for Node `a`") && refused.contains("TART_HOME"), "{refused}");
        assert!(words("a").contains("another tart-kubelet"));
        drop(held);

        // A VM that was touched a moment ago.
        let vm = dir.path().join("vms").join(VM);
        fs::create_dir_all(&vm).unwrap();
        fs::create_dir_all(dir.path().join("vms/builder")).unwrap();
        let refused = words("b");
        assert!(refused.contains(VM) && !refused.contains("builder"), "{refused}");
        drop(TartHomeOwner::take(&tart, &node("a")).unwrap());
        fs::remove_dir(&vm).unwrap();
        drop(TartHomeOwner::take(&tart, &node("b")).unwrap());
        drop(TartHomeOwner::take(&tart, &node("a")).unwrap());

        // A VM that tart is cloning.
        let clone = dir.path().join("tmp/6D1E9C2A-0000-4000-8000-0123456789AB");
        fs::create_dir_all(&clone).unwrap();
        let lock = File::open(&clone).unwrap();
        lock.lock().unwrap();
        assert!(words("b").contains("one is being cloned"));
        drop(lock);
        drop(TartHomeOwner::take(&tart, &node("b")).unwrap());
    }

    #[test]
    fn another_cluster_gets_the_home_when_no_vm_is_at_work() {
        let _quiet = crate::testing::no_programs();
        let dir = dir();
        let tart = Tart::in_home("/tart".as_ref(), dir.path());
        let join = |cluster| TartHomeOwner::take(&tart, &node("a")).unwrap().join(cluster);
        // The file of an older agent.
        fs::write(dir.path().join("tart-kubelet.json"), "\"a\"").unwrap();
        let vm = dir.path().join("vms").join(VM);
        fs::create_dir_all(&vm).unwrap();
        join(cluster("one", "x")).unwrap();
        let refused = join(cluster("two", "y")).unwrap_err().to_string();
        assert!(refused.contains("https://one:6443") && refused.contains(VM), "{refused}");
        let way_out = format!("remove {}", dir.path().join("tart-kubelet.json").display());
        assert!(refused.contains(&way_out), "{refused}");
        // The cluster's address changes, and later its authority.
        join(cluster("three", "x")).unwrap();
        join(cluster("three", "y")).unwrap();
        assert!(join(cluster("one", "x")).is_err());
        fs::remove_dir(&vm).unwrap();
        join(cluster("one", "x")).unwrap();
        // Another Node has owned the home meanwhile.
        drop(TartHomeOwner::take(&tart, &node("b")).unwrap());
        fs::create_dir_all(&vm).unwrap();
        assert!(TartHomeOwner::take(&tart, &node("a")).is_err());
    }

    #[test]
    fn an_agent_that_cannot_record_its_cluster_works_unless_it_is_another_one() {
        let dir = dir();
        let tart = Tart::in_home("/tart".as_ref(), dir.path());
        let (owner, in_the_way) =
            (dir.path().join("tart-kubelet.json"), dir.path().join("tart-kubelet.tmp/in-the-way"));
        let join = |cluster| TartHomeOwner::take(&tart, &node("a")).unwrap().join(cluster);
        // The file of an older agent, on a full disk.
        fs::write(&owner, "\"a\"").unwrap();
        fs::create_dir_all(&in_the_way).unwrap();
        join(cluster("one", "x")).unwrap();
        assert_eq!(fs::read_to_string(&owner).unwrap(), "\"a\"");
        fs::remove_dir_all(in_the_way.parent().unwrap()).unwrap();
        join(cluster("one", "x")).unwrap();
        let written = fs::read_to_string(&owner).unwrap();
        assert!(written.contains("https://one:6443"), "{written}");
        fs::create_dir_all(&in_the_way).unwrap();
        join(cluster("two", "x")).unwrap();
        assert_eq!(fs::read_to_string(&owner).unwrap(), written);
        // The record of the other cluster must not stay.
        assert!(matches!(join(cluster("two", "y")), Err(TartHomeError::State(_))));
    }
}
