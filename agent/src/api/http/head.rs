//! The size of a request's head.

use http::Request;

/// The most bytes of a head. A command is in its URL.
pub(in crate::api) const MAX_HEAD: usize = 128 << 10;

/// Whether a request's head has more bytes than [`MAX_HEAD`]. hyper's own limit is for its buffer, and a head that comes in large pieces
/// may have almost twice as much.
pub(in crate::api) fn is_too_large<B>(request: &Request<B>) -> bool {
    size(request) > MAX_HEAD
}

/// The bytes of the head, without optional white space.
fn size<B>(request: &Request<B>) -> usize {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + " ".len() + " HTTP/1.1\r\n".len();
    let headers = request.headers().iter();
    let headers: usize =
        headers.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum();
    line + headers + "\r\n".len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_the_bytes_that_a_client_sends() {
        let sent = "GET /exec?command=a HTTP/1.1\r\nhost: mac\r\nx-a: 1\r\nx-a: 22\r\n\r\n";
        let request =
            Request::get("/exec?command=a").header("host", "mac").header("x-a", "1").header("x-a", "22");
        assert_eq!(size(&request.body(()).unwrap()), sent.len());
    }

    #[test]
    fn one_byte_decides() {
        let with = |length: usize| Request::get("/").header("x-long", "a".repeat(length)).body(()).unwrap();
        let rest = size(&with(0));
        assert!(!is_too_large(&with(MAX_HEAD - rest)));
        assert!(is_too_large(&with(MAX_HEAD - rest + 1)));
        let url = format!("/?{}", "a".repeat(MAX_HEAD));
        // A target is at most 65,534 bytes, which the parser refuses before.
        assert!(Request::get(url).body(()).is_err());
    }
}
