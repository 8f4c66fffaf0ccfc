//! `control.sock`: `run` forwards every connection to the guest agent, byte by byte.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use tart_sim::Fault;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

use crate::host::faults::VmFaults;

/// How often a stalled connection looks whether the fault is gone.
const STALL_CHECK: Duration = Duration::from_millis(20);

/// The size of the buffer: the most that waits for a side that does not read.
const BUFFER: usize = 64 * 1024;

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
    /// Creates the socket in the current directory: a name without a directory is never too long for a socket.
    pub(super) fn bind(name: &str, agent_socket: PathBuf, faults: VmFaults) -> io::Result<Self> {
        // The last `run` has left it, as the real tart does.
        let _ = fs::remove_file(name);
        let accepted = File::create(format!("{name}.accepted"))?;
        Ok(Self { listener: UnixListener::bind(name)?, agent_socket, accepted, faults })
    }

    /// Forwards connections for ever.
    pub(super) async fn serve(self) {
        loop {
            let Ok((client, _)) = self.listener.accept().await else { continue };
            // A count that is too low fails the test that reads it.
            let _ = (&self.accepted).write_all(b".");
            let (agent_socket, faults) = (self.agent_socket.clone(), self.faults.clone());
            tokio::spawn(async move {
                // Both sides notice a failure by the connection's end.
                let _ = forward(client, agent_socket, &faults).await;
            });
        }
    }
}

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
    let (from_client, to_client) = client.into_split();
    let (from_agent, to_agent) = agent.into_split();
    tokio::try_join!(copy(from_client, to_agent, faults), copy(from_agent, to_client, faults))?;
    Ok(())
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    faults: &VmFaults,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        while faults.is_on(Fault::AgentStall) {
            sleep(STALL_CHECK).await;
        }
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..length]).await?;
    }
}
