//! A turn as sampled tokens: ids, and log-probabilities that depend on nothing but seed, choice, position and id.

use super::template::{Message, MessageToolCall, render_own_turn, spaced_json};
use super::{Tokenizer, Turn, special};
use crate::model::request::ChatRequest;
use serde_json::Value;

/// The ids a model samples for a turn, the end of the turn last.
pub(super) fn sampled_ids(turn: &Turn, request: &ChatRequest) -> Vec<u32> {
    let tokenizer = Tokenizer::get();
    let call = |call: &super::ToolCall| MessageToolCall {
        name: call.name.clone(),
        arguments: match &call.arguments {
            Value::String(raw) => raw.clone(),
            object => spaced_json(object),
        },
    };
    let message = Message {
        role: "assistant".into(),
        content: turn.text.clone(),
        reasoning: turn.reasoning.clone(),
        tool_calls: turn.tool_calls.iter().map(call).collect(),
    };
    let mut ids = tokenizer.encode(&render_own_turn(&message, request.generation));
    ids.extend(tokenizer.special_id(special::IM_END));
    ids
}

/// A token that could have been, and how probable it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Alternative {
    /// Its id.
    pub id: u32,
    /// Its log-probability: single precision, at most 0.
    pub logprob: f32,
}

/// Where log-probabilities come from: a hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampler {
    key: u64,
}

impl Sampler {
    /// The sampler of a choice.
    pub(super) fn new(server_seed: u64, request_seed: i64, choice: u32) -> Self {
        let key = mix(server_seed ^ mix(request_seed.cast_unsigned()));
        Self {
            key: mix(key ^ u64::from(choice)),
        }
    }

    /// The log-probability of the token sampled at a position: mostly near 0, now and then a doubtful one.
    pub(super) fn logprob(self, position: usize, id: u32) -> f32 {
        let unit = self.unit(position, u64::from(id));
        if unit < 0.9 {
            -(0.002 + 0.03 * unit)
        } else {
            -(unit - 0.9) * 8.0 - 0.05
        }
    }

    /// `count` tokens at a position, the sampled one first, the others less and less probable. The probabilities of all
    /// sum to less than 1.
    pub(super) fn alternatives(self, position: usize, id: u32, count: usize) -> Vec<Alternative> {
        let sampled = Alternative {
            id,
            logprob: self.logprob(position, id),
        };
        let vocabulary = u64::from(Tokenizer::get().vocabulary_size());
        // Each step down is over ln 2, so that the others together stay below what the sampled token leaves.
        let rest = (-f64::from(sampled.logprob).exp_m1()).ln() as f32;
        let mut logprob = sampled.logprob.min(rest);
        let others = (1_u64..).map(|rank| {
            let draw = mix(self.key ^ mix(position as u64) ^ (rank << 40));
            (u32::try_from(draw % vocabulary).unwrap_or(0), draw)
        });
        let others = others
            .filter(|&(other, _)| other != id)
            .take(count.saturating_sub(1))
            .map(|(other, draw)| {
                logprob -= 0.7 + unit(draw);
                Alternative { id: other, logprob }
            });
        std::iter::once(sampled).chain(others).take(count).collect()
    }

    fn unit(self, position: usize, salt: u64) -> f32 {
        unit(mix(self.key ^ mix((position as u64) << 20 | salt)))
    }
}

/// The last step of SplitMix64: every bit of the input moves every bit of the output.
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A number in [0, 1) from the upper bits.
fn unit(draw: u64) -> f32 {
    (draw >> 40) as f32 / (1_u64 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_are_led_by_the_sampled_token_and_sum_to_less_than_one() {
        for position in 0..2000 {
            let sampler = Sampler::new(1, 2, 0);
            let alternatives = sampler.alternatives(position, 300, 20);
            assert_eq!(alternatives.len(), 20);
            assert_eq!(
                alternatives[0],
                Alternative {
                    id: 300,
                    logprob: sampler.logprob(position, 300)
                }
            );
            assert!(
                alternatives
                    .windows(2)
                    .all(|pair| pair[0].logprob > pair[1].logprob)
            );
            let sum: f64 = alternatives
                .iter()
                .map(|each| f64::from(each.logprob).exp())
                .sum();
            assert!(sum < 1.0, "{position}: {sum}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_log_probabilities_and_another_gives_others() {
        let logprobs = |seed| {
            (0..50)
                .map(|at| Sampler::new(7, seed, 0).logprob(at, 300))
                .collect::<Vec<_>>()
        };
        assert_eq!(logprobs(1), logprobs(1));
        assert_ne!(logprobs(1), logprobs(2));
    }
}
