use crate::call::{Flag, Purpose};
use crate::graph::NodeId;
use crate::trajectory::held::{HeldTokens, Trajectory};
use crate::trajectory::late;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// A root-to-leaf token path, and which calls' completions lie on it. Light: the tokens are not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequencePlan {
    /// Index of the call whose completion ends it.
    pub leaf: u32,
    /// Who made that call, and what for.
    pub purpose: Purpose,
    /// The agent's own id of the conversation.
    pub session: Option<String>,
    /// Flags of the leaf.
    pub flags: Vec<Flag>,
    /// Its length in tokens.
    pub tokens: usize,
    /// Completions on it, in order, apart from each other. All other tokens are context.
    pub turns: Vec<TurnSpan>,
}

/// Where a call's completion lies in a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnSpan {
    /// Index of the call.
    pub call: u32,
    /// Position of its first sampled token.
    pub start: usize,
    /// Position after its last.
    pub end: usize,
    /// Whether it is trained in this sequence. Each completion that can be trained is so in exactly one.
    pub trained: bool,
}

/// A sequence with its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// What it is made of.
    pub plan: SequencePlan,
    /// Every id from the root to the leaf.
    pub token_ids: Vec<u32>,
    /// For each id, 1 where it is trained here, else 0.
    pub loss_mask: Vec<u8>,
    /// For each id, its log-probability where it was sampled on this path, else 0.0. Always finite.
    pub logprobs: Vec<f64>,
}

impl Trajectory {
    /// The sequences, in the order of their leaves: one for each completion that no later prompt holds whole, and one for
    /// each whose place on every path is taken by another's (identical replies). Late flags count only after
    /// [`Trajectory::finalise`].
    ///
    /// A completion on several paths is trained on the agent's own before others', and of these on the earliest.
    #[must_use]
    pub fn plan(&self) -> Vec<SequencePlan> {
        let mut planner = Planner::new(self);
        let mut all: Vec<usize> = planner.ends.values().flatten().copied().collect();
        all.sort_by_key(|position| planner.priority(*position));
        let (leaves, inner): (Vec<usize>, Vec<usize>) =
            all.into_iter().partition(|position| planner.is_leaf(*position));
        let mut plans: Vec<SequencePlan> = leaves.into_iter().filter_map(|leaf| planner.plan(leaf)).collect();
        for position in inner {
            if !planner.placed.contains(&position) {
                plans.extend(planner.plan(position));
            }
        }
        plans.sort_by_key(|plan| plan.leaf);
        plans
    }

    /// The sequences with their tokens, made one by one: together they may be much larger than the trajectory.
    pub fn sequences(&self) -> impl Iterator<Item = Sequence> + '_ {
        self.plan().into_iter().filter_map(|plan| self.sequence(plan))
    }

    /// Fills a plan of this trajectory with its tokens; `None` for one of another.
    #[must_use]
    pub fn sequence(&self, plan: SequencePlan) -> Option<Sequence> {
        let leaf = self.at_index(plan.leaf)?.tokens.as_ref()?;
        let token_ids = self.tokens.line(leaf.end);
        let mut loss_mask = vec![0; token_ids.len()];
        let mut logprobs = vec![0.0; token_ids.len()];
        for turn in &plan.turns {
            let held = self.at_index(turn.call)?.tokens.as_ref()?;
            loss_mask
                .get_mut(turn.start..turn.end)?
                .fill(u8::from(turn.trained));
            if held.logprobs.len() == turn.end - turn.start {
                let sampled = logprobs.get_mut(turn.start..turn.end)?.iter_mut();
                for (to, from) in sampled.zip(&held.logprobs) {
                    *to = if from.is_finite() { *from } else { 0.0 };
                }
            }
        }
        Some(Sequence {
            plan,
            token_ids,
            loss_mask,
            logprobs,
        })
    }
}

/// Lays completions on paths.
struct Planner<'a> {
    trajectory: &'a Trajectory,
    /// Positions of calls that sampled something, by the end of their completion.
    ends: HashMap<NodeId, Vec<usize>>,
    /// Nodes that a later prompt passes or ends at.
    passed: HashSet<NodeId>,
    continued: HashSet<usize>,
    placed: HashSet<usize>,
    trained: HashSet<usize>,
}

impl<'a> Planner<'a> {
    fn new(trajectory: &'a Trajectory) -> Self {
        let mut ends: HashMap<NodeId, Vec<usize>> = HashMap::new();
        let mut passed = HashSet::new();
        for (position, held) in trajectory.calls.iter().enumerate() {
            let Some(tokens) = held.tokens.as_ref().filter(|tokens| tokens.prompt != tokens.end) else {
                continue;
            };
            ends.entry(tokens.end).or_default().push(position);
            for node in trajectory.tokens.upwards(tokens.prompt) {
                if !passed.insert(node) {
                    break;
                }
            }
        }
        Self {
            trajectory,
            ends,
            passed,
            continued: late::continued(trajectory),
            placed: HashSet::new(),
            trained: HashSet::new(),
        }
    }

    fn tokens(&self, position: usize) -> Option<&'a HeldTokens> {
        self.trajectory.calls.get(position)?.tokens.as_ref()
    }

    fn is_leaf(&self, position: usize) -> bool {
        self.tokens(position)
            .is_some_and(|tokens| !self.passed.contains(&tokens.end))
    }

    /// Lowest first: the agent's own, then what stands, then what came first.
    fn priority(&self, position: usize) -> (bool, bool, u32) {
        let held = self.trajectory.calls.get(position);
        held.map_or((true, true, u32::MAX), |held| {
            (
                held.meta.purpose != Purpose::Agent,
                !held.late.is_empty(),
                held.meta.index,
            )
        })
    }

    fn trainable(&self, position: usize) -> bool {
        let held = self.trajectory.calls.get(position);
        held.is_some_and(|held| self.trajectory.trainable(held))
    }

    /// Of the calls whose completion ends at a node and lies before `limit`, the one that has its place there in every
    /// sequence.
    fn resident(&self, node: NodeId, limit: usize) -> Option<usize> {
        if self.trajectory.tokens.length(node) > limit {
            return None;
        }
        let ending = self.ends.get(&node)?.iter().copied();
        ending.max_by_key(|position| {
            let (foreign, late, index) = self.priority(*position);
            (
                self.trainable(*position),
                self.continued.contains(position),
                Reverse((foreign, late, index)),
            )
        })
    }

    fn plan(&mut self, leaf: usize) -> Option<SequencePlan> {
        let graph = &self.trajectory.tokens;
        let held = self.trajectory.calls.get(leaf)?;
        let tokens = self.tokens(leaf)?;
        let mut turns = vec![self.lay(leaf)?];
        let mut limit = graph.length(tokens.prompt);
        for node in graph.upwards(tokens.prompt) {
            if let Some(position) = self.resident(node, limit) {
                let turn = self.lay(position)?;
                limit = turn.start;
                turns.push(turn);
            }
        }
        turns.reverse();
        Some(SequencePlan {
            leaf: held.meta.index,
            purpose: held.meta.purpose,
            session: held.meta.session.clone(),
            flags: held.flags().collect(),
            tokens: graph.length(tokens.end),
            turns,
        })
    }

    /// The span of a completion in whatever sequence holds it, trained in the first that it is laid on.
    fn lay(&mut self, position: usize) -> Option<TurnSpan> {
        let held = self.trajectory.calls.get(position)?;
        let tokens = self.tokens(position)?;
        self.placed.insert(position);
        Some(TurnSpan {
            call: held.meta.index,
            start: self.trajectory.tokens.length(tokens.prompt),
            end: self.trajectory.tokens.length(tokens.end),
            trained: self.trainable(position) && self.trained.insert(position),
        })
    }
}
