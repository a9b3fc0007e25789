//! Rollouts as they leave, and come in again.

use crate::round_trip::store_running;
use crate::samples;
use dressage_store::{
    Compression, Export, ExportCounts, Format, ImportProblem, Imported, RowWriter, Store, StoreError, Wanted,
    read_parquet,
};
use dressage_wire::call::Flag;
use dressage_wire::export::Shape;
use dressage_wire::export::native::{Document, SCHEMA_VERSION};
use dressage_wire::ids::{OwnerId, RolloutId};
use dressage_wire::rollout::{Recorder, RolloutState};
use dressage_wire::trajectory::{Keep, Selection};
use dressage_wire::validate::{Findings, line};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::sync::Arc;

async fn exported(store: &Store, id: RolloutId) -> Value {
    let text = store.export_trajectory(id, Vec::new()).await.unwrap();
    assert!(text.ends_with(b"}\n"));
    serde_json::from_slice(&text).unwrap()
}

/// The items of `list`, looked up in the file's contents.
fn looked_up(file: &Value, list: &Value) -> Vec<Value> {
    let number = |number: &Value| {
        let text = file["contents"][number.as_u64().unwrap() as usize]["text"]
            .as_str()
            .unwrap();
        serde_json::from_str(text).unwrap_or_else(|_| json!(text))
    };
    list.as_array().unwrap().iter().map(number).collect()
}

/// All messages of a call, those that it shares with others included.
fn messages_of(file: &Value, call: usize) -> Vec<Value> {
    let delta = &file["calls"][call]["request"]["messages"];
    let mut messages = match delta["base"].as_u64() {
        Some(base) => messages_of(file, base as usize),
        None => Vec::new(),
    };
    messages.truncate(delta["shared"].as_u64().unwrap() as usize);
    messages.extend(looked_up(file, &delta["tail"]));
    messages
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
    assert_eq!(file["schema_version"], SCHEMA_VERSION);
    assert_eq!(file["state"], "finished");
    assert_eq!(file["rollout"]["id"], id.to_string());
    assert_eq!(file["outcome"], serde_json::to_value(&outcome).unwrap());

    for (number, sent) in calls.iter().enumerate() {
        let call = &file["calls"][number];
        let sent: Value = serde_json::from_slice(&sent.request).unwrap();
        assert_eq!(Value::from(messages_of(&file, number)), sent["messages"]);
        assert_eq!(
            looked_up(&file, &json!([call["request"]["tools"]["content"]]))[0],
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
    let turn = |call: u32, start: u32, end: u32| {
        json!({
            "call": call, "start": start, "end": end, "trained": true,
            "policy_version_at_dispatch": "7", "policy_version_at_completion": null,
        })
    };
    let turns = json!([turn(1, 6, 8), turn(2, 9, 10)]);
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
    assert_eq!(call["request"]["layout"], Value::Null);
    assert_eq!(
        call["untrained"],
        json!({"reason": "flag", "flag": "logprob_invalid"})
    );
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

/// A data directory with finished rollouts: of three calls, of one that is odd in every way, and of none.
async fn rollouts(store: &Store) -> Vec<RolloutId> {
    let (first, ..) = store_running(store, samples::conversation()).await;
    store.finished(&samples::outcome(first)).await.unwrap();
    let mut odd = samples::with_tokens(samples::call(0, &[samples::message("user", "go")]), &[1], &[2, 3]);
    odd.completions[0].logprobs = vec![-0.1, f64::NAN];
    odd.meta.flags.push(Flag::LogprobInvalid);
    odd.response = bytes::Bytes::from_static(b"{\n  \"pretty\": [1,  2]\n}\n");
    let mut no_json = samples::call(1, &[]);
    no_json.request = bytes::Bytes::from_static(b"\xff\xfe no text");
    let (second, ..) = store_running(store, vec![odd, no_json]).await;
    store.finished(&samples::outcome(second)).await.unwrap();
    let (third, ..) = store_running(store, Vec::new()).await;
    store.finished(&samples::outcome(third)).await.unwrap();
    vec![first, second, third]
}

async fn all(
    store: &Store,
    shape: Shape,
    format: Format,
    compression: Compression,
) -> (Vec<u8>, Arc<ExportCounts>) {
    let counts = Arc::new(ExportCounts::default());
    let writer = RowWriter::new(Vec::new(), shape, format, compression).unwrap();
    let written = store
        .export(Export::default(), writer, counts.clone())
        .await
        .unwrap();
    (written, counts)
}

fn lines_of(text: &[u8]) -> Vec<Value> {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[tokio::test]
async fn what_is_exported_is_sound_and_the_same_in_every_format() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    rollouts(&store).await;
    for shape in Shape::ALL {
        let (text, counts) = all(&store, shape, Format::Jsonl, Compression::None).await;
        let mut findings = Findings::default();
        let lines = lines_of(&text);
        for each in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            line(each, &mut findings);
        }
        assert_eq!(findings.list, [], "{shape}");
        let (rollouts, without, rows) = counts.written();
        assert_eq!((rollouts, rows), (3, lines.len() as u64), "{shape}");
        let expected = match shape {
            Shape::Native | Shape::Trl => (3, 0),
            Shape::Verl => (2, 2),
            Shape::Chat => (1, 2),
            // Also what is not trained is told.
            Shape::Atif => (3, 1),
        };
        assert_eq!((rows, without), expected, "{shape}");

        let (packed, _) = all(&store, shape, Format::Jsonl, Compression::Zstd).await;
        assert_eq!(zstd::decode_all(&packed[..]).unwrap(), text, "{shape}");

        let (parquet, _) = all(&store, shape, Format::Parquet, Compression::None).await;
        let path = directory.path().join("rows.parquet");
        std::fs::write(&path, parquet).unwrap();
        let mut read = Vec::new();
        let each = |number, line: &[u8]| {
            assert_eq!(number, read.len() as u64 + 1);
            read.push(serde_json::from_slice::<Value>(line).unwrap());
            true
        };
        read_parquet(std::fs::File::open(&path).unwrap(), each).unwrap();
        assert_eq!(read, lines, "{shape}");
    }
}

#[tokio::test]
async fn a_filter_and_a_selection_say_what_is_exported() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let ids = rollouts(&store).await;
    let (running, ..) = store_running(&store, samples::conversation()).await;
    let exported = async |export: Export| {
        let writer = RowWriter::new(Vec::new(), Shape::Native, Format::Jsonl, Compression::None).unwrap();
        let text = store.export(export, writer, Arc::default()).await.unwrap();
        let lines = lines_of(&text).into_iter();
        lines
            .map(|line| line["rollout"]["id"].as_str().unwrap().parse().unwrap())
            .collect::<Vec<RolloutId>>()
    };
    let filtered = async |filter: &str| {
        let filter = filter.parse().unwrap();
        exported(Export {
            filter,
            ..Export::default()
        })
        .await
    };
    assert_eq!(
        filtered("").await,
        [ids[2], ids[1], ids[0]],
        "those that are over, the latest first"
    );
    assert_eq!(filtered("flag=logprob_invalid").await, [ids[1]]);
    assert_eq!(
        filtered("-flag=logprob_invalid reward>=0.3").await,
        [ids[2], ids[0]]
    );
    assert_eq!(filtered("agent=nobody").await, []);
    assert_eq!(filtered("state=running").await, [running]);
    let wanted = Wanted::Ids(vec![running, ids[0]]);
    let named = Export {
        wanted,
        ..Export::default()
    };
    assert_eq!(
        exported(named).await,
        [running, ids[0]],
        "in the order in which they are named"
    );

    let selection = Selection {
        purposes: Vec::new(),
        top_logprobs: Keep::Drop,
        ..Selection::default()
    };
    let text = store
        .export_rollout(ids[0], Shape::Native, selection, Vec::new())
        .await
        .unwrap();
    let document: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(document["calls"][0]["completions"][0]["top_logprobs"], json!([]));
    assert_eq!(document["calls"][0]["untrained"], json!({"reason": "purpose"}));
    let mut findings = Findings::default();
    line(&text, &mut findings);
    assert_eq!((findings.list, findings.tally.trained_tokens), (vec![], 0));
}

#[tokio::test]
async fn what_is_taken_in_elsewhere_is_exported_there_as_the_same_bytes() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(here.path()).await.unwrap();
    let ids = rollouts(&store).await;
    let (dead, ..) = store_running(&store, samples::conversation()).await;
    let owner = store.get(dead).await.unwrap().row.owner;
    let all_states = || Export {
        filter: "-state=queued".parse().unwrap(),
        ..Export::default()
    };
    let exported = async |store: &Store| {
        let writer = RowWriter::new(Vec::new(), Shape::Native, Format::Jsonl, Compression::None).unwrap();
        store.export(all_states(), writer, Arc::default()).await.unwrap()
    };
    let other = Store::open(there.path()).await.unwrap();
    let running = exported(&store).await;
    let first: Document<'_> =
        serde_json::from_slice(running.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    let error = other.import(&first).await.unwrap_err();
    let problem = |error: &StoreError| {
        matches!(
            error,
            StoreError::Import {
                problem: ImportProblem::NotOver,
                ..
            }
        )
    };
    assert!(problem(&error), "{error:?}");

    store.mark_interrupted(&[owner, OwnerId::new()]).await.unwrap();
    let text = exported(&store).await;
    for each in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let document: Document<'_> = serde_json::from_slice(each).unwrap();
        let id = document.rollout.as_ref().unwrap().id;
        assert_eq!(other.import(&document).await.unwrap(), Imported::Taken(id));
        assert_eq!(other.import(&document).await.unwrap(), Imported::There(id));
    }
    assert_eq!(
        String::from_utf8(exported(&other).await).unwrap(),
        String::from_utf8(text).unwrap()
    );
    for id in ids {
        let (row, other_row) = (store.get(id).await.unwrap().row, other.get(id).await.unwrap().row);
        assert_eq!(row, other_row);
    }
    assert_eq!(
        other.get(dead).await.unwrap().row.state,
        RolloutState::Interrupted
    );
    for call in samples::conversation() {
        let body = other.request_body(dead, call.meta.index).await.unwrap();
        assert_eq!(bytes::Bytes::from(body), call.request, "byte for byte");
    }
}

#[tokio::test]
async fn an_export_that_fails_does_not_end_as_if_it_were_whole() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    rollouts(&store).await;
    let writer = RowWriter::new(Full, Shape::Native, Format::Jsonl, Compression::None).unwrap();
    let error = store
        .export(Export::default(), writer, Arc::default())
        .await
        .err()
        .unwrap();
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(
        source.downcast_ref::<io::Error>().unwrap().kind(),
        io::ErrorKind::StorageFull
    );
    let wanted = Wanted::Ids(vec![RolloutId::new()]);
    let unknown = Export {
        wanted,
        ..Export::default()
    };
    let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = RowWriter::new(
        Ends(ended.clone()),
        Shape::Native,
        Format::Jsonl,
        Compression::None,
    )
    .unwrap();
    let error = store.export(unknown, writer, Arc::default()).await.err().unwrap();
    assert!(matches!(error, StoreError::NotFound { .. }), "{error:?}");
    assert!(!ended.load(std::sync::atomic::Ordering::SeqCst));
}

/// Notes that it was ended.
struct Ends(Arc<std::sync::atomic::AtomicBool>);

impl Write for Ends {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}
