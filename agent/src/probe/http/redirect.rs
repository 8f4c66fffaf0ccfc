//! Where a redirect leads, and how a path is escaped.

use std::fmt::Write as _;

use http::header::LOCATION;
use http::uri::{PathAndQuery, Scheme};
use http::{Response, StatusCode, Uri};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Redirect {
    pub(super) url: Uri,
    /// Whether the server named no host, so that a `Host` header still holds.
    pub(super) relative: bool,
}

/// The target of an answer to `url`, if it is a redirect.
pub(super) fn of<B>(response: &Response<B>, url: &Uri) -> Result<Option<Redirect>, String> {
    let leads = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let location = response.headers().get(LOCATION).filter(|location| leads && !location.is_empty());
    let Some(location) = location else { return Ok(None) };
    let location = String::from_utf8_lossy(location.as_bytes());
    resolve(url, &location).map(Some).ok_or_else(|| format!("failed to parse Location header {location:?}"))
}

/// A reference as seen from `base`.
fn resolve(base: &Uri, reference: &str) -> Option<Redirect> {
    let reference = reference.split('#').next().unwrap_or_default();
    let scheme = base.scheme_str().unwrap_or("http");
    let absolute = |text: &str| {
        let (scheme, rest) = text.split_once("://")?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let scheme: Scheme = scheme.to_ascii_lowercase().parse().ok()?;
        Uri::builder().scheme(scheme).authority(authority).path_and_query(escaped(path)).build().ok()
    };
    if let Some(rest) = reference.strip_prefix("//") {
        return Some(Redirect { url: absolute(&format!("{scheme}://{rest}"))?, relative: false });
    }
    if reference.contains("://") && !reference.starts_with(['/', '?', '.']) {
        return Some(Redirect { url: absolute(reference)?, relative: false });
    }
    let path = if reference.is_empty() {
        base.path_and_query()?.as_str().to_owned()
    } else if reference.starts_with('?') {
        format!("{}{reference}", base.path())
    } else {
        let (path, query) = reference.split_at(reference.find('?').unwrap_or(reference.len()));
        let directory = base.path().rfind('/').map_or("/", |end| &base.path()[..=end]);
        let joined = if path.starts_with('/') { path.to_owned() } else { format!("{directory}{path}") };
        format!("{}{query}", without_dots(&joined))
    };
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(escaped(&path).parse::<PathAndQuery>().ok()?);
    Some(Redirect { url: Uri::from_parts(parts).ok()?, relative: true })
}

/// A path without `.` and `..`.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut open = false;
    for segment in path.split('/').skip(1) {
        open = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => _ = kept.pop(),
            segment => kept.push(segment),
        }
    }
    let end = if open && !kept.is_empty() { "/" } else { "" };
    format!("/{}{end}", kept.join("/"))
}

/// A path and query that can be sent: from the root, without a fragment, with `%20` for a space and the like.
pub(super) fn escaped(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let mut text = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        text.push('/');
    }
    for (index, byte) in path.bytes().enumerate() {
        let hex = |at: usize| path.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
        let stays = match byte {
            b'%' => hex(index + 1) && hex(index + 2),
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => false,
            byte => byte.is_ascii_graphic(),
        };
        if stays {
            text.push(byte.into());
        } else {
            // Writing to a String does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved_as_a_browser_does() {
        let base: Uri = "http://10.0.0.1:80/a/b?c=d".parse().unwrap();
        let table = [
            ("/x", "http://10.0.0.1:80/x", true),
            ("/x?y=1#z", "http://10.0.0.1:80/x?y=1", true),
            ("x", "http://10.0.0.1:80/a/x", true),
            ("../x/./y", "http://10.0.0.1:80/x/y", true),
            ("../../../x", "http://10.0.0.1:80/x", true),
            (".", "http://10.0.0.1:80/a/", true),
            ("?y", "http://10.0.0.1:80/a/b?y", true),
            ("", "http://10.0.0.1:80/a/b?c=d", true),
            ("/to?next=http://other/", "http://10.0.0.1:80/to?next=http://other/", true),
            ("//other/x", "http://other/x", false),
            ("https://10.0.0.1/x", "https://10.0.0.1/x", false),
            ("HTTP://other", "http://other/", false),
            ("http://other?a b", "http://other/?a%20b", false),
        ];
        for (reference, url, relative) in table {
            let found = resolve(&base, reference).unwrap();
            assert_eq!((found.url.to_string().as_str(), found.relative), (url, relative), "{reference}");
        }
        assert_eq!(resolve(&base, "http://[nonsense/"), None);
    }

    #[test]
    fn only_redirects_that_name_a_place_lead_anywhere() {
        let base: Uri = "http://a/".parse().unwrap();
        let leads = |status: u16, location: &str| {
            let answer = Response::builder().status(status).header(LOCATION, location).body(()).unwrap();
            of(&answer, &base).unwrap().is_some()
        };
        assert!([301, 302, 303, 307, 308].iter().all(|status| leads(*status, "/x")));
        assert!(![200, 201, 300, 304, 404].iter().any(|status| leads(*status, "/x")));
        assert!(!leads(302, ""));
    }

    #[test]
    fn paths_are_made_fit_to_send() {
        let table = [("", "/"), ("x", "/x"), ("/a b?c=ü", "/a%20b?c=%C3%BC"), ("/a%20b%zz#f", "/a%20b%25zz")];
        for (path, sent) in table {
            assert_eq!(escaped(path), sent);
        }
    }
}
