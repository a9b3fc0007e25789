//! Measures exports: makes rollouts of 50 turns, exports them in every shape, and checks what was exported. Prints a line
//! of JSON a value. usage: exports [ROLLOUTS [SHAPE...]], 1000 and every shape if unset
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a measurement that fails is to fail here"
)]

use bytes::Bytes;
use dressage_store::{Compression, Export, ExportCounts, Format, RowWriter, Store};
use dressage_wire::call::{Call, CallEnd, CallMeta, CaptureLevel, Completion, DialectName, Purpose, Usage};
use dressage_wire::export::Shape;
use dressage_wire::export::native::Document;
use dressage_wire::ids::{CallId, OwnerId, RolloutId};
use dressage_wire::rollout::{Recorder, RolloutOutcome, RolloutStart};
use dressage_wire::sampling::Sampling;
use dressage_wire::task::Task;
use dressage_wire::trajectory::{ContentHash, Trajectory, TrajectoryBuilder};
use dressage_wire::validate::{Findings, line};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TURNS: u32 = 50;
/// Tokens that a turn adds: half of them sampled.
const TOKENS_A_TURN: u32 = 200;
/// Every fifth turn breaks inside the completion before.
const BREAK_EVERY: u32 = 5;

fn say(metric: &str, value: f64, at_least: Option<f64>) {
    let value = (value * 100.0).round() / 100.0;
    let line = match at_least {
        Some(at_least) => json!({"metric": metric, "value": value, "at_least": at_least}),
        None => json!({"metric": metric, "value": value}),
    };
    println!("{line}");
}

fn calls() -> Vec<Call> {
    let mut state = 1_u64;
    let mut dice = move |sides: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % sides
    };
    let mut text = |words: usize| -> String {
        (0..words)
            .map(|_| {
                format!(
                    "{:x} ",
                    (dice(3_000) + 17).wrapping_mul(2_654_435_761) % 1_000_003
                )
            })
            .collect()
    };
    let mut ids = (0_u32..).map(|number| number.wrapping_mul(2_654_435_761) % 150_000);
    let mut prompt: Vec<u32> = ids.by_ref().take(1_000).collect();
    let mut messages: Vec<Value> = vec![json!({"role": "user", "content": text(300)})];
    let mut calls = Vec::new();
    for index in 0..TURNS {
        let sampled: Vec<u32> = ids.by_ref().take(TOKENS_A_TURN as usize / 2).collect();
        let body =
            json!({"model": "m", "messages": messages, "tools": [{"type": "function"}], "stream": true});
        let request = Bytes::from(body.to_string());
        let reply = json!({"role": "assistant", "content": text(80)});
        let logprobs = sampled
            .iter()
            .map(|id| -f64::from(*id as f32 / 70_001.3))
            .collect();
        calls.push(Call {
            meta: meta(index, &request, prompt.len(), sampled.len()),
            request,
            response: json!({"id": index, "choices": [{"message": reply, "finish_reason": "stop"}]})
                .to_string()
                .into(),
            prompt_token_ids: Some(prompt.clone()),
            completions: vec![Completion {
                token_ids: sampled.clone(),
                logprobs,
                finish_reason: Some("stop".into()),
                ..Completion::default()
            }],
        });
        messages.extend([reply, json!({"role": "user", "content": text(80)})]);
        let kept = if index % BREAK_EVERY == 0 {
            sampled.len() / 2
        } else {
            sampled.len()
        };
        prompt.extend(&sampled[..kept]);
        prompt.extend(ids.by_ref().take(TOKENS_A_TURN as usize - kept));
    }
    calls
}

fn meta(index: u32, request: &Bytes, prompt: usize, sampled: usize) -> CallMeta {
    CallMeta {
        id: CallId::new(),
        index,
        dialect: DialectName::ChatCompletions,
        streamed: true,
        started_unix_ms: 1_800_000_000_000 + 1_000 * u64::from(index),
        first_token_ms: Some(5),
        duration_ms: 900,
        end: CallEnd::Complete,
        status: Some(200),
        error: None,
        hint: None,
        purpose: Purpose::Agent,
        session: Some("ses".into()),
        parent_session: None,
        retry_count: None,
        retry_key: ContentHash::of(request).to_string(),
        model: Some("m".into()),
        sampling: Sampling::neutral(),
        usage: Some(Usage {
            prompt_tokens: prompt as u64,
            completion_tokens: sampled as u64,
            reasoning_tokens: None,
            cached_tokens: None,
        }),
        level: CaptureLevel::Tokens,
        flags: Vec::new(),
        changes: Vec::new(),
        untranslated: Vec::new(),
        policy_version_at_dispatch: Some("7".into()),
        policy_version_at_completion: Some("7".into()),
        request_bytes: request.len() as u64,
        upstream_bytes: 4_000,
    }
}

fn start() -> RolloutStart {
    RolloutStart {
        id: RolloutId::new(),
        owner: OwnerId::new(),
        task: Task {
            id: Some("task".into()),
            instruction: "Write a binary search.".into(),
            ..Task::default()
        },
        sample: 0,
        group: None,
        endpoint: "demo".into(),
        base_url: "http://127.0.0.1:1/v1".into(),
        model: "m".into(),
        backend: "local".into(),
        agent_version: "1".into(),
        mode: Default::default(),
        placement: Default::default(),
        capture: Default::default(),
        started_unix_ms: 1_800_000_000_000,
    }
}

fn outcome(id: RolloutId, builder: &TrajectoryBuilder) -> RolloutOutcome {
    RolloutOutcome {
        id,
        ended: dressage_wire::fault::Ended::Completed,
        fault: None,
        reward: None,
        sandbox: None,
        stages: Vec::new(),
        setup: Vec::new(),
        agent: None,
        files: Default::default(),
        files_extra: Vec::new(),
        totals: builder.totals(),
        late_flags: Vec::new(),
        warnings: Vec::new(),
        wall_ms: 1,
        finished_unix_ms: 1_800_000_100_000,
        unstored: None,
    }
}

/// Counts, and keeps nothing.
#[derive(Default)]
struct Sink(u64);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `VmHWM` or `VmRSS` of this process, in MB.
fn memory_mb(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .unwrap_or_default();
    let kilobytes = line
        .trim_start_matches(':')
        .trim()
        .trim_end_matches(" kB")
        .parse::<f64>();
    kilobytes.unwrap_or_default() / 1_000.0
}

fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let rollouts: u64 = arguments.next().map_or(1_000, |count| count.parse().unwrap());
    let wanted: Vec<Shape> = arguments.map(|shape| shape.parse().unwrap()).collect();
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let start = start();
    store.started(&start).await.unwrap();
    let mut builder = TrajectoryBuilder::new();
    for call in calls() {
        store.call(start.id, &builder.push(call)).await.unwrap();
    }
    builder.finalise();
    store.finished(&outcome(start.id, &builder)).await.unwrap();

    let text = store.export_trajectory(start.id, Vec::new()).await.unwrap();
    let mut document: Document<'_> = serde_json::from_slice(&text).unwrap();
    let began = Instant::now();
    for _ in 1..rollouts {
        let id = RolloutId::new();
        if let Some(start) = &mut document.rollout {
            let mut copy = start.clone().into_owned();
            copy.id = id;
            *start = Cow::Owned(copy);
        }
        if let Some(outcome) = &mut document.outcome {
            let mut copy = outcome.clone().into_owned();
            copy.id = id;
            *outcome = Cow::Owned(copy);
        }
        store.import(&document).await.unwrap();
    }
    say(
        "import_rollouts_per_s",
        per_second(rollouts, began.elapsed()),
        None,
    );

    for shape in Shape::ALL {
        if !wanted.is_empty() && !wanted.contains(&shape) {
            continue;
        }
        for (format, compression, name) in [
            (Format::Jsonl, Compression::None, "jsonl"),
            (Format::Jsonl, Compression::Zstd, "jsonl_zst"),
            (Format::Parquet, Compression::None, "parquet"),
        ] {
            let began = Instant::now();
            let counts = Arc::new(ExportCounts::default());
            let writer = RowWriter::new(Sink::default(), shape, format, compression).unwrap();
            let written = store
                .export(Export::default(), writer, counts.clone())
                .await
                .unwrap()
                .0;
            let took = began.elapsed();
            assert_eq!(counts.written().0, rollouts);
            let goal = (shape == Shape::Native && name == "jsonl").then_some(100.0);
            say(
                &format!("export_{shape}_{name}_mb_per_s"),
                per_second(written, took) / 1e6,
                goal,
            );
            say(
                &format!("export_{shape}_{name}_rollouts_per_s"),
                per_second(rollouts, took),
                None,
            );
        }
        say(&format!("export_{shape}_peak_mb"), memory_mb("VmHWM"), None);
    }
    store.close().await;

    let mut findings = Findings::default();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        line(&text, &mut findings);
    }
    assert_eq!(findings.list, []);
    say(
        "validate_tokens_per_s",
        per_second(findings.tally.tokens, began.elapsed()),
        Some(1e6),
    );

    let records = document.records().unwrap();
    let (began, mut tokens) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(1) {
        let trajectory = Trajectory::restore(records.clone());
        tokens += u64::from(TURNS * TOKENS_A_TURN) + 1_000;
        assert_eq!(trajectory.calls().count(), TURNS as usize);
    }
    say(
        "graph_tokens_per_s",
        per_second(tokens, began.elapsed()),
        Some(1e6),
    );
}
