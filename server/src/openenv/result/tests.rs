use super::*;
use bytes::Bytes;
use dressage_store::Store;
use dressage_wire::call::{Call, CallEnd, CallMeta, CaptureLevel, Completion, DialectName, Purpose};
use dressage_wire::fault::Ended;
use dressage_wire::ids::{CallId, OwnerId};
use dressage_wire::rollout::{Recorder as _, RolloutStart, Totals};
use dressage_wire::sampling::Sampling;
use dressage_wire::task::{CaptureMode, Placement, Task};
use dressage_wire::trajectory::{ContentHash, TrajectoryBuilder};

#[test]
fn a_result_stands_in_a_reply_as_fastmcp_puts_it() {
    let small = envelope(r#"{"reward":1.0}"#);
    let reply: Value = serde_json::from_str(small.get()).unwrap();
    assert_eq!(reply["data"], json!(r#"{"reward":1.0}"#));
    assert_eq!(reply["content"][0]["text"], reply["data"]);
    assert_eq!(reply["structured_content"]["result"], reply["data"]);
    let large = envelope(&"x".repeat(STRUCTURED_MAX));
    assert_eq!(
        serde_json::from_str::<Value>(large.get()).unwrap()["structured_content"],
        Value::Null
    );
}

#[test]
fn a_tail_is_cut_between_characters() {
    assert_eq!(tail(&"é".repeat(3000)).chars().count(), TAIL_MAX);
    assert_eq!(tail("short"), "short");
}

/// A conversation of one session: each call says what was said before, and `said` more of `tokens` tokens.
async fn conversation(turns: u32, said: &str, tokens: u32) -> (Transcript, RolloutOutcome) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).await.unwrap();
    let start = RolloutStart {
        id: RolloutId::new(),
        owner: OwnerId::new(),
        task: Task {
            instruction: "x".into(),
            ..Task::default()
        },
        sample: 0,
        group: None,
        endpoint: "demo".into(),
        base_url: "http://127.0.0.1:1/v1".into(),
        model: "m".into(),
        backend: "local".into(),
        agent_version: "1".into(),
        mode: Mode::default(),
        placement: Placement::default(),
        capture: CaptureMode::default(),
        started_unix_ms: 1,
    };
    store.started(&start).await.unwrap();
    let mut builder = TrajectoryBuilder::new();
    let (mut messages, mut prompt) = (Vec::new(), Vec::<u32>::new());
    for index in 0..turns {
        messages.push(json!({"role": "user", "content": format!("{index} {said}")}));
        prompt.extend(0..tokens);
        let request = Bytes::from(json!({"model": "m", "messages": messages, "stream": true}).to_string());
        let completion: Vec<u32> = (0..tokens).collect();
        let reply = json!({"role": "assistant", "content": format!("reply {index}")});
        let meta = CallMeta {
            id: CallId::new(),
            index,
            dialect: DialectName::ChatCompletions,
            streamed: true,
            started_unix_ms: 1_000 + u64::from(index),
            first_token_ms: Some(5),
            duration_ms: 900,
            end: CallEnd::Complete,
            status: Some(200),
            error: None,
            hint: None,
            purpose: Purpose::Agent,
            session: Some("ses".into()),
            parent_session: None,
            retry_count: Some(0),
            retry_key: ContentHash::of(&request).to_string(),
            model: Some("m".into()),
            sampling: Sampling::neutral(),
            usage: None,
            level: CaptureLevel::Tokens,
            flags: Vec::new(),
            changes: Vec::new(),
            untranslated: Vec::new(),
            policy_version_at_dispatch: None,
            policy_version_at_completion: None,
            request_bytes: request.len() as u64,
            upstream_bytes: 1,
        };
        let recorded = builder.push(Call {
            meta,
            request,
            response: Bytes::from(
                json!({"choices": [{"message": reply, "finish_reason": "stop"}]}).to_string(),
            ),
            prompt_token_ids: Some(prompt.clone()),
            completions: vec![Completion {
                logprobs: completion.iter().map(|_| -0.5).collect(),
                tokens: completion.iter().map(|id| format!("token_id:{id}")).collect(),
                token_ids: completion.clone(),
                finish_reason: Some("stop".into()),
                ..Completion::default()
            }],
        });
        store.call(start.id, &recorded).await.unwrap();
        messages.push(reply);
        prompt.extend(completion);
    }
    let outcome = RolloutOutcome {
        id: start.id,
        ended: Ended::Completed,
        fault: None,
        reward: None,
        sandbox: None,
        stages: Vec::new(),
        setup: Vec::new(),
        agent: None,
        files: BTreeMap::new(),
        files_extra: Vec::new(),
        totals: Totals::default(),
        late_flags: Vec::new(),
        warnings: Vec::new(),
        wall_ms: 1,
        finished_unix_ms: 2,
        unstored: None,
    };
    let transcript = store.transcript(start.id).await.unwrap();
    (transcript, outcome)
}

fn result(transcript: &Transcript, outcome: &RolloutOutcome) -> Value {
    let text = largest(transcript, "t", Mode::default(), outcome);
    assert!(text.len() <= RESULT_MAX);
    let reply = envelope(&text);
    assert!(reply.get().len() <= 90_000_000, "{}", reply.get().len());
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn files_have_the_paths_that_upstream_gives_them() {
    let (transcript, mut outcome) = conversation(0, "", 0).await;
    outcome.files = BTreeMap::from([
        ("a.py".into(), "print(1)\n".into()),
        ("b/c".into(), String::new()),
    ]);
    outcome.files_extra = vec!["b/large".into()];
    let result = result(&transcript, &outcome);
    assert_eq!(
        result["files"],
        json!({"/home/user/workdir/a.py": "print(1)\n", "/home/user/workdir/b/c": ""})
    );
    assert_eq!(result["files_extra"], json!(["/home/user/workdir/b/large"]));
}

#[tokio::test]
async fn three_hundred_short_turns_are_told_in_full() {
    let (transcript, outcome) = conversation(300, "short", 4).await;
    let result = result(&transcript, &outcome);
    let turns = result["proxy_turns"].as_array().unwrap();
    assert_eq!(turns.len(), 300);
    let last = &turns[299];
    assert_eq!(last["request"]["messages"].as_array().unwrap().len(), 599);
    assert_eq!(last["prompt_token_ids"].as_array().unwrap().len(), 299 * 8 + 4);
    assert_eq!(last["loss_mask"].as_array().unwrap().len(), 300 * 8);
    assert_eq!(last["metadata"].get("omitted"), None);
}

#[tokio::test]
async fn of_longer_ones_only_what_is_new_is_told() {
    let (transcript, outcome) = conversation(300, &"x".repeat(1000), 4).await;
    let result = result(&transcript, &outcome);
    let turns = result["proxy_turns"].as_array().unwrap();
    assert_eq!(turns.len(), 300);
    let last = &turns[299];
    assert_eq!(last["request"]["messages"].as_array().unwrap().len(), 2);
    assert_eq!(last["prompt_token_ids"].as_array().unwrap().len(), 299 * 8 + 4);
    assert_eq!(last["parent_node_id"], turns[298]["node_id"]);
    assert!(
        last["metadata"]["omitted"][0]
            .as_str()
            .unwrap()
            .contains("request.messages")
    );
    assert_eq!(
        last["metadata"]["rest"],
        format!("/api/v1/rollouts/{}/calls/299", outcome.id)
    );
}

#[tokio::test]
async fn of_the_longest_ones_even_prompts_go_and_every_sampled_token_stays() {
    let (transcript, outcome) = conversation(300, "long", 100).await;
    let result = result(&transcript, &outcome);
    let turns = result["proxy_turns"].as_array().unwrap();
    assert_eq!(turns.len(), 300);
    for turn in turns {
        assert_eq!(turn["completion_token_ids"].as_array().unwrap().len(), 100);
        assert_eq!(turn["per_token_logps"].as_array().unwrap().len(), 100);
        assert_eq!(turn.get("prompt_token_ids"), None);
    }
    let omitted = turns[0]["metadata"]["omitted"].as_array().unwrap();
    assert!(omitted.contains(&json!("prompt_token_ids")), "{omitted:?}");
}
