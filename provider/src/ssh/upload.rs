//! How far the copy of a file to a Mac has come.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

/// How far a copy has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Upload<'a> {
    /// The file's name on this machine.
    pub(crate) name: &'a str,
    /// How many bytes the Mac was given so far.
    pub(crate) sent: u64,
    /// How many bytes the file has.
    pub(crate) size: u64,
}

/// Is told of every piece of a file that goes to a Mac.
pub(crate) type OnUpload = Box<dyn Fn(Upload<'_>) + Send + Sync>;

/// Reads a file, and tells of every piece.
pub(super) struct Counted<'a, R> {
    file: R,
    upload: Upload<'a>,
    on_upload: Option<&'a OnUpload>,
}

impl<'a, R> Counted<'a, R> {
    pub(super) fn new(file: R, name: &'a str, size: u64, on_upload: Option<&'a OnUpload>) -> Self {
        Self { file, upload: Upload { name, sent: 0, size }, on_upload }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Counted<'_, R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.file).poll_read(context, buffer);
        let count = buffer.filled().len() - before;
        if count > 0 {
            self.upload.sent += count as u64;
            if let Some(on_upload) = self.on_upload {
                on_upload(self.upload);
            }
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[tokio::test]
    async fn every_piece_is_told_and_the_last_one_is_the_whole() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&told);
        let on_upload: OnUpload = Box::new(move |upload| into.lock().unwrap().push(upload.sent));
        let contents = vec![7; 40_000];
        let mut counted = Counted::new(contents.as_slice(), "agent", 40_000, Some(&on_upload));
        let mut copied = Vec::new();
        tokio::io::copy(&mut counted, &mut copied).await.unwrap();
        assert_eq!(copied, contents);
        let told = told.lock().unwrap();
        assert!(told.len() > 1 && told.is_sorted(), "{told:?}");
        assert_eq!(told.last(), Some(&40_000));
    }
}
