//! How a client asks for a stream, and which protocol it gets: by its headers, and only from the agent's own list.

use http::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use http::{HeaderMap, StatusCode};

/// The client's list of protocols, and the agent's answer.
pub(crate) const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// The agent's list, for a client that asked for none of it.
pub(crate) const ACCEPTED_PROTOCOLS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");

/// The transport of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Spdy,
    WebSocket,
}

/// The answer to a request that cannot be upgraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NegotiationError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The protocols that the client could have asked for.
    pub(crate) accepted: &'static [&'static str],
}

impl NegotiationError {
    fn bad_request(message: &str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.to_owned(), accepted: &[] }
    }
}

/// The transport that the client asks for.
pub(crate) fn transport(headers: &HeaderMap) -> Result<Transport, NegotiationError> {
    let is_upgrade = words(headers, &CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade"));
    let wants = |name: &str| is_upgrade && words(headers, &UPGRADE).any(|it| it.eq_ignore_ascii_case(name));
    if wants("websocket") {
        Ok(Transport::WebSocket)
    } else if wants("SPDY/3.1") {
        Ok(Transport::Spdy)
    } else {
        Err(NegotiationError::bad_request("the request must upgrade to SPDY/3.1 or to a WebSocket"))
    }
}

/// The first of the client's protocols that is in `ours`.
pub(crate) fn spdy_protocol(
    headers: &HeaderMap,
    ours: &'static [&'static str],
) -> Result<&'static str, NegotiationError> {
    let asked: Vec<&str> = words(headers, &STREAM_PROTOCOL).collect();
    if asked.is_empty() {
        return Err(NegotiationError::bad_request("the header X-Stream-Protocol-Version is required"));
    }
    choose(&asked, ours)
}

/// A WebSocket that the client may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebSocketOffer {
    /// Its key, which the answer has to prove that the agent has read.
    pub(crate) key: HeaderValue,
    /// `None` for a client that named none.
    pub(crate) protocol: Option<&'static str>,
}

/// The WebSocket that the client asks for, with the first of its protocols that is in `ours`.
pub(crate) fn web_socket(
    headers: &HeaderMap,
    ours: &'static [&'static str],
) -> Result<WebSocketOffer, NegotiationError> {
    let key = headers.get(SEC_WEBSOCKET_KEY);
    let key =
        key.ok_or_else(|| NegotiationError::bad_request("the header Sec-WebSocket-Key is required"))?.clone();
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(NegotiationError::bad_request("the header Sec-WebSocket-Version must be 13"));
    }
    let asked: Vec<&str> = words(headers, &SEC_WEBSOCKET_PROTOCOL).collect();
    let protocol = if asked.is_empty() { None } else { Some(choose(&asked, ours)?) };
    Ok(WebSocketOffer { key, protocol })
}

fn choose(asked: &[&str], ours: &'static [&'static str]) -> Result<&'static str, NegotiationError> {
    asked.iter().find_map(|asked| ours.iter().find(|ours| *ours == asked)).copied().ok_or_else(|| {
        NegotiationError {
            status: StatusCode::FORBIDDEN,
            message: format!("unable to upgrade: the client asks for {asked:?}, and the agent has {ours:?}"),
            accepted: ours,
        }
    })
}

/// The values of a header that is repeated, or joined by commas.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OURS: &[&str] = &["v4.channel.k8s.io", "channel.k8s.io"];

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn the_transport_is_named_in_any_case_and_among_other_words() {
        let of = |connection: &str, upgrade: &str| {
            transport(&headers(&[("connection", connection), ("upgrade", upgrade)]))
        };
        assert_eq!(of("Upgrade", "SPDY/3.1"), Ok(Transport::Spdy));
        assert_eq!(of("keep-alive, upgrade", "WebSocket"), Ok(Transport::WebSocket));
        for (connection, upgrade) in [("close", "websocket"), ("Upgrade", "h2c"), ("", "SPDY/3.1")] {
            let refused = of(connection, upgrade).unwrap_err();
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{connection} {upgrade}");
        }
    }

    #[test]
    fn the_first_of_the_clients_protocols_that_the_agent_has_is_chosen() {
        let of = |values: &[&str]| {
            let pairs: Vec<_> = values.iter().map(|value| ("x-stream-protocol-version", *value)).collect();
            spdy_protocol(&headers(&pairs), OURS)
        };
        assert_eq!(of(&["v5.channel.k8s.io", "v4.channel.k8s.io"]), Ok("v4.channel.k8s.io"));
        assert_eq!(of(&["v5.channel.k8s.io, channel.k8s.io,v4.channel.k8s.io"]), Ok("channel.k8s.io"));
        assert_eq!(of(&[]).unwrap_err().status, StatusCode::BAD_REQUEST);
        let none = of(&["v9.channel.k8s.io"]).unwrap_err();
        assert_eq!((none.status, none.accepted), (StatusCode::FORBIDDEN, OURS));
    }

    #[test]
    fn a_web_socket_needs_a_key_and_its_version_and_may_lack_a_protocol() {
        let key = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let version = ("sec-websocket-version", "13");
        let of = |pairs: &[(&'static str, &str)]| web_socket(&headers(pairs), OURS);
        assert_eq!(of(&[key, version]).unwrap().protocol, None);
        let asked = ("sec-websocket-protocol", "v5.channel.k8s.io, v4.channel.k8s.io");
        assert_eq!(of(&[key, version, asked]).unwrap().protocol, Some("v4.channel.k8s.io"));
        assert_eq!(of(&[version]).unwrap_err().status, StatusCode::BAD_REQUEST);
        assert_eq!(of(&[key]).unwrap_err().status, StatusCode::BAD_REQUEST);
        let unknown = ("sec-websocket-protocol", "chat");
        assert_eq!(of(&[key, version, unknown]).unwrap_err().status, StatusCode::FORBIDDEN);
    }

    proptest! {
        #[test]
        fn no_headers_make_the_negotiation_panic_or_choose_what_the_agent_lacks(values in prop::collection::vec("[ -~]{0,30}", 0..4)) {
            let names = ["connection", "upgrade", "x-stream-protocol-version", "sec-websocket-protocol", "sec-websocket-key"];
            let pairs: Vec<_> = names.iter().flat_map(|name| values.iter().map(|value| (*name, value.as_str()))).collect();
            let headers = headers(&pairs);
            let _ = transport(&headers);
            prop_assert!(spdy_protocol(&headers, OURS).is_ok_and(|it| OURS.contains(&it)) || spdy_protocol(&headers, OURS).is_err());
            let _ = web_socket(&headers, OURS);
        }
    }
}
