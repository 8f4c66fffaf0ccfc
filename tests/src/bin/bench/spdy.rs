//! The little of SPDY/3.1 that a client of one forwarded port needs.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

pub(crate) const PROTOCOL: &str = "portforward.k8s.io";
/// zlib's header of a stream with a preset dictionary, and the checksum of SPDY's.
const ZLIB: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];
const SYN_STREAM: [u8; 4] = [0x80, 3, 0, 1];
const RST_STREAM: u16 = 3;
const FIN: u8 = 1;
/// The client's streams: it reads why the connection failed from the first, and the server's bytes from the second.
const ERROR: u32 = 1;
const DATA: u32 = 3;
const BUFFER: usize = 64 << 10;

/// A connection to a port of a guest. It is read only.
pub(crate) struct Forwarded {
    stream: BufReader<TlsStream<TcpStream>>,
    data: Vec<u8>,
}

impl Forwarded {
    pub(crate) async fn open(mut stream: TlsStream<TcpStream>, port: u16) -> Result<Self> {
        let mut frames = Vec::new();
        for (id, kind, flags) in [(ERROR, "error", FIN), (DATA, "data", 0)] {
            let block =
                header_block(&[("streamtype", kind), ("port", &port.to_string()), ("requestid", "0")])?;
            // The headers of a connection are one stream of zlib, whose header comes once.
            let zlib: &[u8] = if id == ERROR { &ZLIB } else { &[] };
            let length = u32::try_from(10 + zlib.len() + block.len())?;
            frames.extend(SYN_STREAM);
            frames.extend((u32::from(flags) << 24 | length).to_be_bytes());
            frames.extend(id.to_be_bytes());
            // No stream that it belongs to, and no priority.
            frames.extend([0; 6]);
            frames.extend(zlib);
            frames.extend(block);
        }
        stream.write_all(&frames).await?;
        Ok(Self { stream: BufReader::with_capacity(BUFFER, stream), data: Vec::new() })
    }

    /// The next bytes of the server; `None` when it has sent all.
    pub(crate) async fn next(&mut self) -> Result<Option<&[u8]>> {
        loop {
            let first = self.stream.read_u32().await?;
            let second = self.stream.read_u32().await?;
            self.data.resize((second & 0x00ff_ffff).try_into()?, 0);
            self.stream.read_exact(&mut self.data).await?;
            let is_last = second >> 24 == u32::from(FIN);
            match first {
                ERROR if !self.data.is_empty() => bail!("{}", String::from_utf8_lossy(&self.data)),
                DATA if is_last && self.data.is_empty() => return Ok(None),
                DATA => break,
                control if control == 0x8003_0000 | u32::from(RST_STREAM) => bail!("the stream was reset"),
                _ => {}
            }
        }
        Ok(Some(&self.data))
    }
}

/// Headers as a part of a zlib stream that is not compressed.
fn header_block(headers: &[(&str, &str)]) -> Result<Vec<u8>> {
    let mut text = u32::try_from(headers.len())?.to_be_bytes().to_vec();
    for word in headers.iter().flat_map(|(name, value)| [name, value]) {
        text.extend(u32::try_from(word.len())?.to_be_bytes());
        text.extend(word.as_bytes());
    }
    let length = u16::try_from(text.len()).context("too many headers")?;
    let mut block = vec![0];
    block.extend(length.to_le_bytes());
    block.extend((!length).to_le_bytes());
    block.extend(text);
    Ok(block)
}
