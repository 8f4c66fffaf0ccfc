use super::*;
use crate::api::stream::Gone;
use bytes::Bytes;
use tokio::io::DuplexStream;

/// A client of a connection that the agent serves.
pub(in crate::api::stream) struct Client {
    io: DuplexStream,
    encoder: Encoder,
    decoder: Decoder,
    input: BytesMut,
}

const LIMITS: Limits = Limits { streams: 8, idle: Duration::from_hours(4), stall: None };

fn connect(limits: Limits) -> (Client, Connection) {
    let (client, server) = Client::connect();
    (client, Connection::new(server, limits))
}

impl Client {
    /// A client, and the agent's end of its connection.
    pub(in crate::api::stream) fn connect() -> (Self, DuplexStream) {
        let (client, server) = tokio::io::duplex(4096);
        let (encoder, decoder) = (Encoder::default(), Decoder::new());
        (Self { io: client, encoder, decoder, input: BytesMut::new() }, server)
    }

    /// Waits until the agent resets a stream.
    pub(in crate::api::stream) async fn until_reset(&mut self, stream: u32) {
        while self.recv().await.expect("a connection") != reset(stream, ResetStatus::CANCEL).unwrap() {}
    }

    async fn send(&mut self, frame: Frame) {
        let mut out = BytesMut::new();
        self.encoder.encode(&frame, &mut out);
        self.io.write_all(&out).await.unwrap();
    }

    pub(in crate::api::stream) async fn open(&mut self, stream: u32, headers: &[(&str, &str)]) {
        let headers = Headers::new(headers);
        let stream = StreamId(stream);
        self.send(Frame::SynStream { stream, priority: 0, fin: false, unidirectional: false, headers }).await;
    }

    async fn data(&mut self, stream: u32, data: &'static [u8], fin: bool) {
        self.send(Frame::Data { stream: StreamId(stream), fin, data: Bytes::from_static(data) }).await;
    }

    /// The next frame; `None` at the end.
    async fn recv(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.decode(&mut self.input).unwrap() {
                return Some(frame);
            }
            if self.io.read_buf(&mut self.input).await.unwrap() == 0 {
                return None;
            }
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as the client reads it")]
fn reply(stream: u32) -> Option<Frame> {
    Some(Frame::SynReply { stream: StreamId(stream), fin: false, headers: Headers::default() })
}

#[expect(clippy::unnecessary_wraps, reason = "as the client reads it")]
fn data(stream: u32, data: &'static [u8], fin: bool) -> Option<Frame> {
    Some(Frame::Data { stream: StreamId(stream), fin, data: Bytes::from_static(data) })
}

#[expect(clippy::unnecessary_wraps, reason = "as the client reads it")]
fn reset(stream: u32, status: ResetStatus) -> Option<Frame> {
    Some(Frame::RstStream { stream: StreamId(stream), status })
}

#[tokio::test]
async fn a_stream_carries_data_both_ways_and_each_side_closes_its_own() {
    let (mut client, mut connection) = connect(LIMITS);
    client.open(1, &[("streamtype", "stdin")]).await;
    let Stream { headers, mut input, mut output } = connection.accept().await.unwrap();
    assert_eq!(headers.get("streamType"), Some("stdin"));
    client.data(1, b"in", false).await;
    client.data(1, b"put", true).await;
    assert_eq!(input.recv().await, Ok(Some(Bytes::from_static(b"in"))));
    assert_eq!(input.recv().await, Ok(Some(Bytes::from_static(b"put"))));
    assert_eq!(input.recv().await, Ok(None));
    output.write(Bytes::from_static(b"out")).await.unwrap();
    output.end().await.unwrap();
    assert_eq!(client.recv().await, reply(1));
    assert_eq!(client.recv().await, data(1, b"out", false));
    assert_eq!(client.recv().await, data(1, b"", true));
    let close = tokio::spawn(connection.close());
    assert_eq!(client.recv().await, Some(Frame::GoAway { last: StreamId(1), status: 0 }));
    assert_eq!(client.recv().await, None);
    drop(client);
    close.await.unwrap();
}

#[tokio::test]
async fn pings_are_answered_while_no_stream_is_read() {
    let (mut client, mut connection) = connect(LIMITS);
    client.open(1, &[]).await;
    let _stream = connection.accept().await.unwrap();
    client.send(Frame::Ping(3)).await;
    client.send(Frame::Ping(4)).await;
    client.send(Frame::Ping(5)).await;
    assert_eq!(client.recv().await, reply(1));
    assert_eq!(client.recv().await, Some(Frame::Ping(3)));
    assert_eq!(client.recv().await, Some(Frame::Ping(5)));
}

#[tokio::test]
async fn a_stream_that_the_client_resets_fails_on_both_sides() {
    let (mut client, mut connection) = connect(LIMITS);
    client.open(1, &[]).await;
    let Stream { mut input, mut output, .. } = connection.accept().await.unwrap();
    client.send(Frame::RstStream { stream: StreamId(1), status: ResetStatus::CANCEL }).await;
    assert_eq!(input.recv().await, Err(Gone));
    assert_eq!(output.write(Bytes::from_static(b"x")).await, Err(Gone));
    drop(output);
    // The connection goes on.
    client.open(3, &[]).await;
    let stream = connection.accept().await.unwrap();
    drop(stream);
    assert_eq!(client.recv().await, reply(1));
    assert_eq!(client.recv().await, reply(3));
    assert_eq!(client.recv().await, reset(3, ResetStatus::CANCEL));
}

#[tokio::test]
async fn a_stream_that_its_handler_drops_is_reset() {
    let (mut client, mut connection) = connect(LIMITS);
    client.open(1, &[]).await;
    drop(connection.accept().await.unwrap());
    assert_eq!(client.recv().await, reply(1));
    assert_eq!(client.recv().await, reset(1, ResetStatus::CANCEL));
}

#[tokio::test]
async fn streams_beyond_the_limit_and_streams_with_a_used_number_are_refused() {
    let (mut client, mut connection) = connect(Limits { streams: 1, ..LIMITS });
    client.open(5, &[]).await;
    let first = connection.accept().await.unwrap();
    client.open(7, &[]).await;
    client.open(5, &[]).await;
    client.open(8, &[]).await;
    client.data(99, b"x", false).await;
    assert_eq!(client.recv().await, reply(5));
    assert_eq!(client.recv().await, reset(7, ResetStatus::REFUSED_STREAM));
    assert_eq!(client.recv().await, reset(5, ResetStatus::PROTOCOL_ERROR));
    assert_eq!(client.recv().await, reset(8, ResetStatus::PROTOCOL_ERROR));
    assert_eq!(client.recv().await, reset(99, ResetStatus::INVALID_STREAM));
    // A stream that is closed on both sides makes place for another.
    client.data(5, b"", true).await;
    first.output.end().await.unwrap();
    assert_eq!(client.recv().await, data(5, b"", true));
    client.open(9, &[]).await;
    assert!(connection.accept().await.is_some());
}

#[tokio::test]
async fn a_handler_that_does_not_read_makes_the_client_wait() {
    const PART: usize = 16 << 10;
    let (mut client, mut connection) = connect(LIMITS);
    client.open(1, &[]).await;
    let Stream { mut input, output: _output, .. } = connection.accept().await.unwrap();
    let sender = tokio::spawn(async move {
        for _ in 0..64 {
            client.data(1, &[7; PART], false).await;
        }
        client.data(1, b"", true).await;
        client
    });
    let mut received = 0;
    while let Some(bytes) = input.recv().await.unwrap() {
        received += bytes.len();
        // The queue, one chunk in the reader's hands, one buffer, and what the pipe holds.
        assert!(input.queue.len() <= QUEUE);
    }
    assert_eq!(received, 64 * PART);
    drop(sender.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_holds_up_others_is_reset_after_a_while() {
    let stall = Some(Duration::from_secs(30));
    let (mut client, mut connection) = connect(Limits { stall, ..LIMITS });
    for stream in [1, 3, 5] {
        client.open(stream, &[]).await;
    }
    let stalled = connection.accept().await.unwrap();
    let _second = connection.accept().await.unwrap();
    let mut third = connection.accept().await.unwrap();
    for _ in 0..QUEUE + 2 {
        client.data(1, b"more than the queue holds", false).await;
    }
    client.data(5, b"waits", false).await;
    assert_eq!(third.input.recv().await, Ok(Some(Bytes::from_static(b"waits"))));
    for stream in [1, 3, 5] {
        assert_eq!(client.recv().await, reply(stream));
    }
    // The agent's own pings come in between.
    let mut next = client.recv().await;
    while let Some(Frame::Ping(_)) = next {
        next = client.recv().await;
    }
    assert_eq!(next, reset(1, ResetStatus::FLOW_CONTROL_ERROR));
    drop(stalled);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_data_is_closed_after_its_idle_time_out() {
    let (mut client, mut connection) = connect(Limits { idle: Duration::from_mins(1), ..LIMITS });
    client.open(1, &[]).await;
    let Stream { mut input, output: _output, .. } = connection.accept().await.unwrap();
    let mut closed = connection.closed();
    let reader = tokio::spawn(async move { while client.recv().await.is_some() {} });
    assert_eq!(input.recv().await, Err(Gone));
    closed.wait().await;
    reader.await.unwrap();
}

#[tokio::test]
async fn a_client_that_vanishes_or_sends_garbage_ends_all_streams() {
    for garbage in [&b""[..], b"GET / HTTP/1.1\r\n\r\n\xff\xff\xff", b"\x80\x01\0\x01\0\0\0\0"] {
        let (mut client, mut connection) = connect(LIMITS);
        client.open(1, &[]).await;
        let Stream { mut input, mut output, .. } = connection.accept().await.unwrap();
        client.io.write_all(garbage).await.unwrap();
        client.io.shutdown().await.unwrap();
        assert_eq!(input.recv().await, Err(Gone));
        connection.closed().wait().await;
        assert_eq!(output.write(Bytes::from_static(b"x")).await, Err(Gone));
        assert!(connection.accept().await.is_none());
    }
}

#[tokio::test]
async fn output_is_taken_only_as_fast_as_the_client_reads_it() {
    let (mut client, mut connection) = connect(LIMITS);
    client.open(1, &[]).await;
    let Stream { mut output, input: _input, .. } = connection.accept().await.unwrap();
    let writer = tokio::spawn(async move {
        for _ in 0..100 {
            output.write(Bytes::from(vec![1; 20_000])).await.unwrap();
        }
        output.end().await.unwrap();
    });
    let mut received = 0;
    loop {
        match client.recv().await.unwrap() {
            Frame::Data { data, fin, .. } => {
                received += data.len();
                if fin {
                    break;
                }
            }
            other => assert_eq!(Some(other), reply(1)),
        }
    }
    assert_eq!(received, 2_000_000);
    writer.await.unwrap();
}

#[test]
fn fuzz_a_spdy_connection() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    crate::fuzz::run(include_str!("../../corpus/spdy.txt"), |bytes| {
        runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(64 << 10);
            let mut connection = Connection::new(server, LIMITS);
            client.write_all(bytes).await.unwrap();
            client.shutdown().await.unwrap();
            while let Some(Stream { mut input, mut output, .. }) = connection.accept().await {
                while let Ok(Some(_)) = input.recv().await {}
                let _ = output.write(Bytes::from_static(b"x")).await;
            }
            connection.closed().wait().await;
        });
    });
}
