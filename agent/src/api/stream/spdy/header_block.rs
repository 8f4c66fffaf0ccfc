//! Header blocks: names and values, compressed by one zlib stream for each direction of a connection.

use flate2::{Decompress, FlushDecompress, Status};

use super::dictionary::{CHECKSUM, DICTIONARY};

/// How large a header block may be once it is inflated. The blocks of Kubernetes have less than 200 bytes.
const MAX_BLOCK: usize = 64 << 10;
const MAX_HEADERS: u32 = 128;
/// The most that a stored block of deflate can hold.
const MAX_STORED: usize = 0xffff;

/// The headers of a stream, in the peer's order. Names are in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Headers(Vec<(String, String)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("a header block cannot be inflated")]
    Zlib,
    #[error("a header block is larger than {MAX_BLOCK} bytes, or has more than {MAX_HEADERS} headers")]
    TooLarge,
    #[error("a header block ends too early, or goes on after its last header")]
    Length,
    #[error("a header is not text")]
    NotText,
}

impl Headers {
    #[cfg(test)]
    pub(super) fn new(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// The value of a header. A sender may have written the name in any case.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    fn parse(mut block: &[u8]) -> Result<Self, HeaderError> {
        let count = take_number(&mut block)?;
        if count > MAX_HEADERS {
            return Err(HeaderError::TooLarge);
        }
        let headers = (0..count).map(|_| Ok((take_text(&mut block)?, take_text(&mut block)?)));
        let headers = headers.collect::<Result<_, _>>()?;
        if block.is_empty() { Ok(Self(headers)) } else { Err(HeaderError::Length) }
    }

    fn to_block(&self) -> Vec<u8> {
        let mut block = number(self.0.len()).to_vec();
        for (name, value) in &self.0 {
            for text in [name, value] {
                block.extend(number(text.len()));
                block.extend_from_slice(text.as_bytes());
            }
        }
        block
    }
}

fn number(value: usize) -> [u8; 4] {
    u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes()
}

fn take_number(block: &mut &[u8]) -> Result<u32, HeaderError> {
    let (bytes, rest) = block.split_first_chunk::<4>().ok_or(HeaderError::Length)?;
    *block = rest;
    Ok(u32::from_be_bytes(*bytes))
}

fn take_text(block: &mut &[u8]) -> Result<String, HeaderError> {
    let length = usize::try_from(take_number(block)?).map_err(|_| HeaderError::Length)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(HeaderError::Length)?;
    *block = rest;
    String::from_utf8(bytes.to_vec()).map_err(|_| HeaderError::NotText)
}

/// Inflates the header blocks of one direction, one after the other.
#[derive(Debug)]
pub(super) struct Inflater(Decompress);

impl Inflater {
    pub(super) fn new() -> Self {
        Self(Decompress::new(true))
    }

    /// After an error the connection is of no use: later blocks refer to this one.
    pub(super) fn headers(&mut self, compressed: &[u8]) -> Result<Headers, HeaderError> {
        Headers::parse(&self.inflate(compressed)?)
    }

    fn inflate(&mut self, mut rest: &[u8]) -> Result<Vec<u8>, HeaderError> {
        let mut block = Vec::new();
        let mut part = [0; 1024];
        loop {
            let (read, written) = (self.0.total_in(), self.0.total_out());
            let status = self.0.decompress(rest, &mut part, FlushDecompress::Sync);
            let progress = |before: u64, now: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
            let (read, written) = (progress(read, self.0.total_in()), progress(written, self.0.total_out()));
            rest = rest.get(read..).unwrap_or_default();
            match status {
                Ok(Status::StreamEnd) => return Err(HeaderError::Zlib),
                Ok(Status::Ok | Status::BufError) => {}
                Err(error) if error.needs_dictionary() == Some(CHECKSUM) => {
                    self.0.set_dictionary(&DICTIONARY).map_err(|_| HeaderError::Zlib)?;
                    continue;
                }
                Err(_) => return Err(HeaderError::Zlib),
            }
            block.extend_from_slice(part.get(..written).unwrap_or(&part));
            if block.len() > MAX_BLOCK {
                return Err(HeaderError::TooLarge);
            }
            // zlib holds nothing back when it has had space for more.
            if rest.is_empty() && written < part.len() {
                return Ok(block);
            }
            if read == 0 && written == 0 {
                return Err(HeaderError::Zlib);
            }
        }
    }
}

/// Writes header blocks of one direction as stored blocks of deflate: the agent sends few headers, and a compressor would take more memory
/// than all else that a connection has.
#[derive(Debug, Default)]
pub(super) struct Deflater {
    begun: bool,
}

impl Deflater {
    pub(super) fn block(&mut self, headers: &Headers) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.begun {
            self.begun = true;
            // zlib's header, with the name of the dictionary.
            out.extend([0x78, 0xbb]);
            out.extend(CHECKSUM.to_be_bytes());
        }
        let block = headers.to_block();
        // An empty block makes the reader hand over what it has.
        for part in block.chunks(MAX_STORED).chain([&[][..]]) {
            let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
            out.push(0);
            out.extend(length.to_le_bytes());
            out.extend((!length).to_le_bytes());
            out.extend_from_slice(part);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compress, Compression, FlushCompress};
    use proptest::prelude::*;

    /// Compresses as the peer does: one stream, with the dictionary, flushed after each block.
    struct Peer(Compress);

    impl Peer {
        fn new() -> Self {
            let mut compress = Compress::new(Compression::best(), true);
            assert_eq!(compress.set_dictionary(&DICTIONARY).unwrap(), CHECKSUM);
            Self(compress)
        }

        fn block(&mut self, block: &[u8]) -> Vec<u8> {
            let mut out = Vec::with_capacity(block.len() * 2 + 1000);
            self.0.compress_vec(block, &mut out, FlushCompress::Sync).unwrap();
            out
        }
    }

    fn number_of(value: u32) -> Vec<u8> {
        value.to_be_bytes().to_vec()
    }

    #[test]
    fn blocks_of_a_connection_are_inflated_one_after_the_other() {
        let (mut peer, mut inflater) = (Peer::new(), Inflater::new());
        for port in 0..100 {
            let headers = Headers::new(&[("streamtype", "data"), ("port", &port.to_string())]);
            assert_eq!(inflater.headers(&peer.block(&headers.to_block())), Ok(headers));
        }
    }

    #[test]
    fn a_block_that_is_too_large_or_spoilt_is_an_error() {
        let of = |block: &[u8]| Inflater::new().headers(&Peer::new().block(block));
        let large =
            [number_of(1), number_of(1), b"a".to_vec(), number_of(70_000), vec![b'x'; 70_000]].concat();
        assert_eq!(of(&large), Err(HeaderError::TooLarge));
        assert_eq!(of(&number_of(MAX_HEADERS + 1)), Err(HeaderError::TooLarge));
        assert_eq!(of(&number_of(1)), Err(HeaderError::Length));
        assert_eq!(of(&[number_of(0), vec![1]].concat()), Err(HeaderError::Length));
        assert_eq!(of(&[number_of(1), number_of(u32::MAX)].concat()), Err(HeaderError::Length));
        let not_text = [number_of(1), number_of(1), vec![0xff], number_of(0)].concat();
        assert_eq!(of(&not_text), Err(HeaderError::NotText));
        assert_eq!(Inflater::new().headers(b"not zlib"), Err(HeaderError::Zlib));
        assert_eq!(Inflater::new().headers(&[]), Err(HeaderError::Length));
    }

    #[test]
    fn a_block_with_another_dictionary_or_an_end_is_an_error() {
        let mut other = Compress::new(Compression::best(), true);
        other.set_dictionary(b"another").unwrap();
        let mut out = Vec::with_capacity(100);
        other.compress_vec(&[0; 4], &mut out, FlushCompress::Sync).unwrap();
        assert_eq!(Inflater::new().headers(&out), Err(HeaderError::Zlib));
        let (mut peer, mut out) = (Peer::new(), Vec::with_capacity(100));
        peer.0.compress_vec(&[0; 4], &mut out, FlushCompress::Finish).unwrap();
        assert_eq!(Inflater::new().headers(&out), Err(HeaderError::Zlib));
    }

    #[test]
    fn the_names_of_headers_are_found_in_any_case() {
        assert_eq!(Headers::new(&[("Streamtype", "error")]).get("streamType"), Some("error"));
        assert_eq!(Headers::default().get("port"), None);
    }

    proptest! {
        #[test]
        fn headers_survive_a_round_trip(all in prop::collection::vec(prop::collection::vec((".{0,20}", ".{0,40}"), 0..8), 1..8)) {
            let (mut deflater, mut inflater) = (Deflater::default(), Inflater::new());
            for pairs in all {
                let headers = Headers(pairs);
                prop_assert_eq!(inflater.headers(&deflater.block(&headers)), Ok(headers));
            }
        }

        #[test]
        fn no_bytes_make_the_inflater_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), again in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut inflater = Inflater::new();
            let _ = inflater.headers(&[&[0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2][..], &bytes].concat());
            let _ = inflater.headers(&again);
        }
    }
}
