//! A guest agent that speaks the protocol and answers what a test wants.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use futures::stream::{self, BoxStream, StreamExt};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tart_kubelet_tests::mac::Mac;
use tokio::net::UnixListener;
use tokio::task::JoinSet;

type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// How it answers every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Output without end, and never an exit code.
    Flood,
    /// A message with the greatest length that the protocol has, and without an end.
    OneLongMessage,
}

/// The guest agent of one VM, for as long as it is not dropped.
#[derive(Debug)]
pub(super) struct FakeGuestAgent {
    sent: Arc<AtomicU64>,
    _server: JoinSet<()>,
}

impl FakeGuestAgent {
    /// Serves in place of a VM's own guest agent, which its image must not have. The VM must exist, but not run yet.
    pub(super) fn serve(mac: &Mac, vm: &str, address: &str, answer: Answer) -> Result<Self> {
        // A path in the VM's directory would be too long for a socket.
        let socket = mac.host().join(format!("{}.sock", &vm[vm.len() - 8..]));
        let listener = UnixListener::bind(&socket).context("cannot listen")?;
        let place = mac.tart_home().join("vms").join(vm).join("guest/agent.sock");
        std::os::unix::fs::symlink(&socket, &place)
            .with_context(|| format!("cannot be at {}", place.display()))?;
        let sent = Arc::new(AtomicU64::new(0));
        let (address, counter) = (address.to_owned(), sent.clone());
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (address, counter) = (address.clone(), counter.clone());
                connections.spawn(async move {
                    let service = service_fn(move |request: Request<Incoming>| {
                        let body = match request.uri().path() {
                            "/Agent/ResolveIP" => resolved(&address),
                            _ => answered(answer, counter.clone()),
                        };
                        let response = Response::builder().header("content-type", "application/grpc");
                        std::future::ready(response.body(body))
                    });
                    // The shim may close the connection at any time.
                    let _ = auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { sent, _server: server })
    }

    /// How many bytes of output the shim has taken.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// The answer to a question for the guest's address: a message with one text.
fn resolved(address: &str) -> Body {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let frames = [Frame::data(message(&field(1, address.as_bytes()))), Frame::trailers(trailers)];
    StreamBody::new(stream::iter(frames.map(Ok)).boxed())
}

fn answered(answer: Answer, sent: Arc<AtomicU64>) -> Body {
    // Standard output is field 2, a message whose field 1 are the bytes.
    let chunk = message(&field(2, &field(1, &vec![b'x'; 32 << 10])));
    let start = match answer {
        Answer::Flood => None,
        Answer::OneLongMessage => Some(Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff])),
    };
    let frames = stream::iter(start).chain(stream::repeat(chunk)).map(move |bytes| {
        sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(Frame::data(bytes))
    });
    StreamBody::new(frames.boxed())
}

/// A message as gRPC frames it: not compressed, its length, itself.
fn message(bytes: &[u8]) -> Bytes {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0], length.as_slice(), bytes].concat().into()
}

/// A field with a length, as Protocol Buffers have it.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut encoded = vec![number << 3 | 2];
    let mut length = bytes.len();
    loop {
        // Seven bits at a time; the eighth says whether there are more.
        let [low, ..] = length.to_le_bytes();
        length >>= 7;
        if length == 0 {
            encoded.push(low & 0x7f);
            break;
        }
        encoded.push(low | 0x80);
    }
    encoded.extend_from_slice(bytes);
    encoded
}
