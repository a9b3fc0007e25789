use super::*;

#[test]
fn messages_and_tools_that_repeat_are_said_once() {
    let (_, recorded) = build(vec![
        call(0, &[user("a")]),
        call(1, &[user("a"), assistant("r", None), user("a")]),
    ]);
    assert_eq!(recorded[0].contents.len(), 3, "a message, the tools, the rest");
    assert_eq!(recorded[1].contents.len(), 1, "the reply, as a message");
    let messages = &recorded[1].record.request.messages;
    assert_eq!(
        (messages.base, messages.shared, messages.tail.len()),
        (Some(0), 1, 2)
    );
}

#[test]
fn bodies_come_back_byte_for_byte_however_they_were_written() {
    let bodies: &[&[u8]] = &[
        b"",
        b"no json",
        b"[1,2]",
        b"{}",
        b"\xff\xfe{\"messages\":[1]}",
        br#"{"messages":null,"tools":null}"#,
        br#"{"messages":[]}"#,
        br#"{"messages":[ ] , "tools":[]}"#,
        br#"{"messages":"text","tools":{"a":1}}"#,
        br#"{"model":"m","messages":[{"role":"user","content":"a, [b] {c} \" null"}],"tools":[{"x":[1, 2]}],"n":1}"#,
        br#"{"tools": [{"a": 1}, {"b": 2}], "messages": [{"a": 1}, {"b": 2}, {"c": 3}], "x": null}"#,
        b"{\n  \"messages\": [\n    {\"a\": 1},\n    {\"b\": 2}\n  ],\n  \"x\": 1\n}\n",
        br#"{"messages":[{"a":1},{"b":2}, {"c":3}]}"#,
        br#"{"messages":[{"a":1}],"messages":[{"b":2}],"tools":[1],"tools":[2]}"#,
        br#"{"mess\u0061ges":[{"a":1},{"a":1}],"x":1e400,"y":1.0e-2}"#,
        br#"{"messages":[{"a":NaN}]}"#,
        "{\"messages\":[{\"c\":\"h\u{e9}llo \u{1f389}\"}],\"\u{e9}\":1}".as_bytes(),
    ];
    let mut builder = TrajectoryBuilder::new();
    let mut recorded = Vec::new();
    for (index, body) in (0_u32..).zip(bodies) {
        let mut made = call(index, &[]).call;
        made.request = Bytes::copy_from_slice(body);
        recorded.push(builder.push(made));
    }
    for (which, body) in bodies.iter().enumerate() {
        assert_eq!(
            assembled(&builder, &recorded, which),
            *body,
            "{}",
            String::from_utf8_lossy(body)
        );
    }
    assert_eq!(
        recorded[14].record.request.messages.length(),
        2,
        "a name with an escape is that name"
    );
    assert_eq!(
        recorded[12].record.request.messages.length(),
        0,
        "uneven gaps are kept in the rest"
    );
}

fn json_text() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]{1,2}", inner, 0..3)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    });
    let list = || prop::collection::vec(value.clone(), 0..4);
    (list(), prop::option::of(list()), value.clone(), 0..3_u8).prop_map(|(messages, tools, rest, style)| {
        let body = json!({"before": rest, "messages": messages, "tools": tools, "after": rest});
        match style {
            0 => body.to_string(),
            1 => serde_json::to_string_pretty(&body).unwrap_or_default(),
            _ => body.to_string().replace(',', ", "),
        }
    })
}

proptest! {
    #[test]
    fn any_body_comes_back_byte_for_byte(bodies in prop::collection::vec(json_text(), 1..6)) {
        let mut builder = TrajectoryBuilder::new();
        let mut recorded = Vec::new();
        for (index, body) in (0_u32..).zip(&bodies) {
            let mut made = call(index, &[]).call;
            made.request = Bytes::from(body.clone());
            recorded.push(builder.push(made));
        }
        for (which, body) in bodies.iter().enumerate() {
            prop_assert_eq!(assembled(&builder, &recorded, which), body.as_bytes());
        }
    }
}
