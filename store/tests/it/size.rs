//! The promise on size: a rollout of 100 turns and 60,000 tokens in which every turn breaks inside the completion before
//! takes less than 1 MB on disk and 2 MB in memory.

use crate::allocation;
use crate::samples;
use bytes::Bytes;
use dressage_store::Store;
use dressage_wire::call::{Call, Completion, TopLogprob, Usage};
use dressage_wire::rollout::Recorder;
use dressage_wire::trajectory::TrajectoryBuilder;
use serde_json::{Value, json};

const TURNS: u32 = 100;
const NEW_TOKENS_A_TURN: usize = 600;
const SAMPLED_TOKENS_A_TURN: usize = 300;

struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn ids(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.throw(150_000) as u32).collect()
    }

    /// Words as of a text: few of them make up most of it.
    fn text(&mut self, words: usize) -> String {
        let word = |dice: &mut Self| {
            let rank = dice.throw(3_000) * dice.throw(1_000) / 1_000;
            format!("{:x} ", (rank + 17).wrapping_mul(2_654_435_761) % 1_000_003)
        };
        (0..words).map(|_| word(self)).collect()
    }
}

/// How many alternatives of each sampled token are kept.
fn rollout(alternatives: usize) -> Vec<Call> {
    let mut dice = Dice(1);
    let mut prompt = dice.ids(NEW_TOKENS_A_TURN - SAMPLED_TOKENS_A_TURN);
    let mut messages: Vec<Value> = vec![samples::message("user", &dice.text(200))];
    let mut calls = Vec::new();
    for index in 0..TURNS {
        let sampled = dice.ids(SAMPLED_TOKENS_A_TURN);
        let mut call = samples::call(index, &messages);
        call.meta.usage = Some(Usage {
            prompt_tokens: prompt.len() as u64,
            completion_tokens: sampled.len() as u64,
            reasoning_tokens: None,
            cached_tokens: None,
        });
        call.prompt_token_ids = Some(prompt.clone());
        let mut logprob = || -f64::from(dice.throw(1 << 24) as f32 / 3_000_000.0);
        call.completions = vec![Completion {
            token_ids: sampled.clone(),
            logprobs: sampled.iter().map(|_| logprob()).collect(),
            top_logprobs: sampled
                .iter()
                .map(|id| {
                    let alternative = |at| TopLogprob {
                        token: format!("token_id:{}", u64::from(*id) + at),
                        token_id: None,
                        logprob: logprob(),
                    };
                    (0..alternatives as u64).map(alternative).collect()
                })
                .filter(|position: &Vec<_>| !position.is_empty())
                .collect(),
            finish_reason: Some("tool_calls".into()),
            ..Completion::default()
        }];
        let said = dice.text(150);
        let reply =
            json!({"role": "assistant", "content": said, "tool_calls": [{"id": format!("call-{index}")}]});
        call.response = Bytes::from(json!({"id": index, "choices": [{"message": reply}]}).to_string());
        messages.extend([reply, samples::message("tool", &dice.text(150))]);
        calls.push(call);

        // The first half of what was sampled comes back; the rest was written anew.
        prompt.extend(&sampled[..SAMPLED_TOKENS_A_TURN / 2]);
        prompt.extend(dice.ids(NEW_TOKENS_A_TURN - SAMPLED_TOKENS_A_TURN / 2));
    }
    calls
}

async fn stored_bytes(calls: Vec<Call>) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let start = samples::start();
    let empty = {
        store.close().await;
        let bytes = std::fs::metadata(store.path()).unwrap().len();
        println!("an empty database: {} kB", bytes / 1_000);
        bytes
    };
    let store = Store::open(directory.path()).await.unwrap();
    store.started(&start).await.unwrap();
    let mut builder = TrajectoryBuilder::new();
    for call in calls {
        store.call(start.id, &builder.push(call)).await.unwrap();
    }
    store.finished(&samples::outcome(start.id)).await.unwrap();
    store.close().await;
    std::fs::metadata(store.path()).unwrap().len() - empty
}

#[tokio::test]
async fn a_hundred_turns_that_all_break_take_less_than_a_megabyte_on_disk() {
    let calls = rollout(0);
    let last = calls.last().unwrap();
    let tokens = last.prompt_token_ids.as_ref().unwrap().len() + SAMPLED_TOKENS_A_TURN;
    assert_eq!(tokens, TURNS as usize * NEW_TOKENS_A_TURN, "60,000");
    let sent: usize = calls.iter().map(|call| call.request.len()).sum();
    let bytes = stored_bytes(calls).await;
    println!(
        "100 turns, {tokens} tokens, {} kB sent by the agent: {} kB stored",
        sent / 1_000,
        bytes / 1_000
    );
    assert!(bytes < 1_000_000, "{bytes} bytes");
    println!(
        "with five alternatives a token: {} kB stored",
        stored_bytes(rollout(5)).await / 1_000
    );
}

#[test]
fn a_hundred_turns_that_all_break_take_less_than_two_megabytes_of_memory() {
    // Clones, so that what a call itself takes is allocated and freed within the measurement.
    let calls = rollout(0);
    let before = allocation::live_bytes();
    allocation::take_peak_bytes();
    let mut builder = TrajectoryBuilder::new();
    for call in &calls {
        drop(builder.push(call.clone()));
    }
    let held = allocation::live_bytes() - before;
    let peak = allocation::take_peak_bytes() - before;
    println!(
        "held: {} kB; at most, with a call being taken in: {} kB",
        held / 1_000,
        peak / 1_000
    );
    assert!(
        held > 400_000,
        "{held} bytes: what is measured must hold 90,000 ids at least"
    );
    assert!(peak < 2_000_000, "{peak} bytes");
    assert_eq!(
        builder.totals().prefix_breaks,
        u64::from(TURNS) - 1,
        "every turn breaks"
    );
    builder.finalise();
    let trained: u64 = builder
        .sequences()
        .flat_map(|sequence| sequence.loss_mask)
        .map(u64::from)
        .sum();
    assert_eq!(trained, u64::from(TURNS) * SAMPLED_TOKENS_A_TURN as u64);
}
