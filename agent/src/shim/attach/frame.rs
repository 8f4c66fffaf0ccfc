//! What agent and shim say on the attach socket: one byte for the kind, four for the length, then the content.

use std::io;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest content.
pub(in crate::shim) const MAX: usize = 32 << 10;

/// What the agent wants, first of all. Fields may be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::shim) struct Hello {
    pub(in crate::shim) container: String,
    /// Whether the client has a standard input.
    #[serde(default)]
    pub(in crate::shim) stdin: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::shim) enum Frame {
    Hello(Hello),
    Stdin(Bytes),
    EndOfStdin,
    Resize {
        rows: u16,
        columns: u16,
    },
    /// The client gets all output from here on.
    Joined,
    Stdout(Bytes),
    Stderr(Bytes),
    /// Why the client gets no more.
    Refused(String),
    /// A newer agent or shim knows what it means.
    Unknown,
}

impl Frame {
    /// `None` at the end.
    pub(in crate::shim) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let kind = match from.read_u8().await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        };
        let spoilt = || io::Error::from(io::ErrorKind::InvalidData);
        let length = usize::try_from(from.read_u32().await?).map_err(|_| spoilt())?;
        if length > MAX {
            return Err(spoilt());
        }
        let mut content = vec![0; length];
        from.read_exact(&mut content).await?;
        let text = |content| String::from_utf8_lossy(content).into_owned();
        Ok(Some(match kind {
            0 => Self::Hello(serde_json::from_slice(&content)?),
            1 => Self::Stdin(content.into()),
            2 => Self::EndOfStdin,
            3 => match content[..] {
                [a, b, c, d] => {
                    Self::Resize { rows: u16::from_be_bytes([a, b]), columns: u16::from_be_bytes([c, d]) }
                }
                _ => return Err(spoilt()),
            },
            4 => Self::Joined,
            5 => Self::Stdout(content.into()),
            6 => Self::Stderr(content.into()),
            7 => Self::Refused(text(&content)),
            _ => Self::Unknown,
        }))
    }

    pub(in crate::shim) async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let (kind, content) = match self {
            Self::Hello(hello) => (0, serde_json::to_vec(hello)?.into()),
            Self::Stdin(bytes) => (1, bytes.clone()),
            Self::EndOfStdin => (2, Bytes::new()),
            Self::Resize { rows, columns } => {
                let ([a, b], [c, d]) = (rows.to_be_bytes(), columns.to_be_bytes());
                (3, Bytes::copy_from_slice(&[a, b, c, d]))
            }
            Self::Joined => (4, Bytes::new()),
            Self::Stdout(bytes) => (5, bytes.clone()),
            Self::Stderr(bytes) => (6, bytes.clone()),
            Self::Refused(words) => (7, words.clone().into()),
            Self::Unknown => (u8::MAX, Bytes::new()),
        };
        let length = u32::try_from(content.len()).map_err(io::Error::other)?;
        let mut frame = Vec::with_capacity(content.len() + 5);
        frame.push(kind);
        frame.extend(length.to_be_bytes());
        frame.extend_from_slice(&content);
        to.write_all(&frame).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..100).prop_map(Bytes::from);
        prop_oneof![
            (".{0,20}", any::<bool>())
                .prop_map(|(container, stdin)| Frame::Hello(Hello { container, stdin })),
            bytes().prop_map(Frame::Stdin),
            Just(Frame::EndOfStdin),
            any::<(u16, u16)>().prop_map(|(rows, columns)| Frame::Resize { rows, columns }),
            Just(Frame::Joined),
            bytes().prop_map(Frame::Stdout),
            bytes().prop_map(Frame::Stderr),
            ".{0,20}".prop_map(Frame::Refused),
            Just(Frame::Unknown),
        ]
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    proptest! {
        #[test]
        fn frames_survive_a_round_trip_and_no_bytes_panic(frames in prop::collection::vec(frame(), 0..5), garbage in prop::collection::vec(any::<u8>(), 0..40)) {
            run(async {
                let mut bytes = Vec::new();
                for frame in &frames {
                    frame.write(&mut bytes).await.unwrap();
                }
                let mut rest = &bytes[..];
                for frame in frames {
                    assert_eq!(Frame::read(&mut rest).await.unwrap(), Some(frame));
                }
                assert_eq!(Frame::read(&mut rest).await.unwrap(), None);
                let mut garbage = &garbage[..];
                while let Ok(Some(_)) = Frame::read(&mut garbage).await {}
            });
        }
    }
}
