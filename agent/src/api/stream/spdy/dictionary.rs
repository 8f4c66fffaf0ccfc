//! The text that both sides of SPDY/3 know before the first header block, so that short blocks compress well.

use std::sync::LazyLock;

/// The dictionary begins with these words, each after its length in four bytes.
const WORDS: [&str; 64] = [
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
];

/// The rest of it: one more word, then text without lengths.
const TEXT: &str = "\0\0\0\u{6}origin100101201202205206300302303304305306307402405406407408409410411412413414415416417\
    502504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 \
    Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun \
    Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,\
    image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,\
    sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// The Adler-32 checksum of the dictionary, by which zlib names it.
pub(super) const CHECKSUM: u32 = 0xe3c6_a7c2;

pub(super) static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut all = Vec::with_capacity(1423);
    for word in WORDS {
        all.extend([0, 0, 0]);
        // No word has more than 20 letters.
        all.extend(u8::try_from(word.len()));
        all.extend_from_slice(word.as_bytes());
    }
    all.extend_from_slice(TEXT.as_bytes());
    all
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_is_that_of_spdy_3() {
        let (low, high) = DICTIONARY.iter().fold((1_u32, 0_u32), |(low, high), &byte| {
            let low = (low + u32::from(byte)) % 65_521;
            (low, (high + low) % 65_521)
        });
        assert_eq!((DICTIONARY.len(), high << 16 | low), (1423, CHECKSUM));
    }
}
