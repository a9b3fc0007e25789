use crate::call::{CallEnd, CallMeta, Purpose};
use crate::graph::{Inserted, NodeId, TokenGraph};
use crate::trajectory::ContentHash;
use crate::trajectory::held::{Held, Trajectory};
use crate::trajectory::record::PrefixBreak;
use crate::trajectory::shape::BodyShape;
use bytes::Bytes;
use std::collections::HashMap;

/// How many of the latest candidates are looked at; bounds the cost of a call that many others look like.
const CANDIDATES: usize = 16;

/// Finds which earlier call a call goes on from. Arrival is not lineage: parallel calls go on from their own.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    /// Lines of messages in canonical form.
    lines: TokenGraph,
    /// Calls by the end of their line, in the order of recording.
    ends: HashMap<NodeId, Vec<u32>>,
    /// What is known of each call.
    known: HashMap<u32, Known>,
    /// Canonical number of each message by its content's number.
    canonical: HashMap<u32, u32>,
    /// The first content's number with a canonical form.
    numbers: HashMap<ContentHash, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    line: NodeId,
    reply: Option<ContentHash>,
}

/// A call whose place is sought.
pub(crate) struct Seeker<'a> {
    pub(crate) meta: &'a CallMeta,
    pub(crate) shape: &'a BodyShape,
    pub(crate) messages: &'a [Bytes],
    /// Content numbers of `messages`.
    pub(crate) numbers: &'a [u32],
    pub(crate) prompt: Option<Inserted>,
    pub(crate) response: &'a [u8],
}

impl Lineage {
    /// Takes a call in. Returns the index of the call it goes on from, and where its prompt breaks with that.
    pub(crate) fn place(
        &mut self,
        trajectory: &Trajectory,
        seeker: &Seeker<'_>,
    ) -> (Option<u32>, Option<PrefixBreak>) {
        let symbols = self.canonical_line(seeker);
        let index = seeker.meta.index;
        let line = self.lines.insert(TokenGraph::ROOT, &symbols, index).node;
        let base = self
            .by_messages(trajectory, seeker, line)
            .or_else(|| by_tokens(trajectory, seeker))
            .or_else(|| self.by_session(trajectory, seeker, line));
        let prefix_break = base.and_then(|base| self.explain(trajectory, seeker, line, base));

        self.ends.entry(line).or_default().push(index);
        let reply = (seeker.shape.reply)(seeker.response);
        self.known.insert(index, Known { line, reply });
        (base, prefix_break)
    }

    fn canonical_line(&mut self, seeker: &Seeker<'_>) -> Vec<u32> {
        let number = |(number, message): (&u32, &Bytes)| {
            if let Some(known) = self.canonical.get(number) {
                return *known;
            }
            let text = std::str::from_utf8(message).unwrap_or_default();
            let changed = (seeker.shape.canonical)(text);
            let hash = ContentHash::of(changed.as_deref().map_or(message, str::as_bytes));
            let canonical = *self.numbers.entry(hash).or_insert(*number);
            self.canonical.insert(*number, canonical);
            canonical
        };
        seeker.numbers.iter().zip(seeker.messages).map(number).collect()
    }

    /// The call with the longest list of messages that this one's begins with and adds to. Of several with the same
    /// list, the one whose reply comes next here; then the one that shares most tokens.
    fn by_messages(&self, trajectory: &Trajectory, seeker: &Seeker<'_>, line: NodeId) -> Option<u32> {
        let length = self.lines.length(line);
        let shorter = self
            .lines
            .upwards(line)
            .filter(|node| self.lines.length(*node) < length);
        let (node, ending) = shorter
            .filter_map(|node| Some((node, self.ends.get(&node)?)))
            .next()?;
        let next = seeker
            .messages
            .get(self.lines.length(node))
            .and_then(|message| (seeker.shape.turn)(std::str::from_utf8(message).ok()?));
        ending
            .iter()
            .rev()
            .take(CANDIDATES)
            .filter_map(|index| trajectory.at_index(*index))
            .max_by_key(|held| {
                let reply = self.known.get(&held.meta.index).and_then(|known| known.reply);
                (
                    next.is_some() && next == reply,
                    shared_tokens(trajectory, seeker, held),
                    held.meta.session == seeker.meta.session,
                    held.meta.purpose == seeker.meta.purpose,
                    held.meta.end == CallEnd::Complete,
                    held.meta.index,
                )
            })
            .map(|held| held.meta.index)
    }

    /// The latest complete call of the same session and purpose that had ended before this one began: its messages were
    /// written anew, as compaction does.
    fn by_session(&self, trajectory: &Trajectory, seeker: &Seeker<'_>, line: NodeId) -> Option<u32> {
        if seeker.meta.session.is_none() || seeker.meta.purpose == Purpose::Foreign {
            return None;
        }
        let mut latest = trajectory.calls.iter().rev().take(CANDIDATES);
        let found = latest.find(|held| {
            let shares_messages = self
                .known
                .get(&held.meta.index)
                .is_some_and(|known| self.lines.shared(line, known.line) > 0);
            held.meta.session == seeker.meta.session
                && held.meta.purpose == seeker.meta.purpose
                && held.meta.end == CallEnd::Complete
                && held.ended_unix_ms() <= seeker.meta.started_unix_ms
                && !self.same_line(held, line)
                && (shares_messages || shared_tokens(trajectory, seeker, held) > 0)
        })?;
        Some(found.meta.index)
    }

    /// Whether a call asked the very same: then this one is its twin, and goes on from what that went on from.
    fn same_line(&self, held: &Held, line: NodeId) -> bool {
        self.known
            .get(&held.meta.index)
            .is_some_and(|known| known.line == line)
    }

    fn explain(
        &self,
        trajectory: &Trajectory,
        seeker: &Seeker<'_>,
        line: NodeId,
        base: u32,
    ) -> Option<PrefixBreak> {
        let prompt = seeker.prompt?.node;
        let held = trajectory.at_index(base)?.tokens.as_ref()?;
        let at = trajectory.tokens.shared(prompt, held.end);
        let expected_token_id = trajectory.tokens.symbol(held.end, at)?;
        let messages = self.lines.shared(line, self.known.get(&base)?.line);
        Some(PrefixBreak {
            base,
            at: u32::try_from(at).ok()?,
            inside_completion: at >= trajectory.tokens.length(held.prompt),
            expected_token_id,
            found_token_id: trajectory.tokens.symbol(prompt, at),
            message: (messages < self.lines.length(line))
                .then(|| u32::try_from(messages).ok())
                .flatten(),
        })
    }
}

/// The call whose whole prompt this one's begins with, where that is the longest prefix that is shared with any.
fn by_tokens(trajectory: &Trajectory, seeker: &Seeker<'_>) -> Option<u32> {
    let prompt = seeker.prompt?;
    let base = prompt.shared_with?;
    let base_length = trajectory
        .tokens
        .length(trajectory.at_index(base)?.tokens.as_ref()?.prompt);
    (prompt.shared > base_length).then_some(base)
}

fn shared_tokens(trajectory: &Trajectory, seeker: &Seeker<'_>, held: &Held) -> usize {
    match (seeker.prompt, &held.tokens) {
        (Some(prompt), Some(tokens)) => trajectory.tokens.shared(prompt.node, tokens.end),
        _ => 0,
    }
}
