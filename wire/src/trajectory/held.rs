use crate::call::{CallEnd, CallMeta, CallSummary, CaptureLevel, Completion, Flag, Purpose};
use crate::graph::{NodeId, TokenGraph};
use crate::ids::CallId;
use crate::rollout::Totals;
use crate::trajectory::record::{CallRecord, Delta, PrefixBreak};
use crate::trajectory::{ContentHash, Keep, Selection, Untrained, late};
use std::collections::HashMap;

/// All calls of a rollout, held compactly: each token and each message once.
///
/// Calls are named by their `meta.index`.
#[derive(Debug, Default)]
pub struct Trajectory {
    pub(crate) tokens: TokenGraph,
    /// Lines of messages, by their numbers in `contents`.
    pub(crate) messages: TokenGraph,
    contents: Vec<ContentHash>,
    numbers: HashMap<ContentHash, u32>,
    pub(crate) calls: Vec<Held>,
    positions: HashMap<u32, usize>,
    selection: Selection,
}

/// A call in the order of recording.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) meta: CallMeta,
    /// Its line of messages; `None` where that rests on a call that is missing.
    messages: Option<NodeId>,
    /// Its line of tokens, where the prompt's ids were captured.
    pub(crate) tokens: Option<HeldTokens>,
    /// Tokens sampled over all choices.
    sampled: u64,
    /// Index of the call whose conversation it goes on from.
    pub(crate) continues: Option<u32>,
    prefix_break: Option<PrefixBreak>,
    /// Flags given when all calls were known.
    pub(crate) late: Vec<Flag>,
}

/// Where the tokens of a call are.
#[derive(Debug)]
pub(crate) struct HeldTokens {
    /// End of the prompt.
    pub(crate) prompt: NodeId,
    /// End of the first completion.
    pub(crate) end: NodeId,
    /// A log-probability for each token of the first completion; fewer or more where the capture is at odds.
    pub(crate) logprobs: Box<[f64]>,
}

/// What a trajectory says of a call.
#[derive(Clone, Debug)]
pub struct CallView<'a> {
    /// What is small. Its flags are those it was recorded with.
    pub meta: &'a CallMeta,
    /// All flags, with those given when all calls were known.
    pub flags: Vec<Flag>,
    /// Whether its completion is trained, in one of the sequences.
    pub trainable: bool,
    /// Why not, where it is not.
    pub untrained: Option<Untrained>,
    /// Index of the call whose conversation it goes on from.
    pub continues: Option<u32>,
    /// How its prompt differs from that call's prompt and completion, where it does.
    pub prefix_break: Option<&'a PrefixBreak>,
}

impl Trajectory {
    /// The state that the stored records were taken from. They must be in the order of recording.
    ///
    /// A call whose ids rest on a call that is missing is held without ids, flagged
    /// [`Flag::PromptIdsMissing`].
    #[must_use]
    pub fn restore(records: impl IntoIterator<Item = CallRecord>) -> Self {
        let mut trajectory = Self::default();
        for record in records {
            trajectory.hold_again(record);
        }
        trajectory
    }

    /// Flags that calls get when all are known; those of the calls that have any. Also kept here.
    ///
    /// Superseded is an attempt that did not complete, or that a marked retry followed, when a later attempt took its
    /// place. Abandoned is a complete call that nothing goes on from, when something goes on from its twin.
    pub fn finalise(&mut self) -> Vec<(CallId, Vec<Flag>)> {
        for (position, flags) in late::flags(self) {
            if let Some(held) = self.calls.get_mut(position) {
                held.late = flags;
            }
        }
        let flagged = self.calls.iter().filter(|held| !held.late.is_empty());
        flagged.map(|held| (held.meta.id, held.late.clone())).collect()
    }

    /// Says what is trained, here and in the sequences made from here on.
    pub fn select(&mut self, selection: Selection) {
        self.selection = selection;
    }

    /// What is trained.
    #[must_use]
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// What the calls add up to.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for held in &self.calls {
            let summary = self.summary_of(held);
            totals.calls += 1;
            totals.prompt_tokens += summary.prompt_tokens;
            totals.completion_tokens += summary.completion_tokens;
            totals.prefix_breaks += u64::from(summary.prefix_break);
            if self.trainable(held) {
                totals.trainable_calls += 1;
                totals.trainable_tokens += held.sampled;
            }
            if held.meta.purpose == Purpose::Agent && held.meta.end == CallEnd::Complete {
                totals.level = Some(
                    totals
                        .level
                        .map_or(held.meta.level, |level| level.min(held.meta.level)),
                );
            }
        }
        totals
    }

    /// The calls, in the order of recording.
    pub fn calls(&self) -> impl Iterator<Item = CallView<'_>> {
        self.calls.iter().map(|held| CallView {
            meta: &held.meta,
            flags: held.flags().collect(),
            trainable: self.trainable(held),
            untrained: self.untrained(held),
            continues: held.continues,
            prefix_break: held.prefix_break.as_ref(),
        })
    }

    /// The numbers of each call, late flags included, in the order of recording.
    pub fn summaries(&self) -> impl Iterator<Item = CallSummary> + '_ {
        self.calls.iter().map(|held| self.summary_of(held))
    }

    /// The ids of a call's prompt, where they were captured.
    #[must_use]
    pub fn prompt_token_ids(&self, index: u32) -> Option<Vec<u32>> {
        let tokens = self.at_index(index)?.tokens.as_ref()?;
        Some(self.tokens.line(tokens.prompt))
    }

    /// Hashes of the messages of a call's request, in order; `None` without such a call.
    #[must_use]
    pub fn messages(&self, index: u32) -> Option<Vec<ContentHash>> {
        let numbers = self.messages.line(self.at_index(index)?.messages?);
        numbers
            .iter()
            .map(|number| self.contents.get(usize::try_from(*number).ok()?).copied())
            .collect()
    }

    /// Whether a call is trained on: a complete, clean turn that was made for something selected.
    pub(crate) fn trainable(&self, held: &Held) -> bool {
        self.untrained(held).is_none()
    }

    /// Why a call is not trained on. Sub-agents, titles and summaries are only if they are selected, foreign calls never.
    fn untrained(&self, held: &Held) -> Option<Untrained> {
        if !self.selection.trains(held.meta.purpose) {
            return Some(Untrained::Purpose);
        }
        if held.meta.end != CallEnd::Complete {
            return Some(Untrained::End);
        }
        if let Some(flag) = held.flags().find(|flag| flag.blocks_training()) {
            return Some(Untrained::Flag(flag));
        }
        let tokens = held
            .tokens
            .as_ref()
            .filter(|_| held.meta.level == CaptureLevel::Tokens);
        let Some(tokens) = tokens else {
            return Some(Untrained::Level);
        };
        if self.selection.truncated == Keep::Drop && held.flags().any(|flag| flag == Flag::Truncated) {
            return Some(Untrained::Truncated);
        }
        let sampled = self.tokens.length(tokens.end) - self.tokens.length(tokens.prompt);
        if sampled == 0 {
            return Some(Untrained::Empty);
        }
        let fits = sampled as u64 == held.sampled
            && sampled == tokens.logprobs.len()
            && tokens
                .logprobs
                .iter()
                .all(|logprob| logprob.is_finite() && *logprob <= 0.0);
        (!fits).then_some(Untrained::Unfit)
    }

    pub(crate) fn at_index(&self, index: u32) -> Option<&Held> {
        self.calls.get(*self.positions.get(&index)?)
    }

    pub(crate) fn position(&self, index: u32) -> Option<usize> {
        self.positions.get(&index).copied()
    }

    /// `wanted`, or where a call has that index already, the next that is free.
    pub(crate) fn free_index(&self, wanted: u32) -> u32 {
        if !self.positions.contains_key(&wanted) {
            return wanted;
        }
        let highest = self.positions.keys().max().copied().unwrap_or_default();
        highest.saturating_add(1)
    }

    /// The number of a content, and whether it is new.
    pub(crate) fn number(&mut self, hash: ContentHash) -> (u32, bool) {
        if let Some(known) = self.numbers.get(&hash) {
            return (*known, false);
        }
        let number = u32::try_from(self.contents.len()).unwrap_or(u32::MAX);
        self.contents.push(hash);
        self.numbers.insert(hash, number);
        (number, true)
    }

    /// Adds the first completion to the line of a prompt.
    pub(crate) fn complete(&mut self, prompt: NodeId, completions: &[Completion], index: u32) -> HeldTokens {
        let first = completions.first();
        let sampled = first.map_or(&[][..], |choice| &choice.token_ids);
        HeldTokens {
            prompt,
            end: self.tokens.insert(prompt, sampled, index).node,
            logprobs: first
                .map(|choice| choice.logprobs.as_slice().into())
                .unwrap_or_default(),
        }
    }

    /// Takes a call in; its index must be free.
    pub(crate) fn hold(&mut self, record: &CallRecord, messages: Option<NodeId>, tokens: Option<HeldTokens>) {
        self.positions.insert(record.meta.index, self.calls.len());
        self.calls.push(Held {
            meta: record.meta.clone(),
            messages,
            tokens,
            sampled: record
                .completions
                .iter()
                .map(|choice| choice.token_ids.len() as u64)
                .sum(),
            continues: record.continues,
            prefix_break: record.prefix_break.clone(),
            late: Vec::new(),
        });
    }

    fn hold_again(&mut self, mut record: CallRecord) {
        let index = self.free_index(record.meta.index);
        record.meta.index = index;
        let messages = &record.request.messages;
        let numbers: Vec<u32> = messages.tail.iter().map(|hash| self.number(*hash).0).collect();
        let base = self
            .base_of(messages)
            .and_then(|held| held.map_or(Some(TokenGraph::ROOT), |held| held.messages));
        let line = base.and_then(|base| resume(&mut self.messages, base, messages.shared, &numbers, index));

        let prompt = record.prompt.as_ref().and_then(|prompt| {
            let base = match self.base_of(prompt)? {
                None => TokenGraph::ROOT,
                Some(held) => held.tokens.as_ref()?.end,
            };
            resume(&mut self.tokens, base, prompt.shared, &prompt.tail, index)
        });
        if prompt.is_none() && record.prompt.is_some() {
            record.meta.flags.push(Flag::PromptIdsMissing);
        }
        let tokens = prompt.map(|prompt| self.complete(prompt, &record.completions, index));
        self.hold(&record, line, tokens);
    }

    /// The call a delta shares with: `None` where it is missing, `Some(None)` where it shares nothing.
    #[expect(clippy::option_option, reason = "missing and not needed are different things")]
    fn base_of<T>(&self, delta: &Delta<T>) -> Option<Option<&Held>> {
        match delta.base {
            None => Some(None),
            Some(index) => self.at_index(index).map(Some),
        }
    }

    fn summary_of(&self, held: &Held) -> CallSummary {
        let counted = held.meta.usage.unwrap_or_default();
        let prompt = held
            .tokens
            .as_ref()
            .map(|tokens| self.tokens.length(tokens.prompt) as u64);
        CallSummary {
            id: held.meta.id,
            index: held.meta.index,
            end: held.meta.end,
            purpose: held.meta.purpose,
            level: held.meta.level,
            prompt_tokens: prompt.unwrap_or(counted.prompt_tokens),
            completion_tokens: if held.sampled == 0 {
                counted.completion_tokens
            } else {
                held.sampled
            },
            flags: held.flags().collect(),
            duration_ms: held.meta.duration_ms,
            prefix_break: held.prefix_break.is_some(),
        }
    }
}

impl Held {
    pub(crate) fn flags(&self) -> impl Iterator<Item = Flag> + '_ {
        self.meta.flags.iter().chain(&self.late).copied()
    }

    pub(crate) fn ended_unix_ms(&self) -> u64 {
        self.meta.started_unix_ms.saturating_add(self.meta.duration_ms)
    }
}

/// Goes on with `tail` after `shared` symbols of the line to `base`; `None` where that line is shorter.
fn resume(graph: &mut TokenGraph, base: NodeId, shared: u32, tail: &[u32], owner: u32) -> Option<NodeId> {
    let from = graph.place_on(base, usize::try_from(shared).ok()?)?;
    Some(graph.insert(from, tail, owner).node)
}
