//! `control.sock`: `run` forwards every connection to the guest agent, byte by byte.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tart_sim::Fault;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

use crate::host::faults::VmFaults;

/// How often a stalled connection looks whether the fault is gone.
const STALL_CHECK: Duration = Duration::from_millis(20);

/// The size of the buffer: the most that waits for a side that does not read.
const BUFFER: usize = 64 * 1024;

/// How many connections there can be, unless the knob `control-socket-connections` says otherwise: a process of macOS has 10,240
/// files at most, and the VM needs some itself.
const CONNECTIONS: usize = 10_000;

/// The length of a socket's address on macOS.
const SUN_PATH: usize = 104;

/// The type byte of an HTTP/2 frame header, and the type of GOAWAY.
const GOAWAY: (usize, u8) = (3, 7);

/// The socket as the host's programs see it.
#[derive(Debug)]
pub(super) struct ControlSocket {
    listener: UnixListener,
    agent_socket: PathBuf,
    /// One byte for each connection that was accepted, for tests to count.
    accepted: File,
    faults: VmFaults,
}

impl ControlSocket {
    /// Creates the socket. macOS has room for 104 bytes in a socket's address, and one of them is the end.
    pub(super) fn bind(path: &Path, agent_socket: PathBuf, faults: VmFaults) -> io::Result<Self> {
        if path.as_os_str().len() >= SUN_PATH {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let accepted = File::create(path.with_extension("sock.accepted"))?;
        Ok(Self { listener: UnixListener::bind(path)?, agent_socket, accepted, faults })
    }

    /// Forwards connections until there are more than this process can have files open. Then the socket is closed for good: tart
    /// ignores the failure, and the VM runs on without it.
    pub(super) async fn serve(self) {
        let limit = self.faults.parameter(Fault::ControlSocketConnections).and_then(|text| text.parse().ok());
        let connections = Arc::new(());
        loop {
            let Ok((client, _)) = self.listener.accept().await else { continue };
            // A count that is too low fails the test that reads it.
            let _ = (&self.accepted).write_all(b".");
            if Arc::strong_count(&connections) > limit.unwrap_or(CONNECTIONS) {
                return;
            }
            let (agent_socket, faults) = (self.agent_socket.clone(), self.faults.clone());
            let connection = Arc::clone(&connections);
            tokio::spawn(async move {
                // Both sides notice a failure by the connection's end.
                let _ = forward(client, agent_socket, &faults).await;
                drop(connection);
            });
        }
    }
}

/// Forwards both directions. tart has a task for each and waits for both. So neither side hears of the other's end: when the client
/// closes, the connection to the agent stays until the agent sends something; when the agent closes, the connection to the client
/// stays until the client sends something.
async fn forward(mut client: UnixStream, agent_socket: PathBuf, faults: &VmFaults) -> io::Result<()> {
    if faults.is_on(Fault::AgentGarbage) {
        return client.write_all(b"\x00\xffthis is not HTTP/2\r\n\r\n\x00").await;
    }
    if faults.is_on(Fault::AgentDown) {
        return Ok(());
    }
    while faults.is_on(Fault::AgentStall) {
        sleep(STALL_CHECK).await;
    }
    let agent = UnixStream::connect(agent_socket).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_agent, mut to_agent) = agent.into_split();
    let client_has_ended = AtomicBool::new(false);
    let to_agent = async {
        let mut buffer = vec![0; BUFFER];
        while let length @ 1.. = read(&mut from_client, &mut buffer, faults).await? {
            to_agent.write_all(&buffer[..length]).await?;
        }
        client_has_ended.store(true, Ordering::Relaxed);
        io::Result::Ok(())
    };
    let to_client = async {
        let mut buffer = vec![0; BUFFER];
        loop {
            let length = read(&mut from_agent, &mut buffer, faults).await?;
            let is_goaway = buffer[..length].get(GOAWAY.0) == Some(&GOAWAY.1);
            if client_has_ended.load(Ordering::Relaxed) && (is_goaway || length == 0) {
                // The client has said goodbye. The real agent ignores that; the simulated one answers and closes.
                std::future::pending::<()>().await;
            }
            if length == 0 {
                return io::Result::Ok(());
            }
            to_client.write_all(&buffer[..length]).await?;
        }
    };
    tokio::try_join!(to_agent, to_client)?;
    Ok(())
}

async fn read(from: &mut OwnedReadHalf, buffer: &mut [u8], faults: &VmFaults) -> io::Result<usize> {
    let length = match from.read(buffer).await {
        // Linux says so of a peer that has left something unread. On macOS that is an end like any other.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
        read => read?,
    };
    while faults.is_on(Fault::AgentStall) {
        sleep(STALL_CHECK).await;
    }
    Ok(length)
}
