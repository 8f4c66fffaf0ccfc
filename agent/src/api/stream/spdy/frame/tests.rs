use super::*;
use proptest::prelude::*;

fn decode_all(decoder: &mut Decoder, input: &mut BytesMut) -> Result<Vec<Frame>, FrameError> {
    let mut frames = Vec::new();
    while let Some(frame) = decoder.decode(input)? {
        frames.push(frame);
    }
    Ok(frames)
}

/// Joins the pieces of data, which depend on how the bytes arrive.
fn joined(frames: Vec<Frame>) -> Vec<Frame> {
    let mut all: Vec<Frame> = Vec::new();
    for frame in frames {
        if let Frame::Data { stream, fin, data } = &frame
            && let Some(Frame::Data { stream: before, fin: ended, data: known }) = all.last_mut()
            && (stream, false) == (&*before, *ended)
        {
            *known = [&known[..], data].concat().into();
            *ended = *fin;
            continue;
        }
        all.push(frame);
    }
    all
}

fn encoded(frames: &[Frame]) -> BytesMut {
    let (mut encoder, mut out) = (Encoder::default(), BytesMut::new());
    for frame in frames {
        encoder.encode(frame, &mut out);
    }
    out
}

fn frame() -> impl Strategy<Value = Frame> {
    let stream = || (0..0x8000_0000_u32).prop_map(StreamId);
    let headers = || {
        prop::collection::vec(("[a-z]{1,9}", ".{0,20}"), 0..4).prop_map(|pairs| {
            Headers::new(
                &pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect::<Vec<_>>(),
            )
        })
    };
    prop_oneof![
        (stream(), 0..8_u8, any::<bool>(), any::<bool>(), headers()).prop_map(
            |(stream, priority, fin, unidirectional, headers)| Frame::SynStream {
                stream,
                priority,
                fin,
                unidirectional,
                headers
            }
        ),
        (stream(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| Frame::SynReply {
            stream,
            fin,
            headers
        }),
        (stream(), any::<u32>())
            .prop_map(|(stream, status)| Frame::RstStream { stream, status: ResetStatus(status) }),
        Just(Frame::Settings),
        any::<u32>().prop_map(Frame::Ping),
        (stream(), any::<u32>()).prop_map(|(last, status)| Frame::GoAway { last, status }),
        (stream(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| Frame::Headers {
            stream,
            fin,
            headers
        }),
        (stream(), 0..0x8000_0000_u32).prop_map(|(stream, delta)| Frame::WindowUpdate { stream, delta }),
        (stream(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..40_000))
            .prop_map(|(stream, fin, data)| Frame::Data { stream, fin, data: data.into() }),
    ]
}

#[test]
fn a_stream_that_begins_has_the_bytes_of_the_specification() {
    let begin = Frame::SynStream {
        stream: StreamId(1),
        priority: 3,
        fin: true,
        unidirectional: false,
        headers: Headers::default(),
    };
    let bytes = encoded(std::slice::from_ref(&begin));
    assert_eq!(&bytes[..8], [0x80, 3, 0, 1, 1, 0, 0, 10 + 6 + 9 + 5]);
    assert_eq!(&bytes[8..18], [0, 0, 0, 1, 0, 0, 0, 0, 0x60, 0]);
    assert_eq!(decode_all(&mut Decoder::new(), &mut bytes.clone()), Ok(vec![begin]));
    let data = Frame::Data { stream: StreamId(5), fin: true, data: Bytes::from_static(b"ab") };
    assert_eq!(&encoded(&[data])[..], [0, 0, 0, 5, 1, 0, 0, 2, b'a', b'b']);
}

#[test]
fn a_large_data_frame_arrives_in_pieces_and_only_the_last_one_ends_the_stream() {
    let mut input = BytesMut::from(&[0, 0, 0, 1, 1, 1, 0, 0][..]);
    input.extend(std::iter::repeat_n(7, 0x1_0000));
    let frames = decode_all(&mut Decoder::new(), &mut input).unwrap();
    let ends: Vec<bool> = frames.iter().map(|frame| matches!(frame, Frame::Data { fin: true, .. })).collect();
    assert_eq!(ends, [false, false, false, true]);
}

#[test]
fn unknown_control_frames_are_skipped_and_wrong_ones_are_errors() {
    let of = |bytes: &[u8]| decode_all(&mut Decoder::new(), &mut BytesMut::from(bytes));
    let skipped = [0x80, 3, 0, 10, 0, 0, 0, 2, 9, 9, 0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 7];
    assert_eq!(of(&skipped), Ok(vec![Frame::Ping(7)]));
    assert_eq!(of(&[0x80, 2, 0, 6, 0, 0, 0, 4]), Err(FrameError::Version(2)));
    assert_eq!(of(b"\x80\x03\0\x01\0\xff\xff\xff"), Err(FrameError::Length { kind: 1, length: 0xff_ffff }));
    assert_eq!(of(b"\x80\x03\0\x01\0\0\0\x01x"), Err(FrameError::Length { kind: 1, length: 1 }));
    assert_eq!(of(b"\x80\x03\0\x06\0\0\0\x05abcde"), Err(FrameError::Length { kind: 6, length: 5 }));
    let settings = b"\x80\x03\0\x04\0\0\0\x0c\0\0\0\x01\0\0\0\x04\0\0\x10\0";
    assert_eq!(of(settings), Ok(vec![Frame::Settings]));
    assert!(of(b"\x80\x03\0\x04\0\0\0\x04\xff\xff\xff\xff").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn frames_survive_a_round_trip(frames in prop::collection::vec(frame(), 0..12)) {
        let mut bytes = encoded(&frames);
        prop_assert_eq!(joined(decode_all(&mut Decoder::new(), &mut bytes).unwrap()), joined(frames));
        prop_assert!(bytes.is_empty());
    }

    #[test]
    fn bytes_that_arrive_one_by_one_make_the_same_frames(frames in prop::collection::vec(frame(), 0..5), cut in 0..200_usize) {
        let bytes = encoded(&frames);
        let (mut decoder, mut input, mut found) = (Decoder::new(), BytesMut::new(), Vec::new());
        // A frame that is cut off waits for the rest.
        for &byte in &bytes[..bytes.len().saturating_sub(cut)] {
            input.extend([byte]);
            found.extend(decode_all(&mut decoder, &mut input).unwrap());
        }
        let mut whole = BytesMut::from(&bytes[..bytes.len().saturating_sub(cut)]);
        prop_assert_eq!(joined(found), joined(decode_all(&mut Decoder::new(), &mut whole).unwrap()));
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0..12_u8, flags: u8) {
        let mut input = BytesMut::from(&[0x80, 3, 0, kind, flags, 0, 0, 100][..]);
        input.extend_from_slice(&bytes);
        let before = input.len();
        let mut decoder = Decoder::new();
        let _ = decode_all(&mut decoder, &mut input);
        prop_assert!(input.len() <= before);
    }
}

/// Bytes that arrive at once and bytes that arrive in parts make the same frames, or the same error, and no memory is held for them.
#[test]
fn fuzz_the_spdy_decoder() {
    crate::fuzz::run(include_str!("../../corpus/spdy.txt"), |bytes| {
        let mut whole = BytesMut::from(bytes);
        let expected = decode_until_error(&mut Decoder::new(), &mut whole);
        let (mut decoder, mut input, mut found) = (Decoder::new(), BytesMut::new(), (Vec::new(), None));
        for part in bytes.chunks(3) {
            input.extend_from_slice(part);
            let (frames, error) = decode_until_error(&mut decoder, &mut input);
            found.0.extend(frames);
            found.1 = error;
            if error.is_some() {
                break;
            }
        }
        assert_eq!((joined(found.0), found.1), (joined(expected.0), expected.1));
        assert!(input.len() <= MAX_CONTROL + HEADER);
    });
}

fn decode_until_error(decoder: &mut Decoder, input: &mut BytesMut) -> (Vec<Frame>, Option<FrameError>) {
    let mut frames = Vec::new();
    loop {
        match decoder.decode(input) {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}
