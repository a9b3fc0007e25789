use super::*;
use crate::dialect::DIALECTS;

/// A turn of the assistant that calls a tool, as each dialect replies with it and agents send it back.
struct Way {
    dialect: DialectName,
    messages: &'static str,
    user: fn(&str) -> Value,
    reply: fn(&str) -> Value,
    /// The messages that the reply becomes in the next request.
    back: fn(&str) -> Vec<Value>,
    result: Value,
}

fn ways() -> Vec<Way> {
    vec![
        Way {
            dialect: DialectName::Messages,
            messages: "messages",
            user,
            reply: |text| {
                json!({"id": "msg_1", "type": "message", "role": "assistant", "content": [
                    {"type": "thinking", "thinking": "t", "signature": "s"},
                    {"type": "text", "text": text},
                    {"type": "tool_use", "id": text, "name": "f", "input": {"a": 1}}]})
            },
            back: |text| {
                vec![json!({"role": "assistant", "content": [
                    {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}},
                    {"type": "tool_use", "id": text, "name": "f", "input": {"a": 1}}]})]
            },
            result: json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "r"}]}),
        },
        Way {
            dialect: DialectName::Responses,
            messages: "input",
            user: |text| json!({"role": "user", "content": [{"type": "input_text", "text": text}]}),
            reply: |text| {
                json!({"id": "resp_1", "object": "response", "output": [
                    {"id": "msg_1_0", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
                    {"id": "fc_1_1", "type": "function_call", "call_id": "x", "name": "f", "arguments": "{\"a\": 1}"}]})
            },
            back: |text| {
                vec![
                    json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}),
                    json!({"type": "function_call", "call_id": "x", "name": "f", "arguments": "{\"a\": 1}"}),
                ]
            },
            result: json!({"type": "function_call_output", "call_id": "x", "output": "r"}),
        },
        Way {
            dialect: DialectName::GenerateContent,
            messages: "contents",
            user: |text| json!({"role": "user", "parts": [{"text": text}]}),
            reply: |text| {
                json!({"candidates": [{"content": {"role": "model", "parts": [
                    {"text": "t", "thought": true}, {"text": text}, {"functionCall": {"id": "x", "name": "f", "args": {"a": 1}}}]}}]})
            },
            back: |text| {
                vec![json!({"role": "model", "parts": [
                    {"text": text}, {"functionCall": {"name": "f", "args": {"a": 1}}}]})]
            },
            result: json!({"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"a": 1}}}]}),
        },
    ]
}

impl Way {
    fn call(&self, index: u32, messages: &[Value], reply: &str) -> Sketch {
        let mut made = call(index, &[]);
        let body = json!({"model": "m", self.messages: messages, "tools": [{"name": "f"}]});
        // Written as no library does, so that a body that is put together anew is seen.
        let text = body.to_string().replace("\"tools\":", "\"tools\" :  ");
        made.call.request = Bytes::from(text);
        made.call.meta.retry_key = ContentHash::of(&made.call.request).to_string();
        made.call.meta.dialect = self.dialect;
        made.call.response = Bytes::from((self.reply)(reply).to_string());
        made
    }
}

#[test]
fn every_translated_dialect_has_a_way() {
    assert_eq!(ways().len() + 1, DIALECTS.len());
}

#[test]
fn bodies_of_every_dialect_are_said_once_and_come_back_byte_for_byte() {
    for way in ways() {
        let first = [(way.user)("a")];
        let mut second = vec![(way.user)("a")];
        second.extend((way.back)("one"));
        second.push(way.result.clone());
        let calls = vec![way.call(0, &first, "one"), way.call(1, &second, "two")];
        let bodies: Vec<Bytes> = calls.iter().map(|sketch| sketch.call.request.clone()).collect();
        let (builder, recorded) = build(calls);
        for (which, body) in bodies.iter().enumerate() {
            assert_eq!(assembled(&builder, &recorded, which), *body, "{:?}", way.dialect);
        }
        let messages = &recorded[1].record.request.messages;
        assert_eq!(
            (messages.base, messages.shared),
            (Some(0), 1),
            "{:?}",
            way.dialect
        );
        assert!(recorded[1].record.request.tools.is_some());
        // The messages that are new, and the reply: tools and rest are known.
        assert_eq!(
            recorded[1].contents.len(),
            second.len() - 1 + 1,
            "{:?}",
            way.dialect
        );
    }
}

#[test]
fn trap_14_of_twins_the_one_whose_reply_came_back_is_continued_in_every_dialect() {
    for way in ways() {
        for kept in ["one", "two"] {
            let first = [(way.user)("a")];
            let mut next = vec![(way.user)("a")];
            next.extend((way.back)(kept));
            next.push(way.result.clone());
            let (builder, _) = build(vec![
                way.call(0, &first, "one"),
                way.call(1, &first, "two"),
                way.call(2, &next, "three"),
            ]);
            let continues: Vec<Option<u32>> =
                builder.trajectory().calls().map(|call| call.continues).collect();
            let expected = u32::from(kept == "two");
            assert_eq!(continues[2], Some(expected), "{:?} {kept}", way.dialect);
        }
    }
}

#[test]
fn dialects_can_be_mixed_in_one_trajectory() {
    let calls: Vec<Sketch> = (0_u32..)
        .zip(ways())
        .map(|(index, way)| way.call(index, &[(way.user)("a")], "one").tokens(&[1, 2], &[3]))
        .collect();
    let (builder, _) = build(calls);
    assert_eq!(builder.trajectory().calls().count(), 3);
    assert_eq!(builder.totals().trainable_calls, 3);
}
