//! The pool: Macs that machines are made of. A machine claims a host, keeps it, and gives it back.
//!
//! ```text
//!               claim                          release
//!   in the pool ─────► pending ─────► claimed ─────────► in the pool     (wiped on the way, where the pool can)
//!                                        └─────────────► quarantined     (until an operator hands it back)
//! ```
//!
//! Two things say that a machine holds a host: the host bears the machine's name, and the machine's status has the host's id. Names can be
//! overwritten by a call that arrives late, so a pool asks [`Machines`] for the ids before it takes or gives back a host.

mod holders;
mod mac_list;
mod name;
mod os_family;
pub(crate) mod scaleway;

pub(crate) use mac_list::{MacListError, MacListPool};
pub(crate) use name::{HostName, PoolPrefix};
pub(crate) use os_family::OsFamily;
pub(crate) use scaleway::ScalewayPool;

use std::fmt;

use futures::future::BoxFuture;

use crate::apiserver::ApiError;
use crate::host::Secret;
use crate::names::{HostId, MachineRef, Zone};
use crate::scaleway::ScalewayError;
use crate::ssh::{Fingerprint, SshAddress, SshKey};

/// Macs that can be claimed and given back. One lock is shared by [`claim`](Self::claim) and [`release`](Self::release), and one process
/// acts at a time: the leader.
pub(crate) trait Pool: Send + Sync + 'static {
    /// Claims a host for a machine. Called again for the same machine, it finds the host that was claimed before.
    ///
    /// A host may be claimed while it is being installed: it is used when its state is [`HostState::Ready`].
    fn claim<'a>(&'a self, request: &'a ClaimRequest) -> BoxFuture<'a, Result<Host, ClaimError>>;

    /// A host as it is now; `None` if there is no such host any more.
    fn host<'a>(&'a self, zone: &'a Zone, id: &'a HostId) -> BoxFuture<'a, Result<Option<Host>, PoolError>>;

    /// All hosts of a zone: free ones, those of machines, those of operators.
    fn hosts<'a>(&'a self, zone: &'a Zone) -> BoxFuture<'a, Result<Vec<ListedHost>, PoolError>>;

    /// Gives a host back that a machine holds, or has held: checks first that it is still this machine's. Safe to repeat until it succeeds.
    fn release<'a>(
        &'a self,
        held: &'a HeldHost,
        to: Destination,
    ) -> BoxFuture<'a, Result<ReleaseOutcome, PoolError>>;

    /// Restarts a host.
    fn reboot<'a>(&'a self, zone: &'a Zone, id: &'a HostId) -> BoxFuture<'a, Result<(), PoolError>>;

    /// Has the hosts that are installed from now on let no key of this name in.
    fn remove_ssh_key<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), PoolError>>;

    /// Has the hosts that are installed from now on let this key in. `name` is the key's name; a key of that name that differs is replaced.
    fn ensure_ssh_key<'a>(
        &'a self,
        name: &'a str,
        authorized_key: &'a str,
    ) -> BoxFuture<'a, Result<(), PoolError>>;
}

/// The machines of the cluster, as the API server has them now. An answer from a cache would let two machines hold one host.
pub(crate) trait Machines: Send + Sync + 'static {
    /// All machines of all namespaces, also those that are being deleted.
    fn list(&self) -> BoxFuture<'_, Result<Vec<MachineRecord>, MachinesError>>;
}

/// What the API server has of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MachineRecord {
    /// Which machine.
    pub(crate) machine: MachineRef,
    /// The zone of its spec.
    pub(crate) zone: Zone,
    /// The pool that it names itself (`spec.adoptPoolPrefix`).
    pub(crate) prefix: Option<PoolPrefix>,
    /// The host of its status (`serverID`).
    pub(crate) host: Option<HostId>,
}

/// The API server did not say which machines there are.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct MachinesError(#[from] pub(crate) ApiError);

/// What a machine wants of its host.
#[derive(Debug, Clone)]
pub(crate) struct ClaimRequest {
    /// The machine. The host gets its name.
    pub(crate) machine: MachineRef,
    /// Only hosts whose names begin so are claimed.
    pub(crate) prefix: PoolPrefix,
    /// Where.
    pub(crate) zone: Zone,
    /// The type of host, such as `M2-L`.
    pub(crate) kind: String,
    /// The release of macOS.
    pub(crate) os: OsFamily,
}

/// A host that a machine's status names.
#[derive(Debug, Clone)]
pub(crate) struct HeldHost {
    /// The machine.
    pub(crate) machine: MachineRef,
    /// The host.
    pub(crate) id: HostId,
    /// Where.
    pub(crate) zone: Zone,
    /// The host gets a new name that begins so.
    pub(crate) prefix: PoolPrefix,
    /// The release of macOS that it is installed with; `None` for the default of its type.
    pub(crate) os: Option<OsFamily>,
}

/// Where a host goes that is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To the pool, for the next machine.
    Pool,
    /// Out of the pool, because it failed. An operator hands it back: by a name with the pool's prefix at Scaleway, by the removal of its
    /// annotation in a list of Macs.
    Quarantine,
}

/// A host.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// Which.
    pub(crate) id: HostId,
    /// What it is called now.
    pub(crate) name: String,
    /// Whether it can be used.
    pub(crate) state: HostState,
    /// Where SSH reaches it; `None` as long as it has no address.
    pub(crate) ssh: Option<SshAddress>,
    /// Its host key, if the pool knows it. Otherwise the first is trusted.
    pub(crate) fingerprint: Option<Fingerprint>,
    /// A key of its own that opens it. Otherwise the fleet's does.
    pub(crate) key: Option<SshKey>,
    /// The password of the user.
    pub(crate) password: Password,
}

/// A host of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedHost {
    /// Which.
    pub(crate) id: HostId,
    /// What it is called now. A machine's name says that the machine has it.
    pub(crate) name: String,
}

/// What a host is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostState {
    /// It runs, and can be used.
    Ready,
    /// It is being installed, or restarts, or is not delivered yet; in the pool's own word. It will be ready by itself.
    Changing(String),
    /// It needs a person, in the pool's own word.
    Broken(String),
}

impl fmt::Display for HostState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Changing(word) | Self::Broken(word) => f.write_str(word),
        }
    }
}

/// The password of a host's user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Password {
    /// The password.
    Known(Secret),
    /// The pool has one, and does not show it at the moment.
    Sealed,
    /// The pool has none.
    Absent,
}

/// What became of a host that was to be given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    /// It is given back. `wiped`: it is being installed anew.
    Released {
        /// Whether the host is installed anew.
        wiped: bool,
        /// The release of macOS that was asked for is not to be had. The host gets the default of its type.
        os_unavailable: bool,
    },
    /// There is no such host any more.
    Gone,
    /// It is not this machine's any more: it bears this name. Nothing was done to it.
    NotOurs {
        /// Its name.
        name: String,
    },
}

/// Why there is no host for a machine.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// No host of the pool fits. The words say what there is instead, for the operator who adds hosts.
    #[error("no host of the pool is free: {0}")]
    NoAvailableHost(String),
    /// The machine was deleted meanwhile. No reconcile would ever give the host back.
    #[error("there is no machine {0} any more")]
    NoSuchMachine(MachineRef),
    /// A host with this name would look like one that is free.
    #[error(
        "the machine's name `{name}` is also the name of a host that is free (`{reserved}…`); a machine needs another name"
    )]
    ReservedName {
        /// The machine's name.
        name: String,
        /// What it begins with.
        reserved: String,
    },
    /// The pool does not answer as it should. It says nothing about how many hosts there are.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Why the pool cannot do what it is asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PoolError {
    /// The host is busy. It can be asked again later.
    #[error("the host is {0} at the moment")]
    Busy(HostState),
    /// There is no such host.
    #[error("there is no host {0}")]
    NoSuchHost(HostId),
    /// The pool cannot do this for its hosts; a person has to.
    #[error("this pool cannot {0}")]
    Unsupported(&'static str),
    /// Scaleway fails, or refuses.
    #[error(transparent)]
    Scaleway(#[from] ScalewayError),
    /// The list of Macs cannot be used.
    #[error(transparent)]
    MacList(#[from] MacListError),
    /// The machines are not known.
    #[error(transparent)]
    Machines(#[from] MachinesError),
}
