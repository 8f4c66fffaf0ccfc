use super::*;
use crate::api::stream::{Gone, websocket};
use proptest::prelude::*;
use tokio::io::DuplexStream;
use tokio_tungstenite::tungstenite::protocol::Role;

const BINARY: Rules = Rules { encoding: Encoding::Binary, half_close: true };

async fn connect(rules: Rules, idle: Duration) -> (WebSocketStream<DuplexStream>, Channels) {
    let (client, server) = tokio::io::duplex(4096);
    let client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
    (client, Channels::new(websocket::open(server).await, rules, &[0, 4], idle))
}

fn binary(bytes: &'static [u8]) -> Message {
    Message::Binary(Bytes::from_static(bytes))
}

async fn next(client: &mut WebSocketStream<DuplexStream>) -> Message {
    client.next().await.unwrap().unwrap()
}

const LONG: Duration = Duration::from_hours(4);

#[tokio::test]
async fn the_first_byte_of_a_message_is_its_channel() {
    let (mut client, mut channels) = connect(BINARY, LONG).await;
    let mut stdin = channels.input(0).unwrap();
    client.send(binary(b"\0hello")).await.unwrap();
    client.send(binary(b"\x09for no one")).await.unwrap();
    client.send(binary(b"")).await.unwrap();
    assert_eq!(stdin.recv().await, Ok(Some(Bytes::from_static(b"hello"))));
    channels.announce(1).await;
    let mut stdout = channels.output(1);
    stdout.write(Bytes::from_static(b"out")).await.unwrap();
    stdout.end().await.unwrap();
    assert_eq!(next(&mut client).await, binary(b"\x01"));
    assert_eq!(next(&mut client).await, binary(b"\x01out"));
    let close = tokio::spawn(channels.close());
    let Message::Close(Some(frame)) = next(&mut client).await else { panic!("a close message") };
    assert_eq!(frame.code, CloseCode::Normal);
    drop(client);
    close.await.unwrap();
}

#[tokio::test]
async fn a_client_of_v5_closes_one_channel_and_an_older_one_cannot() {
    for half_close in [true, false] {
        let (mut client, mut channels) = connect(Rules { half_close, ..BINARY }, LONG).await;
        let mut stdin = channels.input(0).unwrap();
        client.send(binary(b"\xff\0")).await.unwrap();
        client.send(binary(b"\0more")).await.unwrap();
        let expected = (!half_close).then_some(Bytes::from_static(b"more"));
        assert_eq!(stdin.recv().await, Ok(expected), "{half_close}");
    }
}

#[tokio::test]
async fn base64_messages_are_text_with_a_digit() {
    let (mut client, mut channels) =
        connect(Rules { encoding: Encoding::Base64, half_close: false }, LONG).await;
    let mut stdin = channels.input(0).unwrap();
    client.send(Message::Text("0aGVsbG8=".into())).await.unwrap();
    assert_eq!(stdin.recv().await, Ok(Some(Bytes::from_static(b"hello"))));
    channels.output(1).write(Bytes::from_static(b"out")).await.unwrap();
    assert_eq!(next(&mut client).await, Message::Text("1b3V0".into()));
    client.send(Message::Text("0???".into())).await.unwrap();
    assert_eq!(stdin.recv().await, Err(Gone));
    let Message::Close(Some(frame)) = next(&mut client).await else { panic!("a close message") };
    assert_eq!(frame.code, CloseCode::Invalid);
}

#[tokio::test]
async fn pings_are_answered_while_output_waits_for_the_client() {
    let (mut client, channels) = connect(BINARY, LONG).await;
    let mut stdout = channels.output(1);
    let writer = tokio::spawn(async move {
        let _ = stdout.write(Bytes::from(vec![0; 1 << 20])).await;
    });
    client.send(Message::Ping(Bytes::from_static(b"are you there"))).await.unwrap();
    loop {
        if let Message::Pong(bytes) = next(&mut client).await {
            assert_eq!(bytes, Bytes::from_static(b"are you there"));
            break;
        }
    }
    writer.abort();
}

#[tokio::test(start_paused = true)]
async fn a_client_gets_pongs_while_its_input_is_not_taken() {
    let (client, mut channels) = connect(BINARY, LONG).await;
    let stdin = channels.input(0).unwrap();
    let (mut sink, mut source) = client.split();
    let sender = tokio::spawn(async move {
        for _ in 0..100 {
            if sink.send(binary(b"\0more than the queue and the pipe hold")).await.is_err() {
                return;
            }
        }
        std::future::pending::<()>().await;
    });
    assert_eq!(source.next().await.unwrap().unwrap(), Message::Pong(Bytes::new()));
    assert_eq!(stdin.queue.len(), QUEUE);
    sender.abort();
}

#[tokio::test(start_paused = true)]
async fn a_web_socket_without_data_is_closed_after_its_idle_time_out() {
    let (mut client, mut channels) = connect(BINARY, Duration::from_mins(1)).await;
    let mut stdin = channels.input(0).unwrap();
    let reader = tokio::spawn(async move {
        loop {
            if let Message::Close(frame) = next(&mut client).await {
                return frame.unwrap().code;
            }
        }
    });
    assert_eq!(stdin.recv().await, Err(Gone));
    assert_eq!(reader.await.unwrap(), CloseCode::Away);
}

#[tokio::test]
async fn a_client_that_vanishes_ends_its_inputs() {
    let (client, mut channels) = connect(BINARY, LONG).await;
    let mut stdin = channels.input(0).unwrap();
    drop(client);
    assert_eq!(stdin.recv().await, Err(Gone));
    channels.closed().wait().await;
}

#[tokio::test]
async fn a_message_that_is_too_long_ends_the_connection() {
    let (client, mut channels) = connect(BINARY, LONG).await;
    let mut stdin = channels.input(0).unwrap();
    let (mut sink, mut source) = client.split();
    let sender = tokio::spawn(async move { sink.send(Message::Binary(vec![0; (4 << 20) + 1].into())).await });
    assert_eq!(stdin.recv().await, Err(Gone));
    let Message::Close(Some(frame)) = source.next().await.unwrap().unwrap() else {
        panic!("a close message")
    };
    assert_eq!(frame.code, CloseCode::Size);
    sender.abort();
}

#[tokio::test]
async fn a_tunnel_carries_bytes_however_its_messages_are_cut() {
    use crate::api::stream::websocket::tunnel::Tunnel;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (client, server) = tokio::io::duplex(4096);
    let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
    let mut tunnel = Tunnel::new(websocket::open(server).await);
    for part in [b"ab", b"cd"] {
        client.send(Message::Binary(Bytes::from_static(part))).await.unwrap();
    }
    client.send(Message::Ping(Bytes::new())).await.unwrap();
    client.send(binary(b"e")).await.unwrap();
    let mut read = [0; 5];
    tunnel.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"abcde");
    let writer = tokio::spawn(async move {
        tunnel.write_all(&vec![7; 100_000]).await.unwrap();
        tunnel.shutdown().await.unwrap();
        let mut rest = Vec::new();
        tunnel.read_to_end(&mut rest).await.unwrap();
    });
    let mut received = 0;
    loop {
        match next(&mut client).await {
            Message::Binary(bytes) => received += bytes.len(),
            Message::Close(frame) => break assert_eq!(frame.unwrap().code, CloseCode::Normal),
            _ => {}
        }
    }
    assert_eq!(received, 100_000);
    drop(client);
    writer.await.unwrap();
}

proptest! {
    #[test]
    fn messages_survive_a_round_trip_and_no_bytes_panic(channel in 0..200_u8, bytes in prop::collection::vec(any::<u8>(), 0..100), base64: bool) {
        let encoding = if base64 { Encoding::Base64 } else { Encoding::Binary };
        let sent = match message(encoding, channel % 70, &bytes) {
            Message::Binary(bytes) => bytes,
            other => Bytes::from(other.into_text().unwrap()),
        };
        prop_assert_eq!(read(encoding, &sent).unwrap(), Some((channel % 70, Bytes::from(bytes.clone()))));
        let _ = read(encoding, &Bytes::from(bytes));
    }
}

#[test]
fn fuzz_the_channels_of_a_web_socket() {
    use tokio::io::AsyncWriteExt as _;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    crate::fuzz::run(include_str!("../../corpus/websocket.txt"), |bytes| {
        runtime.block_on(async {
            for encoding in [Encoding::Binary, Encoding::Base64] {
                let (mut client, server) = tokio::io::duplex(64 << 10);
                let rules = Rules { encoding, half_close: true };
                let mut channels = Channels::new(websocket::open(server).await, rules, &[0, 4], LONG);
                let mut stdin = channels.input(0).unwrap();
                // The agent may hang up before all is sent.
                let _ = client.write_all(bytes).await;
                drop(client);
                while let Ok(Some(_)) = stdin.recv().await {}
                channels.closed().wait().await;
            }
        });
    });
}
