//! What the scripted model says of its tokens is true.

use crate::client::{capturing, chat, config, model_of, plain, post, send, start};
use dressage_testkit::model::{ScriptedModel, ScriptedModelConfig, Tokenizer, Turn, special};
use hyper::Method;
use serde_json::{Value, json};

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect()
}

fn sampled_ids(events: &[Value]) -> Vec<u32> {
    let chunks = events
        .iter()
        .filter_map(|event| event["choices"][0].get("token_ids"));
    chunks.flat_map(ids).collect()
}

fn joined(events: &[Value], member: &str) -> String {
    events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"][member].as_str())
        .collect()
}

fn arguments(events: &[Value]) -> String {
    let calls = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str());
    calls.collect()
}

fn user(text: &str) -> Value {
    json!([{"role": "system", "content": "You are a coding agent."}, {"role": "user", "content": text}])
}

fn writes() -> Turn {
    let arguments = json!({"command": "echo \"naïve 🎉 }{\" > /tmp/a && ls", "count": [1, {"a": "}"}]});
    Turn::calls("bash", arguments)
        .thinking("Let me see — 你好.")
        .saying("I will run it ✓")
}

#[tokio::test]
async fn prompt_ids_are_the_tokenisation_of_what_was_received() {
    let model = model_of(vec![writes()]).await;
    let request = capturing(user("list files"));
    let events = chat(&model, &request).await.events();
    let tokenized = post(&model, "/tokenize", request.to_string()).await.json();
    assert_eq!(events[0]["prompt_token_ids"], tokenized["tokens"]);
    let prompt = ids(&events[0]["prompt_token_ids"]);
    assert_eq!(tokenized["count"], prompt.len());
    assert_eq!(events.last().unwrap()["usage"]["prompt_tokens"], prompt.len());
    let text = String::from_utf8(Tokenizer::get().decode(&prompt)).unwrap();
    assert!(
        text.contains("list files") && text.contains("\"name\": \"bash\""),
        "{text}"
    );
    assert!(text.ends_with("<|im_start|>assistant\n"));
    let detokenized = post(&model, "/detokenize", json!({"tokens": prompt}).to_string())
        .await
        .json();
    assert_eq!(detokenized["prompt"], text);
}

#[tokio::test]
async fn ids_log_probabilities_and_usage_agree_in_number_event_by_event() {
    let model = model_of(vec![writes()]).await;
    for interval in [1, 4] {
        let mut request = capturing(user("list files"));
        request["stream_interval"] = json!(interval);
        let events = chat(&model, &request).await.events();
        let mut total = 0;
        for event in events
            .iter()
            .filter(|event| event["choices"][0].get("token_ids").is_some())
        {
            let choice = &event["choices"][0];
            let entries = choice["logprobs"]["content"].as_array().unwrap();
            assert_eq!(entries.len(), choice["token_ids"].as_array().unwrap().len());
            assert!(
                entries
                    .iter()
                    .all(|entry| entry["logprob"].as_f64().unwrap() <= 0.0)
            );
            assert!(
                entries
                    .iter()
                    .all(|entry| entry["top_logprobs"].as_array().unwrap().len() == 5)
            );
            total += entries.len();
        }
        assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], total);
        assert!(total > 50);
    }
}

#[tokio::test]
async fn sampled_ids_decode_to_what_was_said() {
    let model = model_of(vec![writes()]).await;
    let events = chat(&model, &capturing(user("list files"))).await.events();
    let text = String::from_utf8(Tokenizer::get().decode(&sampled_ids(&events))).unwrap();
    let (reasoning, content, arguments) = (
        joined(&events, "reasoning"),
        joined(&events, "content"),
        arguments(&events),
    );
    assert_eq!(reasoning, "\nLet me see — 你好.\n");
    assert_eq!(content, "\n\nI will run it ✓\n");
    assert_eq!(
        arguments,
        "{\"command\": \"echo \\\"naïve 🎉 }{\\\" > /tmp/a && ls\", \"count\": [1, {\"a\": \"}\"}]}"
    );
    assert_eq!(
        text,
        format!(
            "<think>{reasoning}</think>{content}<tool_call>\n{{\"name\": \"bash\", \"arguments\": {arguments}}}\n</tool_call><|im_end|>"
        )
    );
}

#[tokio::test]
async fn a_plain_stream_is_the_captured_one_without_its_tokens_and_its_empty_events() {
    let model = model_of(vec![writes()]).await;
    let stripped = |mut event: Value| {
        event["id"] = json!("");
        event["created"] = json!(0);
        for call in event
            .pointer_mut("/choices/0/delta/tool_calls")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            call.as_object_mut()
                .unwrap()
                .entry("id")
                .and_modify(|id| *id = json!(""));
        }
        if let Some(ids) = event.get_mut("prompt_token_ids") {
            *ids = Value::Null;
        }
        if let Some(choice) = event["choices"].get_mut(0) {
            choice["logprobs"] = Value::Null;
            choice
                .as_object_mut()
                .unwrap()
                .entry("token_ids")
                .and_modify(|ids| *ids = Value::Null);
        }
        event
    };
    let says_something = |event: &Value| {
        event["choices"]
            .get(0)
            .is_none_or(|choice| choice["delta"] != json!({}) || !choice["finish_reason"].is_null())
    };
    let captured = chat(&model, &capturing(user("list files"))).await.events();
    let agent_side = captured
        .into_iter()
        .map(stripped)
        .filter(says_something)
        .map(|event| event.to_string());
    let plain = chat(&model, &plain(user("list files"))).await.events();
    assert_eq!(
        agent_side.collect::<Vec<_>>(),
        plain
            .into_iter()
            .map(stripped)
            .map(|event| event.to_string())
            .collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn streamed_and_whole_replies_say_the_same() {
    let model = model_of(vec![writes()]).await;
    let streamed = chat(&model, &capturing(user("list files"))).await.events();
    let mut request = capturing(user("list files"));
    request["stream"] = json!(false);
    request.as_object_mut().unwrap().remove("stream_options");
    let whole = chat(&model, &request).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(ids(&choice["token_ids"]), sampled_ids(&streamed));
    assert_eq!(whole["prompt_token_ids"], streamed[0]["prompt_token_ids"]);
    assert_eq!(choice["message"]["reasoning"], joined(&streamed, "reasoning"));
    assert_eq!(choice["message"]["content"], joined(&streamed, "content"));
    assert_eq!(
        choice["message"]["tool_calls"][0]["function"]["arguments"],
        arguments(&streamed)
    );
    assert_eq!(choice["finish_reason"], "tool_calls");
    let entries = streamed
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(
        choice["logprobs"]["content"],
        Value::from(entries.flatten().cloned().collect::<Vec<_>>())
    );
}

/// The prompt after a turn, given how the agent sends its arguments back: what it shares with the turn, in tokens, the
/// length of the turn, and that of its prompt.
async fn shared_with_next_prompt(
    model: &ScriptedModel,
    send_back: impl Fn(&str) -> String,
) -> (usize, usize, usize) {
    let events = chat(model, &capturing(user("list files"))).await.events();
    let prompt = ids(&events[0]["prompt_token_ids"]);
    let mut turn = prompt.clone();
    turn.extend(sampled_ids(&events));
    let mut messages = user("list files");
    messages.as_array_mut().unwrap().extend([
        json!({
            "role": "assistant", "content": joined(&events, "content"), "reasoning_content": joined(&events, "reasoning"),
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": send_back(&arguments(&events))}}],
        }),
        json!({"role": "tool", "tool_call_id": "c1", "content": "a.py"}),
    ]);
    let next = ids(&chat(model, &capturing(messages)).await.events()[0]["prompt_token_ids"]);
    let shared = turn.iter().zip(&next).take_while(|(a, b)| a == b).count();
    (shared, turn.len(), prompt.len())
}

#[tokio::test]
async fn compacted_arguments_break_the_prefix_inside_the_completion() {
    let model = model_of(vec![writes()]).await;
    let compact = |arguments: &str| serde_json::from_str::<Value>(arguments).unwrap().to_string();
    let (shared, turn, prompt) = shared_with_next_prompt(&model, compact).await;
    assert!(prompt < shared && shared < turn, "{prompt} {shared} {turn}");
}

#[tokio::test]
async fn verbatim_arguments_keep_the_prefix() {
    let model = model_of(vec![writes()]).await;
    let (shared, turn, _) = shared_with_next_prompt(&model, str::to_owned).await;
    assert_eq!(shared, turn);
}

#[tokio::test]
async fn the_token_limit_cuts_inside_a_character_and_says_so() {
    let model = model_of(vec![Turn::says("Hi.").thinking("Hi 🎉!")]).await;
    let mut request = capturing(user("hi"));
    let events = chat(&model, &request).await.events();
    let party = sampled_ids(&events).iter().position(|&id| id == 0xf0).unwrap();
    request["max_tokens"] = json!(party + 2);
    let cut = chat(&model, &request).await.events();
    assert_eq!(joined(&cut, "reasoning"), "\nHi ");
    assert_eq!(sampled_ids(&cut), sampled_ids(&events)[..party + 2]);
    let finish = &cut[cut.len() - 2]["choices"][0];
    assert_eq!(
        (&finish["finish_reason"], &finish["delta"]),
        (&json!("length"), &json!({}))
    );
}

#[tokio::test]
async fn half_characters_have_no_name_and_the_token_that_ends_them_has_the_whole() {
    let model = model_of(vec![Turn::says("🎉")]).await;
    let mut request = capturing(user("hi"));
    request["chat_template_kwargs"] = json!({"enable_thinking": false});
    let events = chat(&model, &request).await.events();
    let names = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    let names: Vec<_> = names
        .flatten()
        .map(|entry| (entry["token"].clone(), entry["bytes"].as_array().unwrap().len()))
        .collect();
    let nothing = (json!(""), 0);
    assert_eq!(
        names,
        [
            nothing.clone(),
            nothing.clone(),
            nothing,
            (json!("🎉"), 4),
            (json!(special::IM_END), 10)
        ]
    );
}

#[tokio::test]
async fn a_stop_text_is_sampled_but_not_said_and_text_that_may_begin_it_is_held_back() {
    let model = model_of(vec![Turn::says("one two STOP three")]).await;
    let mut request = capturing(user("hi"));
    request["stop"] = json!("STOP");
    request["chat_template_kwargs"] = json!({"enable_thinking": false});
    let events = chat(&model, &request).await.events();
    assert_eq!(joined(&events, "content"), "one two ");
    let sampled = String::from_utf8(Tokenizer::get().decode(&sampled_ids(&events))).unwrap();
    assert!(
        sampled.starts_with("one two STOP") && !sampled.contains("three"),
        "{sampled}"
    );
    let finish = &events[events.len() - 2]["choices"][0];
    assert_eq!(
        (&finish["finish_reason"], &finish["stop_reason"]),
        (&json!("stop"), &json!("STOP"))
    );
    let first = &events[1]["choices"][0];
    assert!(
        first["delta"]["content"].as_str().unwrap_or("").len() < 4,
        "{first}"
    );
    request["stream"] = json!(false);
    request.as_object_mut().unwrap().remove("stream_options");
    let whole = chat(&model, &request).await.json();
    assert_eq!(whole["choices"][0]["message"]["content"], "one two ");
}

#[tokio::test]
async fn several_choices_come_interleaved_and_are_counted_together() {
    let model = model_of(vec![Turn::says("one two")]).await;
    let mut request = capturing(user("hi"));
    request["n"] = json!(2);
    let events = chat(&model, &request).await.events();
    let order: Vec<u64> = events
        .iter()
        .filter_map(|event| event["choices"][0]["index"].as_u64())
        .collect();
    assert!(order.chunks(2).all(|pair| pair == [0, 1]), "{order:?}");
    assert_eq!(
        events.last().unwrap()["usage"]["completion_tokens"],
        (order.len() - 2) as u64
    );
    let logprobs = |index: u64| {
        let entries = events
            .iter()
            .filter(move |event| event["choices"][0]["index"] == index);
        entries
            .filter_map(|event| event["choices"][0]["logprobs"]["content"][0]["logprob"].as_f64())
            .collect::<Vec<_>>()
    };
    assert_ne!(logprobs(0), logprobs(1));
}

#[tokio::test]
async fn the_same_request_gets_the_same_tokens_and_another_seed_other_log_probabilities() {
    let model = model_of(vec![writes()]).await;
    let tokens = |events: Vec<Value>| {
        events
            .iter()
            .map(|event| event["choices"][0]["logprobs"].to_string())
            .collect::<String>()
    };
    let mut request = capturing(user("hi"));
    let first = tokens(chat(&model, &request).await.events());
    assert_eq!(first, tokens(chat(&model, &request).await.events()));
    request["seed"] = json!(5);
    assert_ne!(first, tokens(chat(&model, &request).await.events()));
}

#[tokio::test]
async fn a_wrong_key_a_wrong_path_and_a_foreign_host_are_turned_away() {
    let model = start(ScriptedModelConfig {
        api_key: Some("sk-right".into()),
        ..config()
    })
    .await;
    let models = async |headers: &[(&str, &str)], path: &str| {
        send(&model, Method::GET, path, headers, String::new())
            .await
            .status
    };
    assert_eq!(models(&[], "/v1/models").await, 401);
    assert_eq!(
        models(&[("authorization", "Bearer sk-wrong")], "/v1/models").await,
        401
    );
    let right = ("authorization", "Bearer sk-right");
    assert_eq!(models(&[right], "/v1/models").await, 200);
    assert_eq!(models(&[right], "/v1/chat/completions").await, 405);
    assert_eq!(models(&[right], "/v1/completions").await, 404);
    assert_eq!(models(&[], "/health").await, 200);
    assert_eq!(
        models(&[right, ("host", "evil.example")], "/v1/models").await,
        403
    );
    assert_eq!(
        models(&[right, ("origin", "http://evil.example")], "/v1/models").await,
        403
    );
    assert_eq!(
        models(&[right, ("origin", "http://localhost:3000")], "/v1/models").await,
        200
    );
    let card = send(&model, Method::GET, "/v1/models", &[right], String::new())
        .await
        .json();
    assert_eq!(card["data"][0]["id"], "tiny");
}

#[tokio::test]
async fn shutdown_closes_the_port() {
    let model = start(config()).await;
    let address = model.address();
    model.shutdown().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}
