//! Takes a connection over from HTTP, for a protocol of streams.

use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::super::stream::negotiation::{
    self, ACCEPTED_PROTOCOLS, NegotiationError, STREAM_PROTOCOL, Transport,
};
use super::super::stream::websocket::accept_key;
use super::response::{self, Body};

/// How long the answer may take to be sent.
const LIMIT: Duration = Duration::from_secs(30);

/// The protocols of a handler, by transport.
#[derive(Debug, Clone, Copy)]
pub(in crate::api) struct Protocols {
    pub(in crate::api) spdy: &'static [&'static str],
    pub(in crate::api) web_socket: &'static [&'static str],
}

/// The protocol of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) enum Protocol {
    Spdy(&'static str),
    /// `None` for a client that named none.
    WebSocket(Option<&'static str>),
}

/// A connection that HTTP hands over once its answer is sent.
#[derive(Debug)]
pub(in crate::api) struct Upgrade {
    pub(in crate::api) protocol: Protocol,
    connection: OnUpgrade,
}

/// The upgrade that the client asks for, and the answer to it; or the refusal.
#[expect(clippy::result_large_err, reason = "the error is the answer, sent once")]
pub(in crate::api) fn accept(
    request: &mut Request<Incoming>,
    protocols: Protocols,
) -> Result<(Upgrade, Response<Body>), Response<Body>> {
    let mut answer = Response::new(response::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    let asked = request.headers();
    let protocol = match negotiation::transport(asked).map_err(refused)? {
        Transport::Spdy => {
            let protocol = negotiation::spdy_protocol(asked, protocols.spdy).map_err(refused)?;
            headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
            headers.insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol));
            Protocol::Spdy(protocol)
        }
        Transport::WebSocket => {
            let offer = negotiation::web_socket(asked, protocols.web_socket).map_err(refused)?;
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            if let Ok(key) = accept_key(offer.key.as_bytes()).parse() {
                headers.insert(SEC_WEBSOCKET_ACCEPT, key);
            }
            if let Some(protocol) = offer.protocol {
                headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
            }
            Protocol::WebSocket(offer.protocol)
        }
    };
    Ok((Upgrade { protocol, connection: hyper::upgrade::on(request) }, answer))
}

fn refused(refusal: NegotiationError) -> Response<Body> {
    let mut answer = response::refusal(refusal.status, refusal.message);
    for protocol in refusal.accepted {
        answer.headers_mut().append(ACCEPTED_PROTOCOLS, HeaderValue::from_static(protocol));
    }
    answer
}

impl Upgrade {
    /// Waits until the answer is sent; `None` when the client is gone.
    pub(in crate::api) async fn connection(self) -> Option<TokioIo<Upgraded>> {
        let upgraded = timeout(LIMIT, self.connection).await.ok()?.ok()?;
        Some(TokioIo::new(upgraded))
    }
}
