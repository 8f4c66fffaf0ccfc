//! How many connections the kubelet API has at once.
//!
//! A connection is a newcomer until one of its requests is authorized. There are few places for newcomers, and the next one gets the place
//! of the oldest: a client that opens connections and says nothing, or too slowly, keeps out no other client.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Sleep, sleep};
use tracing::debug;

/// Connections at once on which no request was authorized yet.
const NEWCOMERS: usize = 64;
/// Connections at once on which one was, with the streams that were made of them.
const ADMITTED: usize = 256;

/// Connections to guests at once, for all clients. Each takes a file descriptor, and the process has 10,240 on macOS.
const FORWARDED: usize = 1024;

/// A peer that has vanished is noticed after about two minutes.
const KEEP_ALIVE: Duration = Duration::from_mins(1);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_ALIVE_RETRIES: u32 = 4;
/// How long a client may leave an answer unread. A person may look at a page of a log, or stop a terminal, for as long as a kubelet lets them.
const STALL: Duration = Duration::from_mins(5);
const LONG_STALL: Duration = Duration::from_hours(4);

/// All connections. Clones share them.
#[derive(Debug, Clone)]
pub(in crate::api) struct Connections(Arc<Places>);

#[derive(Debug)]
struct Places {
    /// The oldest first.
    newcomers: Mutex<VecDeque<(u64, Weak<Place>)>>,
    admitted: Arc<Semaphore>,
    next: AtomicU64,
}

/// A connection's place. It is free when the last clone is dropped.
#[derive(Debug, Clone)]
pub(in crate::api) struct Connection(Arc<Place>);

#[derive(Debug)]
struct Place {
    number: u64,
    places: Arc<Places>,
    task: OnceLock<AbortHandle>,
    permit: OnceLock<OwnedSemaphorePermit>,
    may_pause: AtomicBool,
}

impl Connections {
    pub(in crate::api) fn new() -> Self {
        let admitted = Arc::new(Semaphore::new(ADMITTED));
        Self(Arc::new(Places { newcomers: Mutex::default(), admitted, next: AtomicU64::new(0) }))
    }

    /// A place for a newcomer; the oldest newcomer makes room for it.
    pub(in crate::api) fn enter(&self) -> Connection {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (task, permit) = (OnceLock::new(), OnceLock::new());
        let places = self.0.clone();
        let place = Arc::new(Place { number, places, task, permit, may_pause: AtomicBool::new(false) });
        let oldest = {
            let mut newcomers = self.0.newcomers();
            newcomers.push_back((number, Arc::downgrade(&place)));
            if newcomers.len() > NEWCOMERS { newcomers.pop_front() } else { None }
        };
        if let Some(place) = oldest.and_then(|(_, place)| place.upgrade())
            && let Some(task) = place.task.get()
        {
            task.abort();
        }
        Connection(place)
    }
}

impl Places {
    fn newcomers(&self) -> MutexGuard<'_, VecDeque<(u64, Weak<Place>)>> {
        self.newcomers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_no_newcomer(&self, number: u64) {
        self.newcomers().retain(|(one, _)| *one != number);
    }
}

impl Connection {
    /// The task that serves the connection, to end a newcomer with.
    pub(in crate::api) fn can_be_ended_by(&self, task: AbortHandle) {
        let _ = self.0.task.set(task);
    }

    /// Admits the connection; `false` when too many are admitted already.
    pub(in crate::api) fn admit(&self) -> bool {
        let Place { number, places, permit, .. } = &*self.0;
        if permit.get().is_some() {
            return true;
        }
        let Ok(free) = places.admitted.clone().try_acquire_owned() else { return false };
        let _ = permit.set(free);
        places.is_no_newcomer(*number);
        true
    }
}

impl Connection {
    /// Whether a person may be reading the answer, which is a log or a stream.
    pub(in crate::api) fn set_may_pause(&self, may_pause: bool) {
        self.0.may_pause.store(may_pause, Ordering::Relaxed);
    }

    fn stall(&self) -> Duration {
        if self.0.may_pause.load(Ordering::Relaxed) { LONG_STALL } else { STALL }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.permit.get().is_none() {
            self.places.is_no_newcomer(self.number);
        }
    }
}

/// Places for connections to guests that clients forward. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct ForwardPlaces(Arc<Semaphore>);

impl ForwardPlaces {
    pub(in crate::api) const REFUSAL: &str = "the Node forwards 1024 connections already; try again later";

    /// A place until it is dropped; `None` when all are taken.
    pub(in crate::api) fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_owned().ok()
    }
}

impl Default for ForwardPlaces {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(FORWARDED)))
    }
}

/// Sends at once what is written, and finds out when the peer has vanished.
pub(in crate::api) fn watch_peer(stream: &TcpStream) {
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEP_ALIVE)
        .with_interval(KEEP_ALIVE_INTERVAL)
        .with_retries(KEEP_ALIVE_RETRIES);
    let set = SockRef::from(stream).set_tcp_keepalive(&keep_alive).and_then(|()| stream.set_nodelay(true));
    if let Err(error) = set {
        debug!(%error, "a connection cannot be set up");
    }
}

/// A stream that holds its connection's place for as long as it exists, whichever task has it. It fails when the client leaves what was
/// written unread for too long: the place is for clients that read.
#[derive(Debug)]
pub(in crate::api) struct Counted<S> {
    stream: S,
    connection: Connection,
    /// When the client has not read for too long; absent while it reads.
    overdue: Option<Pin<Box<Sleep>>>,
}

impl<S> Counted<S> {
    pub(in crate::api) fn new(stream: S, connection: Connection) -> Self {
        Self { stream, connection, overdue: None }
    }

    /// What becomes of a write for which the stream has said this.
    fn in_time<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.overdue = None;
            return written;
        }
        let stall = self.connection.stall();
        let overdue = self.overdue.get_or_insert_with(|| Box::pin(sleep(stall)));
        overdue.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(context, written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(connections: &Connections) -> (Connection, tokio::task::JoinHandle<()>) {
        let connection = connections.enter();
        let task = tokio::spawn(std::future::pending());
        connection.can_be_ended_by(task.abort_handle());
        (connection, task)
    }

    #[tokio::test]
    async fn the_oldest_newcomer_makes_room_and_an_admitted_connection_stays() {
        let connections = Connections::new();
        let (admitted, client) = idle(&connections);
        assert!(admitted.admit() && admitted.admit());
        let mut newcomers: Vec<_> = (0..NEWCOMERS).map(|_| idle(&connections)).collect();
        let _last = idle(&connections);
        let (_, oldest) = newcomers.remove(0);
        assert!(oldest.await.unwrap_err().is_cancelled());
        assert!(!client.is_finished() && newcomers.iter().all(|(_, task)| !task.is_finished()));
        drop(newcomers.pop());
        let _another = idle(&connections);
        assert!(newcomers.iter().all(|(_, task)| !task.is_finished()), "there was a free place");
    }

    #[tokio::test]
    async fn a_place_is_free_when_the_stream_is_dropped() {
        let connections = Connections::new();
        let mut streams: Vec<_> = (0..ADMITTED)
            .map(|_| {
                let connection = connections.enter();
                assert!(connection.admit());
                Counted::new(tokio::io::empty(), connection)
            })
            .collect();
        assert!(!connections.enter().admit());
        assert_eq!(connections.0.newcomers().len(), 0);
        streams.pop();
        assert!(connections.enter().admit());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_loses_its_connection_and_one_that_reads_slowly_keeps_it() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        use tokio::time::Instant;
        let connections = Connections::new();
        for (may_pause, limit) in [(false, STALL), (true, LONG_STALL)] {
            let connection = connections.enter();
            connection.set_may_pause(may_pause);
            let (mut client, server) = tokio::io::duplex(1);
            let mut stream = Counted::new(server, connection);
            let slow = tokio::spawn(async move {
                for _ in 0..10 {
                    sleep(limit * 9 / 10).await;
                    client.read_u8().await.unwrap();
                }
                client
            });
            stream.write_all(&[0; 10]).await.unwrap();
            let _client = slow.await.unwrap();
            let begin = Instant::now();
            let error = stream.write_all(&[0; 10]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!((limit..limit * 2).contains(&begin.elapsed()), "{may_pause}");
        }
    }
}
