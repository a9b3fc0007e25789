//! The trajectory file.

use crate::round_trip::store_running;
use crate::samples;
use dressage_store::{Store, StoreError, TRAJECTORY_SCHEMA_VERSION};
use dressage_wire::call::Flag;
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::Recorder;
use serde_json::{Value, json};
use std::io::{self, Write};

async fn exported(store: &Store, id: RolloutId) -> Value {
    let text = store.export_trajectory(id, Vec::new()).await.unwrap();
    assert!(text.ends_with(b"}\n"));
    serde_json::from_slice(&text).unwrap()
}

/// The items of `list`, looked up in the file's contents.
fn looked_up(file: &Value, list: &Value) -> Vec<Value> {
    let number = |number: &Value| file["contents"][number.as_u64().unwrap() as usize].clone();
    list.as_array().unwrap().iter().map(number).collect()
}

#[tokio::test]
async fn the_file_holds_calls_contents_and_sequences() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let calls = samples::conversation();
    let (id, _, _) = store_running(&store, calls.clone()).await;

    let running = exported(&store, id).await;
    assert_eq!(
        (&running["state"], &running["outcome"]),
        (&json!("running"), &Value::Null)
    );

    let outcome = samples::outcome(id);
    store.finished(&outcome).await.unwrap();
    let file = exported(&store, id).await;
    assert_eq!(file["schema"], "dressage.trajectory");
    assert_eq!(file["schema_version"], TRAJECTORY_SCHEMA_VERSION);
    assert_eq!(file["state"], "finished");
    assert_eq!(file["rollout"]["id"], id.to_string());
    assert_eq!(file["outcome"], serde_json::to_value(&outcome).unwrap());

    for (call, sent) in file["calls"].as_array().unwrap().iter().zip(&calls) {
        let sent: Value = serde_json::from_slice(&sent.request).unwrap();
        assert_eq!(
            Value::from(looked_up(&file, &call["request"]["messages"])),
            sent["messages"]
        );
        assert_eq!(
            looked_up(&file, &json!([call["request"]["tools"]]))[0],
            sent["tools"]
        );
        let rest = &looked_up(&file, &json!([call["request"]["rest"]]))[0];
        assert_eq!(
            rest,
            &json!({"model": "m", "tools": null, "messages": null, "stream": true})
        );
    }
    let second = &file["calls"][1];
    assert_eq!(second["prompt"], json!({"base": 0, "shared": 4, "tail": [99, 4]}));
    assert_eq!(second["prefix_break"]["at"], 4);
    assert_eq!(second["continues"], 0);
    assert_eq!(second["trainable"], true);
    assert_eq!(second["completions"][0]["token_ids"], json!([20, 21]));
    assert_eq!(second["completions"][0]["finish_reason"], "stop");
    assert_eq!(looked_up(&file, &json!([second["response"]]))[0]["id"], "r1");

    let sequences = file["sequences"].as_array().unwrap();
    assert_eq!(sequences.len(), 2);
    assert_eq!(
        sequences[1]["token_ids"],
        json!([1, 2, 3, 10, 99, 4, 20, 21, 5, 30])
    );
    assert_eq!(sequences[1]["loss_mask"], json!([0, 0, 0, 0, 0, 0, 1, 1, 0, 1]));
    let sampled = |id: f64| -id / 7.0;
    let expected = json!([
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        sampled(20.0),
        sampled(21.0),
        0.0,
        sampled(30.0)
    ]);
    assert_eq!(sequences[1]["logprobs"], expected);
    let turns = json!([
        {"call": 1, "start": 6, "end": 8, "trained": true},
        {"call": 2, "start": 9, "end": 10, "trained": true},
    ]);
    assert_eq!(sequences[1]["turns"], turns);
    assert_eq!(
        (&sequences[1]["leaf"], &sequences[1]["purpose"]),
        (&json!(2), &json!("agent"))
    );
    assert_eq!(
        exported(&store, id).await,
        file,
        "the same rollout gives the same file"
    );
}

#[tokio::test]
async fn trap_03_the_file_is_valid_json_with_log_probabilities_that_are_no_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let mut call = samples::with_tokens(samples::call(0, &[]), &[1], &[2, 3, 4]);
    call.completions[0].logprobs = vec![-0.5, f64::NAN, f64::NEG_INFINITY];
    call.completions[0].top_logprobs[0][0].logprob = f64::NAN;
    call.meta.flags.push(Flag::LogprobInvalid);
    call.request = "no json \u{fffd}".into();
    let (id, _, _) = store_running(&store, vec![call]).await;
    let file = exported(&store, id).await;
    let call = &file["calls"][0];
    assert_eq!(call["completions"][0]["logprobs"], json!([-0.5, null, null]));
    assert_eq!(
        call["completions"][0]["top_logprobs"][0][0]["logprob"],
        Value::Null
    );
    assert_eq!(
        call["completions"][0]["token_ids"],
        json!([2, 3, 4]),
        "never shifted, never dropped"
    );
    assert_eq!(call["trainable"], false);
    assert_eq!(file["sequences"][0]["loss_mask"], json!([0, 0, 0, 0]));
    assert_eq!(file["sequences"][0]["logprobs"], json!([0.0, -0.5, 0.0, 0.0]));
    assert_eq!(
        looked_up(&file, &json!([call["request"]["rest"]])),
        [json!("no json \u{fffd}")]
    );
    assert_eq!(call["request"]["messages"], Value::Null);
}

#[tokio::test]
async fn late_flags_are_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let first = samples::with_tokens(samples::call(0, &[]), &[1], &[2]);
    let mut retry = samples::with_tokens(samples::call(1, &[]), &[1], &[3]);
    retry.meta.retry_count = Some(1);
    let (id, _, _) = store_running(&store, vec![first, retry]).await;
    let file = exported(&store, id).await;
    assert_eq!(
        file["calls"][0]["flags"],
        json!(["sampling_defaulted", "superseded"])
    );
    assert_eq!(file["calls"][0]["trainable"], false);
    assert_eq!(file["calls"][1]["trainable"], true);
}

struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_writer_that_fails_and_a_rollout_that_is_not_there_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (id, _, _) = store_running(&store, samples::conversation()).await;
    let error = store.export_trajectory(id, Full).await.err().unwrap();
    assert_eq!(
        error.to_string(),
        format!("writing the trajectory of rollout {id} failed")
    );
    let unknown = store.export_trajectory(RolloutId::new(), Vec::new()).await;
    assert!(matches!(unknown, Err(StoreError::NotFound { .. })));
}
