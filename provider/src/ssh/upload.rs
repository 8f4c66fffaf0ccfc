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

/// Reads an input, and keeps why it could not be read: the copy itself does not tell that from a connection that was lost.
pub(super) struct Noted<R> {
    input: R,
    failure: Option<io::Error>,
}

impl<R> Noted<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, failure: None }
    }

    /// Why the input could not be read.
    pub(super) fn failure(self) -> Option<io::Error> {
        self.failure
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Noted<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.input).poll_read(context, buffer) {
            Poll::Ready(Err(error)) => {
                let kind = error.kind();
                self.failure = Some(error);
                Poll::Ready(Err(kind.into()))
            }
            read => read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    struct Unreadable;

    impl AsyncRead for Unreadable {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::Error::other("the disk is gone")))
        }
    }

    #[tokio::test]
    async fn an_input_that_cannot_be_read_says_why() {
        let mut noted = Noted::new(Unreadable);
        assert!(tokio::io::copy(&mut noted, &mut tokio::io::sink()).await.is_err());
        assert_eq!(noted.failure().unwrap().to_string(), "the disk is gone");
        let mut noted = Noted::new(&b"readable"[..]);
        tokio::io::copy(&mut noted, &mut tokio::io::sink()).await.unwrap();
        assert!(noted.failure().is_none());
    }

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
