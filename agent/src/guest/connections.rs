//! The agent's connections to guest agents: one for each VM, shared by all that the agent does in its guest.
//!
//! A guest agent is slow to accept a new connection, and tart keeps a part of each connection that was closed. A connection that breaks is
//! made again by the next call.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::OnceCell;

use super::Guest;
use super::script::ContainerScripts;

/// All connections, by control socket. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct GuestConnections {
    guests: Arc<Mutex<HashMap<PathBuf, VmConnection>>>,
    /// Where the connections are served, on whatever thread they are asked for: the kubelet API has a thread of its own, and its load must
    /// not delay probes.
    runtime: Handle,
}

/// What the agent has of one VM's guest.
#[derive(Debug, Clone)]
struct VmConnection {
    guest: Guest,
    /// The scripts that the agent has left in a guest that only boots.
    scripts: Arc<OnceCell<ContainerScripts>>,
    /// The names in use of users' commands.
    names: Arc<Mutex<BTreeSet<u32>>>,
}

/// A name for a user's command in a guest. Its number names a file there, and is free again when this is dropped. No other command has the
/// same name, not even one that an earlier agent has left behind.
#[derive(Debug)]
pub(crate) struct ExecName {
    number: u32,
    unique: u64,
    names: Arc<Mutex<BTreeSet<u32>>>,
}

impl fmt::Display for ExecName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}", self.number, self.unique)
    }
}

impl Drop for ExecName {
    fn drop(&mut self) {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

impl GuestConnections {
    /// Connections that this runtime serves.
    pub(crate) fn on(runtime: Handle) -> Self {
        Self { guests: Arc::default(), runtime }
    }

    /// The VM's connection. The first call makes it.
    pub(crate) fn to(&self, control_socket: &Path) -> Guest {
        self.connection(control_socket).guest
    }

    /// A name with the lowest number that no command in the guest has, so that there are never more files than there were commands at once.
    pub(crate) fn exec_name(&self, control_socket: &Path) -> ExecName {
        let names = self.connection(control_socket).names;
        let number = {
            let mut used = names.lock().unwrap_or_else(PoisonError::into_inner);
            let number = (0..u32::MAX).find(|number| !used.contains(number)).unwrap_or(u32::MAX);
            used.insert(number);
            number
        };
        ExecName { number, unique: fastrand::u64(..), names }
    }

    /// The scripts in a guest that only boots; the first call sets them up.
    pub(crate) async fn boot_scripts<E>(
        &self,
        control_socket: &Path,
        set_up: impl AsyncFnOnce(Guest) -> Result<ContainerScripts, E>,
    ) -> Result<ContainerScripts, E> {
        let VmConnection { guest, scripts, .. } = self.connection(control_socket);
        scripts.get_or_try_init(|| set_up(guest)).await.cloned()
    }

    fn connection(&self, control_socket: &Path) -> VmConnection {
        let _runtime = self.runtime.enter();
        let mut guests = self.guests();
        let connection = guests.entry(control_socket.to_owned()).or_insert_with(|| VmConnection {
            guest: Guest::new(control_socket),
            scripts: Arc::default(),
            names: Arc::default(),
        });
        connection.clone()
    }

    /// Closes the connection to a VM that has ended, once the calls on it have.
    pub(crate) fn close(&self, control_socket: &Path) {
        self.guests().remove(control_socket);
    }

    fn guests(&self) -> MutexGuard<'_, HashMap<PathBuf, VmConnection>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::{Exec, GuestError};
    use crate::testing::dir;
    use futures::FutureExt;
    use std::time::Duration;
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn a_command_has_the_lowest_number_that_is_free_and_a_name_of_its_own() {
        let connections = GuestConnections::on(Handle::current());
        let name = || connections.exec_name("/a".as_ref());
        let number = |name: &ExecName| name.to_string().split_once('.').unwrap().0.to_owned();
        let (first, second) = (name(), name());
        assert_eq!([number(&first), number(&second)], ["0", "1"]);
        let before = first.to_string();
        drop(first);
        let again = name();
        assert_eq!(number(&again), "0");
        assert_ne!(again.to_string(), before);
        assert_eq!(number(&connections.exec_name("/b".as_ref())), "0");
    }

    #[tokio::test]
    async fn calls_share_a_connection_and_a_broken_one_is_made_again() {
        const LIMIT: Duration = Duration::from_mins(1);
        let dir = dir();
        let socket = dir.path().join("control.sock");
        let connections = GuestConnections::on(Handle::current());
        let call = || {
            let mut guest = connections.to(&socket);
            tokio::spawn(async move { guest.run(Exec::default(), LIMIT, 0).await.end })
        };
        assert!(matches!(call().await.unwrap(), Err(GuestError::Unreachable(_))));
        let listener = UnixListener::bind(&socket).unwrap();
        for _ in 0..2 {
            let calls = [call(), call(), call()];
            let (stream, _) = listener.accept().await.unwrap();
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert!(listener.accept().now_or_never().is_none(), "all of them wait on one connection");
            drop(stream);
            let ended = futures::future::join_all(calls);
            tokio::pin!(ended);
            let ended = loop {
                tokio::select! {
                    ended = &mut ended => break ended,
                    // A call that had not been sent yet tries again.
                    again = listener.accept() => drop(again.unwrap()),
                }
            };
            assert!(ended.into_iter().all(|end| matches!(end.unwrap(), Err(GuestError::Unreachable(_)))));
        }
        connections.close(&socket);
        assert!(connections.guests().is_empty());
    }
}
