//! The size of the client's terminal, as it changes.

use serde::Deserialize;

use crate::api::stream::Input;

/// How much of an object that is not complete is kept.
const MAX_OBJECT: usize = 4 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct TerminalSize {
    #[serde(rename = "Width", alias = "width")]
    pub(crate) columns: u16,
    #[serde(rename = "Height", alias = "height")]
    pub(crate) rows: u16,
}

/// The sizes that a client sends: objects of JSON one after the other, cut anywhere.
#[derive(Debug)]
pub(crate) struct Resizes {
    input: Input,
    objects: Objects,
}

#[derive(Debug, Default)]
struct Objects(Vec<u8>);

impl Resizes {
    pub(super) fn new(input: Input) -> Self {
        Self { input, objects: Objects::default() }
    }

    /// The next size; `None` when there will be no other.
    pub(crate) async fn next(&mut self) -> Option<TerminalSize> {
        loop {
            if let Some(size) = self.objects.take() {
                return Some(size);
            }
            let bytes = self.input.recv().await.ok()??;
            self.objects.add(&bytes);
        }
    }
}

impl Objects {
    fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next size that is complete. What is no size is dropped.
    fn take(&mut self) -> Option<TerminalSize> {
        let mut objects = serde_json::Deserializer::from_slice(&self.0).into_iter::<TerminalSize>();
        match objects.next() {
            Some(Ok(size)) => {
                let end = objects.byte_offset();
                self.0.drain(..end);
                Some(size)
            }
            Some(Err(error)) if error.is_eof() && self.0.len() <= MAX_OBJECT => None,
            Some(Err(_)) | None => {
                self.0.clear();
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(parts: &[&[u8]]) -> Vec<(u16, u16)> {
        let (mut objects, mut found) = (Objects::default(), Vec::new());
        for part in parts {
            objects.add(part);
            while let Some(size) = objects.take() {
                found.push((size.columns, size.rows));
            }
            assert!(objects.0.len() <= MAX_OBJECT);
        }
        found
    }

    #[test]
    fn sizes_are_found_wherever_the_messages_are_cut() {
        assert_eq!(sizes(&[b"{\"Width\":80,\"Height\":24}\n"]), [(80, 24)]);
        assert_eq!(
            sizes(&[b"{\"Width\":8", b"0,\"Height\":24}{\"width\":1,", b"\"height\":2}"]),
            [(80, 24), (1, 2)]
        );
        assert_eq!(sizes(&[b"what", b"{\"Width\":80,\"Height\":24}"]), [(80, 24)]);
        assert_eq!(sizes(&[b"{\"Width\":-1,\"Height\":24}", b"{\"Width\":3,\"Height\":4}"]), [(3, 4)]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic_or_grow(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 0..20)) {
            sizes(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
}
