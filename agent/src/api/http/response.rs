//! Answers of the kubelet API.

use std::io;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use serde_json::json;

/// The body of every answer. An error in the middle of it closes the connection, so that the client sees that the end is missing.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The body of an answer that has none.
pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn full(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).map_err(|never| match never {}).boxed_unsync()
}

/// An answer with its content.
pub(crate) fn content(
    status: StatusCode,
    content_type: &'static str,
    content: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(full(content));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The refusal of a stream, as an object of Kubernetes. Clients of SPDY, and API servers before 1.36 among them, try to read YAML: words with
/// a colon in them would be an object without a message, and be lost.
pub(crate) fn refusal(status: StatusCode, words: impl Into<String>) -> Response<Body> {
    let reason = match status {
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        _ => "InternalError",
    };
    let object = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": words.into(),
        "reason": reason,
        "code": status.as_u16(),
    });
    content(status, "application/json", object.to_string())
}

/// A line of text, as most of the kubelet's refusals are. The API server passes it on, and kubectl shows it.
pub(crate) fn text(status: StatusCode, words: impl Into<String>) -> Response<Body> {
    content(status, "text/plain; charset=utf-8", words.into())
}
