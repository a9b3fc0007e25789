//! Faults, as a client sees them.

use crate::client::{Reply, capturing, chat, config, plain, start};
use dressage_testkit::fault::{BadLogprob, Cut, Fault, FaultPlan, LogprobCount};
use dressage_testkit::model::{ScriptedModelConfig, ScriptedTurns, Turn};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn hi() -> Value {
    json!([{"role": "user", "content": "hi"}])
}

async fn reply_with(fault: Fault, request: &Value) -> Reply {
    let turn = Turn::calls("bash", json!({"command": "ls é"})).thinking("Let me see.");
    let script = Arc::new(ScriptedTurns(vec![turn]));
    let faults = FaultPlan::default().on(0, fault);
    let model = start(ScriptedModelConfig {
        script,
        faults,
        ..config()
    })
    .await;
    let reply = chat(&model, request).await;
    // Only the call it was meant for has the fault.
    assert_eq!(
        chat(&model, &capturing(hi())).await.events().last().unwrap()["choices"],
        json!([])
    );
    reply
}

fn unary(mut request: Value) -> Value {
    request["stream"] = json!(false);
    request.as_object_mut().unwrap().remove("stream_options");
    request
}

fn count(events: &[Value], pointer: &str) -> usize {
    events
        .iter()
        .filter_map(|event| event.pointer(pointer)?.as_array())
        .map(Vec::len)
        .sum()
}

#[tokio::test]
async fn a_status_comes_with_its_body_and_headers() {
    let reply = reply_with(Fault::status(429).with_header("retry-after", "7"), &plain(hi())).await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.headers["retry-after"], "7");
    assert_eq!(reply.json()["error"]["code"], 429);
}

#[tokio::test]
async fn html_and_redirects_come_instead_of_json() {
    let reply = reply_with(Fault::html(), &plain(hi())).await;
    assert_eq!(
        (reply.status, reply.headers["content-type"].to_str().unwrap()),
        (200, "text/html; charset=utf-8")
    );
    let reply = reply_with(Fault::redirect("http://127.0.0.1:1/"), &plain(hi())).await;
    assert_eq!(
        (reply.status, reply.headers["location"].to_str().unwrap()),
        (307, "http://127.0.0.1:1/")
    );
}

#[tokio::test]
async fn a_refused_field_is_named_and_a_request_without_it_passes() {
    let refuse = || Fault::Refuse {
        field: "logprobs".into(),
    };
    let reply = reply_with(refuse(), &capturing(hi())).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["param"]),
        (400, &json!("logprobs"))
    );
    assert_eq!(reply_with(refuse(), &plain(hi())).await.status, 200);
}

#[tokio::test]
async fn a_clean_cut_ends_the_body_without_a_finish_reason() {
    let reply = reply_with(
        Fault::Cut {
            after_events: 3,
            how: Cut::CleanEnd,
        },
        &plain(hi()),
    )
    .await;
    assert_eq!(reply.broken, None);
    assert_eq!(reply.chunks.len(), 3);
    assert!(!reply.text().contains("finish_reason\":\""), "{}", reply.text());
}

#[tokio::test]
async fn a_closed_and_a_reset_connection_break_the_body_differently() {
    let closed = reply_with(
        Fault::Cut {
            after_events: 3,
            how: Cut::Close,
        },
        &plain(hi()),
    )
    .await;
    let reset = reply_with(
        Fault::Cut {
            after_events: 3,
            how: Cut::Reset,
        },
        &plain(hi()),
    )
    .await;
    assert_eq!((closed.chunks.len(), reset.chunks.len()), (3, 3));
    let (closed, reset) = (closed.broken.unwrap(), reset.broken.unwrap());
    assert!(!closed.contains("reset"), "{closed}");
    assert!(reset.to_lowercase().contains("reset"), "{reset}");
}

#[tokio::test]
async fn a_document_that_is_cut_is_shorter_than_it_says() {
    let reply = reply_with(
        Fault::Cut {
            after_events: 0,
            how: Cut::Close,
        },
        &unary(plain(hi())),
    )
    .await;
    let told: usize = reply.headers["content-length"].to_str().unwrap().parse().unwrap();
    assert!(reply.broken.is_some() && reply.chunks.concat().len() < told);
}

#[tokio::test]
async fn stalls_are_kept_before_the_headers_and_in_the_stream() {
    for fault in [
        Fault::StallBeforeHeaders { ms: 60 },
        Fault::Stall {
            after_events: 2,
            ms: 60,
        },
    ] {
        let begun = Instant::now();
        let reply = reply_with(fault, &plain(hi())).await;
        assert!(begun.elapsed() >= Duration::from_millis(60));
        assert_eq!(reply.events().last().unwrap()["choices"], json!([]));
    }
}

#[tokio::test]
async fn a_malformed_event_and_an_error_event_come_where_they_were_asked_for() {
    let reply = reply_with(Fault::Malformed { at_event: 2 }, &plain(hi())).await;
    let data = |chunk: &[u8]| serde_json::from_slice::<Value>(&chunk[6..]).is_ok();
    assert!(data(&reply.chunks[1]) && !data(&reply.chunks[2]) && data(&reply.chunks[3]));
    let error = Fault::ErrorEvent {
        at_event: 2,
        message: "overloaded".into(),
    };
    let reply = reply_with(error, &plain(hi())).await;
    assert_eq!(reply.chunks.len(), 3);
    let last: Value = serde_json::from_slice(&reply.chunks[2][6..]).unwrap();
    assert_eq!(last["error"]["message"], "overloaded");
}

#[tokio::test]
async fn a_huge_event_is_as_large_as_asked_for() {
    let reply = reply_with(
        Fault::HugeEvent {
            at_event: 2,
            bytes: 1 << 20,
        },
        &plain(hi()),
    )
    .await;
    let events = reply.events();
    assert_eq!(
        events[2]["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap()
            .len(),
        1 << 20
    );
}

#[tokio::test]
async fn tokens_of_tool_calls_can_be_lost_while_usage_counts_them() {
    let events = reply_with(Fault::LoseToolTokens, &capturing(hi())).await.events();
    let told = count(&events, "/choices/0/token_ids");
    assert_eq!(told, count(&events, "/choices/0/logprobs/content"));
    assert!(
        (told as u64)
            < events.last().unwrap()["usage"]["completion_tokens"]
                .as_u64()
                .unwrap()
    );
}

#[tokio::test]
async fn bad_log_probabilities_stand_where_they_were_asked_for() {
    for value in [
        BadLogprob::Null,
        BadLogprob::Nan,
        BadLogprob::NegativeInfinity,
        BadLogprob::Filler,
    ] {
        let fault = Fault::BadLogprob { position: 1, value };
        let wanted = format!("\"logprob\":{},", value.text());
        let streamed = reply_with(fault.clone(), &capturing(hi())).await;
        assert!(
            streamed.chunks[2]
                .windows(wanted.len())
                .any(|window| window == wanted.as_bytes()),
            "{value:?}"
        );
        assert_eq!(streamed.text().matches(&wanted).count(), 1, "{value:?}");
        let whole = reply_with(fault, &unary(capturing(hi()))).await;
        assert_eq!(whole.text().matches(&wanted).count(), 1, "{value:?}");
    }
}

#[tokio::test]
async fn log_probabilities_can_be_one_more_or_one_fewer_than_ids() {
    for (wrong, by) in [(LogprobCount::OneMore, 1), (LogprobCount::OneFewer, -1)] {
        let events = reply_with(Fault::LogprobCount { count: wrong }, &capturing(hi()))
            .await
            .events();
        let (ids, logprobs) = (
            count(&events, "/choices/0/token_ids"),
            count(&events, "/choices/0/logprobs/content"),
        );
        assert_eq!(logprobs as i64 - ids as i64, by);
    }
}

#[tokio::test]
async fn ids_and_usage_can_be_withheld() {
    let events = reply_with(Fault::NoTokenIds, &capturing(hi())).await.events();
    assert_eq!(
        (
            &events[0]["prompt_token_ids"],
            &events[1]["choices"][0]["token_ids"]
        ),
        (&Value::Null, &Value::Null)
    );
    assert!(
        !reply_with(Fault::NoUsage, &capturing(hi()))
            .await
            .text()
            .contains("\"usage\"")
    );
}

#[tokio::test]
async fn crlf_comments_and_split_characters_change_the_bytes_and_nothing_else() {
    let without = reply_with(
        Fault::Stall {
            after_events: 0,
            ms: 0,
        },
        &plain(hi()),
    )
    .await;
    let crlf = reply_with(Fault::Crlf, &plain(hi())).await.text();
    let data = |text: &str| text.lines().filter(|line| line.starts_with("data: ")).count();
    assert_eq!(data(&crlf), data(&without.text()));
    assert!(crlf.starts_with(": comment\r\n\r\ndata: {"));
    let split = reply_with(Fault::Split { bytes: 1 }, &plain(hi())).await;
    assert_eq!(split.chunks.len(), split.chunks.concat().len());
    assert_eq!(split.events().len(), without.events().len());
}

#[test]
fn a_plan_is_read_from_json_and_a_misspelt_fault_is_named() {
    let plan: FaultPlan =
        serde_json::from_str(r#"{"calls": {"2": [{"fault": "cut", "after_events": 5, "how": "reset"}]}}"#)
            .unwrap();
    assert_eq!(
        plan,
        FaultPlan::default().on(
            2,
            Fault::Cut {
                after_events: 5,
                how: Cut::Reset
            }
        )
    );
    let error = serde_json::from_str::<FaultPlan>(r#"{"always": [{"fault": "cutt"}]}"#).unwrap_err();
    assert!(error.to_string().contains("unknown variant `cutt`"), "{error}");
}
