//! A closed loop of clients: each has one connection, asks, reads the reply to its end, checks it, asks again.

/// One client, and its turns.
mod turn;

use super::process::{TreeUsage, tree_usage};
use super::upstream::{MODEL, REPLY_TOKENS};
use crate::model::bench_reply;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, LocalSet};
use turn::{Job, Turn, TurnError, client};

/// Longest a turn may take.
const TURN_LIMIT: Duration = Duration::from_secs(60);

/// What load to make.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Where to ask.
    pub address: SocketAddr,
    /// Bearer token.
    pub api_key: String,
    /// Whether replies are streamed.
    pub streamed: bool,
    /// Whether the clients themselves ask for log-probabilities and ids, as they must where nothing in between does.
    pub ask_for_tokens: bool,
    /// Connections at once.
    pub connections: usize,
    /// Turns over all connections.
    pub turns: usize,
    /// No turn is begun after this.
    pub limit: Duration,
    /// Bytes of the prompt.
    pub prompt_bytes: usize,
    /// The process whose tree is watched.
    pub watched: Option<u32>,
}

/// What the load came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Turns that passed every check.
    pub turns: usize,
    /// Turns that did not.
    pub errors: usize,
    /// What was wrong with the first of them.
    pub first_error: Option<String>,
    /// From the first request to the last reply.
    pub wall_s: f64,
    /// Turns a second.
    pub turns_per_s: f64,
    /// Half of the turns took less.
    pub turn_p50_ms: f64,
    /// 99 of 100 turns took less.
    pub turn_p99_ms: f64,
    /// From the request to the first event; half of the turns took less.
    pub first_token_p50_ms: f64,
    /// The same for 99 of 100.
    pub first_token_p99_ms: f64,
    /// Processor seconds of the watched tree for 1000 turns.
    pub cpu_s_per_1000_turns: f64,
    /// Highest memory of the watched tree.
    pub rss_peak_kb: u64,
    /// Turns in which log-probabilities reached the client.
    pub leaked_logprobs_turns: usize,
    /// Turns in which ids reached the client.
    pub leaked_ids_turns: usize,
    /// Bytes of all replies.
    pub reply_bytes: u64,
}

/// Makes the load, after a few turns to warm up, and reports on it.
pub async fn run(options: LoadOptions) -> LoadReport {
    let warm_up = LoadOptions {
        connections: 1,
        turns: 3,
        watched: None,
        ..options.clone()
    };
    make(warm_up).await;
    make(options).await
}

async fn make(options: LoadOptions) -> LoadReport {
    let begun = Instant::now();
    let before = options.watched.map(tree_usage).unwrap_or_default();
    let (connections, watched) = (options.connections, options.watched);
    let job = Rc::new(Job {
        body: request_body(&options).into(),
        authority: options.address.to_string(),
        text: bench_reply::text(REPLY_TOKENS),
        left: Cell::new(options.turns),
        deadline: begun + options.limit,
        options,
    });
    let mut peak = before;
    let mut results = Vec::new();
    let local = LocalSet::new();
    local
        .run_until(async {
            let mut clients = JoinSet::new();
            for _ in 0..connections {
                clients.spawn_local(client(job.clone()));
            }
            let mut sample = tokio::time::interval(Duration::from_millis(100));
            loop {
                tokio::select! {
                    ended = clients.join_next() => match ended {
                        Some(turns) => results.extend(turns.unwrap_or_default()),
                        None => break,
                    },
                    _ = sample.tick() => {
                        let now = watched.map(tree_usage).unwrap_or_default();
                        peak.rss_kb = peak.rss_kb.max(now.rss_kb);
                    }
                }
            }
        })
        .await;
    let wall = begun.elapsed();
    let after = watched.map(tree_usage).unwrap_or_default();
    peak.rss_kb = peak.rss_kb.max(after.rss_kb);
    report(
        results,
        wall,
        TreeUsage {
            cpu_s: after.cpu_s - before.cpu_s,
            ..peak
        },
    )
}

fn report(results: Vec<Result<Turn, TurnError>>, wall: Duration, usage: TreeUsage) -> LoadReport {
    let mut report = LoadReport {
        wall_s: wall.as_secs_f64(),
        rss_peak_kb: usage.rss_kb,
        ..LoadReport::default()
    };
    let (mut took, mut first) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(turn) => {
                took.push(turn.took.as_secs_f64() * 1e3);
                first.push(turn.first_token.as_secs_f64() * 1e3);
                report.reply_bytes += turn.bytes;
                report.leaked_logprobs_turns += usize::from(turn.leaked_logprobs);
                report.leaked_ids_turns += usize::from(turn.leaked_ids);
            }
            Err(error) => {
                report.errors += 1;
                report.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }
    report.turns = took.len();
    report.turns_per_s = took.len() as f64 / report.wall_s;
    report.cpu_s_per_1000_turns = usage.cpu_s / took.len().max(1) as f64 * 1e3;
    took.sort_by(f64::total_cmp);
    first.sort_by(f64::total_cmp);
    report.turn_p50_ms = quantile(&took, 0.5);
    report.turn_p99_ms = quantile(&took, 0.99);
    report.first_token_p50_ms = quantile(&first, 0.5);
    report.first_token_p99_ms = quantile(&first, 0.99);
    report
}

/// A quantile of sorted values; 0 of none.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last as f64 * share).round() as usize)
        .copied()
        .unwrap_or(0.0)
}

/// A request as an agent makes it: a long system prompt, a tool, a short question.
fn request_body(options: &LoadOptions) -> String {
    const SAYING: &str = "Read the file, then edit it so that the tests pass. ";
    let system = SAYING.repeat(options.prompt_bytes / SAYING.len() + 1);
    let parameters =
        json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]});
    let function = json!({"name": "bash", "description": "Runs a command", "parameters": parameters});
    let mut members = serde_json::Map::new();
    let mut set = |name: &str, value: Value| drop(members.insert(name.into(), value));
    set("model", MODEL.into());
    set("max_tokens", REPLY_TOKENS.into());
    set(
        "messages",
        json!([{"role": "system", "content": system}, {"role": "user", "content": "hello 🎉"}]),
    );
    set("tools", json!([{"type": "function", "function": function}]));
    if options.streamed {
        set("stream", true.into());
        set("stream_options", json!({"include_usage": true}));
    }
    if options.ask_for_tokens {
        set("logprobs", true.into());
        set("top_logprobs", 5.into());
        set("return_token_ids", true.into());
    }
    Value::from(members).to_string()
}
