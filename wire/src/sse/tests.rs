use super::*;
use proptest::prelude::*;

/// The events of a stream in these chunks: raw bytes and data.
fn split<'c>(
    chunks: impl IntoIterator<Item = &'c [u8]>,
    limit_bytes: usize,
) -> Vec<(String, Option<String>)> {
    let mut splitter = Splitter::new(limit_bytes);
    let mut found = Vec::new();
    let mut note = |event: &Event<'_>| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        found.push((text(event.raw), event.data().map(|data| text(&data))));
    };
    for chunk in chunks {
        let mut events = splitter.push(chunk);
        while let Some(event) = events.next().unwrap() {
            note(&event);
        }
    }
    if let Some(event) = splitter.rest() {
        note(&event);
    }
    found
}

fn whole(text: &str) -> Vec<(String, Option<String>)> {
    split([text.as_bytes()], usize::MAX)
}

fn data(text: &str) -> Vec<Option<String>> {
    whole(text).into_iter().map(|(_, data)| data).collect()
}

fn some(data: &str) -> Option<String> {
    Some(data.into())
}

#[test]
fn lines_end_with_lf_crlf_or_cr() {
    for end in ["\n", "\r\n", "\r"] {
        let text = format!("data: a{end}{end}data:b{end}{end}");
        assert_eq!(data(&text), [some("a"), some("b")], "{end:?}");
        let raw: String = whole(&text).into_iter().map(|(raw, _)| raw).collect();
        assert_eq!(raw, text);
    }
}

#[test]
fn only_one_space_after_the_colon_goes() {
    assert_eq!(data("data:  a \n\n"), [some(" a ")]);
    assert_eq!(data("data\n\ndata:\n\n"), [some(""), some("")]);
    assert_eq!(data("database: x\n\n"), [None]);
}

#[test]
fn several_data_lines_are_joined_and_other_fields_passed_over() {
    assert_eq!(data("event: x\ndata: a\nid: 1\ndata: b\n: c\n\n"), [some("a\nb")]);
}

#[test]
fn comments_are_events_without_data() {
    assert_eq!(whole(": ping\n\n"), [(": ping\n\n".into(), None)]);
}

#[test]
fn an_event_of_crlf_lines_waits_for_its_last_byte() {
    let mut splitter = Splitter::new(100);
    assert_eq!(splitter.push(b"data: a\r\n\r").next(), Ok(None));
    let mut events = splitter.push(b"\ndata");
    assert_eq!(events.next().unwrap().unwrap().raw, b"data: a\r\n\r\n");
    assert_eq!(events.next(), Ok(None));
    assert_eq!(splitter.rest().unwrap().raw, b"data");
}

#[test]
fn an_event_of_cr_lines_does_not_wait() {
    let mut splitter = Splitter::new(100);
    assert_eq!(
        splitter.push(b"data: a\r\r").next().unwrap().unwrap().raw,
        b"data: a\r\r"
    );
}

#[test]
fn an_event_over_the_limit_is_an_error_and_one_at_the_limit_is_not() {
    let event = b"data: 12345\n\n";
    for chunk_bytes in [1, 5, event.len()] {
        for (limit_bytes, passes) in [(event.len(), true), (event.len() - 1, false)] {
            let mut splitter = Splitter::new(limit_bytes);
            let mut results = event
                .chunks(chunk_bytes)
                .map(|chunk| splitter.push(chunk).next().map(|_| ()));
            assert_eq!(
                results.all(|result| result.is_ok()),
                passes,
                "{chunk_bytes} {limit_bytes}"
            );
        }
    }
}

#[test]
fn the_name_of_an_event_is_its_last_event_field() {
    let mut splitter = Splitter::new(100);
    let mut events = splitter.push(b"event: a\nevent:b\ndata: x\n\n");
    assert_eq!(events.next().unwrap().unwrap().name(), Some(&b"b"[..]));
}

#[test]
fn other_data_takes_the_place_of_the_events_own() {
    let written = |event: &[u8], data: &str| {
        let mut out = BytesMut::new();
        let mut splitter = Splitter::new(100);
        splitter
            .push(event)
            .next()
            .unwrap()
            .unwrap()
            .write_with(data.as_bytes(), &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    };
    assert_eq!(
        written(b"id: 1\r\ndata: a\r\n\r\n", "bcd"),
        "id: 1\r\ndata: bcd\r\n\r\n"
    );
    assert_eq!(written(b"id: 1\ndata: a\ndata: b\n\n", "c"), "id: 1\ndata: c\n\n");
    assert_eq!(written(b"data: a\n\n", "b\nc"), "data: b\ndata: c\n\n");
}

proptest! {
    #[test]
    fn any_split_gives_the_same_events(
        text in "(data: |data:|event: |:|id|[a-c]|\r|\n|\r\n|\n\n|é){0,60}",
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let bytes = text.as_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let expected = whole(&text);
        prop_assert_eq!(&split(cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]), usize::MAX), &expected);
        prop_assert_eq!(&split(bytes.chunks(1), usize::MAX), &expected);
        let raw: String = expected.into_iter().map(|(raw, _)| raw).collect();
        prop_assert_eq!(raw, text, "no byte is lost");
    }
}
