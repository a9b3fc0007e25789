use super::*;
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from)
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        Just(Reply::Hello(Hello {
            protocol: PROTOCOL,
            relay_address: Some("127.0.0.1:7000".into())
        })),
        Just(Reply::Started),
        bytes().prop_map(Reply::Stdout),
        bytes().prop_map(Reply::Stderr),
        (any::<i32>(), any::<bool>()).prop_map(|(code, timed_out)| Reply::Exited(Exited {
            code,
            signal: None,
            timed_out
        })),
        Just(Reply::Acknowledged),
        bytes().prop_map(Reply::Content),
        ".*".prop_map(|path| Reply::Files(vec![FoundFile { path, size_bytes: 7 }])),
        (any::<bool>(), any::<bool>()).prop_map(|(found, truncated)| Reply::Done(Done { found, truncated })),
        ".*".prop_map(|message| Reply::Failed(Failure {
            kind: FailureKind::Other,
            message,
            errno: Some(5),
            size_bytes: 0,
        })),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (".*", any::<Option<u64>>()).prop_map(|(argument, timeout_ms)| Request::Start(Start {
            argv: vec!["program".into(), argument],
            env: BTreeMap::from([("PATH".into(), "/usr/bin".into())]),
            cwd: "/home/user".into(),
            timeout_ms,
        })),
        bytes().prop_map(Request::Input),
        Just(Request::Kill),
        (".*", any::<u32>()).prop_map(|(path, mode)| Request::Write(Write { path, mode })),
        bytes().prop_map(Request::Content),
        (".*", any::<u64>()).prop_map(|(path, limit_bytes)| Request::Read(Read { path, limit_bytes })),
        ".*".prop_map(|path| Request::List(List {
            path,
            max_depth: 3,
            max_files: 9
        })),
        ".*".prop_map(|path| Request::Exists(Exists { path })),
    ]
}

fn decode_in_pieces<T: Message>(bytes: &[u8], piece_bytes: usize) -> Vec<Frame<T>> {
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece_bytes) {
        buffer.extend_from_slice(piece);
        while let Some(frame) = Frame::decode(&mut buffer).unwrap() {
            frames.push(frame);
        }
    }
    assert!(buffer.is_empty());
    frames
}

fn encode_all<T: Message>(frames: &[Frame<T>]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.encode().unwrap()).collect()
}

proptest! {
    #[test]
    fn any_split_of_the_bytes_gives_the_same_replies(
        bodies in proptest::collection::vec((any::<u64>(), reply()), 0..8),
        piece_bytes in 1usize..64,
    ) {
        let frames: Vec<_> = bodies.into_iter().map(|(id, body)| Frame { id, body }).collect();
        prop_assert_eq!(decode_in_pieces::<Reply>(&encode_all(&frames), piece_bytes), frames);
    }

    #[test]
    fn any_split_of_the_bytes_gives_the_same_requests(
        bodies in proptest::collection::vec((any::<u64>(), request()), 0..8),
        piece_bytes in 1usize..64,
    ) {
        let frames: Vec<_> = bodies.into_iter().map(|(id, body)| Frame { id, body }).collect();
        prop_assert_eq!(decode_in_pieces::<Request>(&encode_all(&frames), piece_bytes), frames);
    }

    #[test]
    fn bytes_from_inside_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut buffer = BytesMut::from(bytes.as_slice());
        while let Ok(Some(_)) = Frame::<Reply>::decode(&mut buffer) {}
    }
}

#[test]
fn a_length_over_the_limit_is_refused_before_its_bytes_come() {
    let mut buffer = BytesMut::from(&u32::MAX.to_le_bytes()[..]);
    assert!(matches!(
        Frame::<Reply>::decode(&mut buffer),
        Err(FrameError::TooLong { .. })
    ));
}

#[test]
fn a_length_below_the_header_is_refused() {
    let mut buffer = BytesMut::from(&3u32.to_le_bytes()[..]);
    assert!(matches!(
        Frame::<Reply>::decode(&mut buffer),
        Err(FrameError::TooShort { length: 3 })
    ));
}

#[test]
fn a_request_is_not_taken_for_a_reply() {
    let bytes = Frame {
        id: 1,
        body: Request::Kill,
    }
    .encode()
    .unwrap();
    let mut buffer = BytesMut::from(&bytes[..]);
    assert!(matches!(
        Frame::<Reply>::decode(&mut buffer),
        Err(FrameError::UnknownKind { kind: 3 })
    ));
}

#[test]
fn a_body_that_is_not_json_is_refused() {
    let mut out = BytesMut::new();
    out.put_u32_le(10);
    out.put_u8(69);
    out.put_u64_le(1);
    out.put_u8(b'{');
    assert!(matches!(
        Frame::<Reply>::decode(&mut out),
        Err(FrameError::Malformed { kind: 69, .. })
    ));
}

#[test]
fn a_frame_that_the_other_side_would_refuse_is_not_made() {
    let frame = Frame {
        id: 1,
        body: Request::Content(Bytes::from(vec![0; MAX_FRAME_BYTES])),
    };
    assert!(matches!(frame.encode(), Err(FrameError::TooLong { .. })));
}
