//! The agent's end of a shim's attach socket: one connection for each client.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::guest::ExecInput;
use crate::logs::line::LogStream;
use crate::shim::attach::frame::{Frame, Hello, MAX};

const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error("the VM's shim cannot be reached")]
    Unreachable(#[from] io::Error),
    #[error("the VM's shim does not answer")]
    Late,
    #[error("{0}")]
    Refused(String),
}

/// A command that the shim owns, as one client sees it. Dropped, the client is gone.
#[derive(Debug)]
pub(crate) struct AttachedCommand {
    pub(crate) input: AttachedInput,
    pub(crate) output: AttachedReader,
}

#[derive(Debug)]
pub(crate) struct AttachedInput(OwnedWriteHalf);

#[derive(Debug)]
pub(crate) struct AttachedReader(OwnedReadHalf);

impl AttachedCommand {
    /// Attaches to the command of a container.
    pub(crate) async fn open(socket: &Path, container: &str, stdin: bool) -> Result<Self, AttachError> {
        let joined = async {
            let (mut output, mut input) =
                UnixStream::from_std(crate::fs::socket::connect(socket)?)?.into_split();
            Frame::Hello(Hello { container: container.to_owned(), stdin }).write(&mut input).await?;
            match Frame::read(&mut output).await? {
                Some(Frame::Joined) => {}
                Some(Frame::Refused(words)) => return Err(AttachError::Refused(words)),
                _ => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            }
            Ok(Self { input: AttachedInput(input), output: AttachedReader(output) })
        };
        timeout(LIMIT, joined).await.unwrap_or(Err(AttachError::Late))
    }
}

impl AttachedInput {
    /// Waits until the shim has taken it.
    pub(crate) async fn send(&mut self, input: ExecInput) -> io::Result<()> {
        match input {
            ExecInput::Stdin(mut bytes) => {
                while !bytes.is_empty() {
                    let part = bytes.split_to(bytes.len().min(MAX));
                    Frame::Stdin(part).write(&mut self.0).await?;
                }
                Ok(())
            }
            ExecInput::EndOfStdin => Frame::EndOfStdin.write(&mut self.0).await,
            ExecInput::Resize { rows, columns } => Frame::Resize { rows, columns }.write(&mut self.0).await,
        }
    }
}

impl AttachedReader {
    /// What the command writes next; `None` at its end.
    pub(crate) async fn recv(&mut self) -> Result<Option<(LogStream, Bytes)>, AttachError> {
        loop {
            return match Frame::read(&mut self.0).await? {
                Some(Frame::Stdout(bytes)) => Ok(Some((LogStream::Stdout, bytes))),
                Some(Frame::Stderr(bytes)) => Ok(Some((LogStream::Stderr, bytes))),
                Some(Frame::Refused(words)) => Err(AttachError::Refused(words)),
                Some(_) => continue,
                None => Ok(None),
            };
        }
    }
}
