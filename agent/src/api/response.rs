//! Answers of the kubelet API.

use std::io;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::json;

/// The body of every answer. An error in the middle of it closes the connection, so that the client sees that the end is missing.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

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

/// A line of text, as most of the kubelet's refusals are. The API server passes it on, and kubectl shows it.
pub(crate) fn text(status: StatusCode, words: impl Into<String>) -> Response<Body> {
    content(status, "text/plain; charset=utf-8", words.into())
}

/// A failure as a `metav1.Status`, for clients that look at its reason.
pub(crate) fn failure(status: StatusCode, reason: &str, message: &str) -> Response<Body> {
    let object = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status.as_u16(),
    });
    content(status, "application/json", object.to_string())
}
