//! The agent's connections to guest agents: one for each VM, shared by all that the agent does in its guest.
//!
//! A guest agent is slow to accept a new connection, and tart keeps a part of each connection that was closed. A connection that breaks is
//! made again by the next call.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Guest;

/// All connections, by control socket. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct GuestConnections(Arc<Mutex<HashMap<PathBuf, Guest>>>);

impl GuestConnections {
    /// The VM's connection. The first call makes it.
    pub(crate) fn to(&self, control_socket: &Path) -> Guest {
        let mut guests = self.guests();
        guests.entry(control_socket.to_owned()).or_insert_with(|| Guest::new(control_socket)).clone()
    }

    /// Closes the connection to a VM that has ended, once the calls on it have.
    pub(crate) fn close(&self, control_socket: &Path) {
        self.guests().remove(control_socket);
    }

    fn guests(&self) -> MutexGuard<'_, HashMap<PathBuf, Guest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    async fn calls_share_a_connection_and_a_broken_one_is_made_again() {
        const LIMIT: Duration = Duration::from_secs(60);
        let dir = dir();
        let socket = dir.path().join("control.sock");
        let connections = GuestConnections::default();
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
