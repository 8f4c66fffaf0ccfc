//! Fuzzing of what clients send before a stream begins: paths, queries and headers.

use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::auth::{Attributes, bearer_token};
use super::command_query::CommandQuery;
use super::http::path::Route;
use super::stream::forwarded_ports::parse_ports;
use super::stream::negotiation::{STREAM_PROTOCOL, spdy_protocol, transport, web_socket};
use super::stream::{forwarded_ports, remote_command};
use crate::fuzz::run_texts;
use crate::logs::query::LogQuery;

#[test]
fn fuzz_queries() {
    run_texts(include_str!("corpus/queries.txt"), |text| {
        let _ = LogQuery::parse(text);
        if let Ok(uri) = format!("/exec/n/p/c?{text}").parse::<Uri>()
            && let Ok(query) = CommandQuery::parse(&uri)
        {
            let wanted = query.wanted;
            assert!(wanted.stdin || wanted.stdout || wanted.stderr);
            assert!(!(wanted.tty && wanted.stderr), "a terminal has one output");
        }
        let values: Vec<&str> = text.split('&').filter_map(|pair| pair.strip_prefix("port=")).collect();
        if let Ok(ports) = parse_ports(values.iter().copied()) {
            assert!(ports.iter().all(|port| *port > 0), "{ports:?}");
        }
    });
}

#[test]
fn fuzz_paths() {
    run_texts(include_str!("corpus/paths.txt"), |path| {
        let runs = matches!(
            Route::parse(path),
            Some(Route::Exec(_) | Route::Attach(_) | Route::Run(_) | Route::PortForward(_))
        );
        let verb = Attributes::of(&Method::GET, path).verb();
        assert!(!runs || verb == "create", "{path} runs a command for a client that may only read");
    });
}

#[test]
fn fuzz_headers() {
    run_texts(include_str!("corpus/headers.txt"), |text| {
        let headers = headers(text);
        let _ = transport(&headers);
        for ours in [remote_command::SPDY_PROTOCOLS, forwarded_ports::SPDY_PROTOCOLS] {
            if let Ok(chosen) = spdy_protocol(&headers, ours) {
                assert!(ours.contains(&chosen) && is_asked(&headers, &STREAM_PROTOCOL, chosen), "{chosen}");
            }
        }
        for ours in [remote_command::WEB_SOCKET_PROTOCOLS, forwarded_ports::WEB_SOCKET_PROTOCOLS] {
            if let Ok(offer) = web_socket(&headers, ours)
                && let Some(chosen) = offer.protocol
            {
                assert!(
                    ours.contains(&chosen) && is_asked(&headers, &SEC_WEBSOCKET_PROTOCOL, chosen),
                    "{chosen}"
                );
            }
        }
        if let Some(token) = bearer_token(&headers) {
            assert!(!token.is_empty() && token.trim() == token);
        }
    });
}

/// The headers of a text like `Name: value|Name: value`; what no request can have is left out.
fn headers(text: &str) -> HeaderMap {
    let pairs = text.split('|').filter_map(|line| line.split_once(": "));
    let pairs = pairs.filter_map(|(name, value)| {
        Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?))
    });
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(name, value);
    }
    headers
}

fn is_asked(headers: &HeaderMap, name: &HeaderName, protocol: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|word| word.trim() == protocol)
}
