//! What a program prints, as far as it is kept.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Output beyond this is dropped.
pub(crate) const MAX_OUTPUT: usize = 4 << 20;
/// What is longer than this is cut.
pub(crate) const MAX_LINE: usize = 256;

/// Reads to the end, keeping no more than [`MAX_OUTPUT`]. The rest is read and dropped, so that the program never blocks.
pub(crate) async fn drain(
    pipe: &mut Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
    mut on_chunk: impl FnMut(&[u8]),
) -> io::Result<()> {
    let Some(pipe) = pipe else { return Ok(()) };
    let mut chunk = vec![0; 16 << 10];
    loop {
        let read = pipe.read(&mut chunk).await?;
        if read == 0 {
            return Ok(());
        }
        on_chunk(&chunk[..read]);
        let left = MAX_OUTPUT.saturating_sub(into.len());
        into.extend_from_slice(&chunk[..read.min(left)]);
    }
}

/// Cuts output into lines of no more than [`MAX_LINE`] bytes.
pub(crate) struct Lines<F> {
    line: Vec<u8>,
    on_line: F,
}

impl<F: FnMut(&str)> Lines<F> {
    pub(crate) fn new(on_line: F) -> Self {
        Self { line: Vec::new(), on_line }
    }

    pub(crate) fn push(&mut self, chunk: &[u8]) {
        for &byte in chunk {
            if matches!(byte, b'\n' | b'\r') {
                (self.on_line)(&String::from_utf8_lossy(&self.line));
                self.line.clear();
            } else if self.line.len() < MAX_LINE {
                self.line.push(byte);
            }
        }
    }
}
