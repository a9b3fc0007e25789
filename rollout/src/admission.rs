//! Which of the waiting may start now.
//!
//! Nothing here runs anything: this is told what waits, is held and ends, and says what may start. What waits starts by
//! priority, then by age, and never above a limit.
//!
//! - The rollouts of a group that were submitted together start together, if the limits could ever hold them all; else each
//!   starts when there is a place for it.
//! - What has to wait for its own backend or endpoint does not keep others waiting. A group that has to wait does keep its
//!   places from what is behind it: all of those of its backend and endpoint, and once these are there, those of the whole.
//!   So its wait ends when what runs now has ended, whatever comes after it.
//! - A single rollout that was passed often enough, which takes both a backend and an endpoint that are short, keeps its
//!   places as a group does; one at a time, since those behind it would wait for the same.

use dressage_wire::ids::{GroupId, RolloutId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// How often a single rollout is passed by others before it keeps places.
const PATIENCE: u32 = 100;

/// How many rollouts run at once, and how many wait. Each limit is at least 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Rollouts at once.
    pub concurrency: usize,
    /// Rollouts that wait, beyond those that there is a place for; more are refused.
    pub waiting: usize,
    /// Rollouts at once in sandboxes of a backend, by its name. Held ones count.
    pub backends: BTreeMap<String, usize>,
    /// Rollouts at once that use an endpoint, by its name. Held ones do not count.
    pub endpoints: BTreeMap<String, usize>,
}

impl QueueLimits {
    /// So many at once, and no other limit.
    #[must_use]
    pub fn of(concurrency: usize) -> Self {
        Self {
            concurrency,
            waiting: usize::MAX,
            backends: BTreeMap::new(),
            endpoints: BTreeMap::new(),
        }
    }
}

/// A rollout that is to wait.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) id: RolloutId,
    pub(crate) group: Option<GroupId>,
    pub(crate) priority: i32,
    pub(crate) backend: String,
    pub(crate) endpoint: String,
}

/// What waits and what has places.
pub(crate) struct Admission {
    /// The limit on those that wait.
    most_waiting: usize,
    /// The whole, then one for each backend and endpoint with a limit.
    pools: Vec<Pool>,
    backends: BTreeMap<String, usize>,
    endpoints: BTreeMap<String, usize>,
    /// In the order in which they may start.
    queue: BTreeMap<Rank, Unit>,
    ranks: HashMap<RolloutId, Rank>,
    running: HashMap<RolloutId, Places>,
    arrivals: u64,
    /// Whether something can be startable that was not before.
    changed: bool,
}

/// Places of one kind.
struct Pool {
    limit: usize,
    taken: usize,
    /// For those that wait, while it is decided who starts.
    kept: usize,
}

impl Pool {
    fn of(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            taken: 0,
            kept: 0,
        }
    }

    fn free(&self) -> usize {
        self.limit.saturating_sub(self.taken + self.kept)
    }
}

/// The pool of all places.
const WHOLE: usize = 0;

/// The pools that a rollout needs one place of, beside the whole; none of those that have no limit.
#[derive(Clone, Copy)]
struct Places {
    backend: Option<usize>,
    /// Given back once it is held.
    endpoint: Option<usize>,
}

impl Places {
    fn pools(self) -> impl Iterator<Item = usize> {
        self.backend.into_iter().chain(self.endpoint)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    priority: Reverse<i32>,
    arrival: u64,
}

/// One that waits, and what it needs.
type Member = (RolloutId, Places);

/// What starts together.
struct Unit {
    members: Vec<Member>,
    /// Places it needs of each pool, the whole left out.
    needs: BTreeMap<usize, usize>,
    passed: u32,
}

impl Unit {
    fn of(members: Vec<Member>) -> Self {
        let mut needs = BTreeMap::new();
        for pool in members.iter().flat_map(|(_, places)| places.pools()) {
            *needs.entry(pool).or_default() += 1;
        }
        Self {
            members,
            needs,
            passed: 0,
        }
    }
}

impl Admission {
    pub(crate) fn new(limits: QueueLimits) -> Self {
        let mut pools = vec![Pool::of(limits.concurrency)];
        let mut named = |limits: BTreeMap<String, usize>| {
            let mut at = BTreeMap::new();
            for (name, limit) in limits {
                at.insert(name, pools.len());
                pools.push(Pool::of(limit));
            }
            at
        };
        let (backends, endpoints) = (named(limits.backends), named(limits.endpoints));
        Self {
            most_waiting: limits.waiting,
            pools,
            backends,
            endpoints,
            queue: BTreeMap::new(),
            ranks: HashMap::new(),
            running: HashMap::new(),
            arrivals: 0,
            changed: false,
        }
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.ranks.len()
    }

    /// Whether so many more can be taken.
    pub(crate) fn has_room_for(&self, count: usize) -> bool {
        let free = self
            .pools
            .first()
            .map_or(0, |whole| whole.limit.saturating_sub(whole.taken));
        self.waiting() + count <= self.most_waiting.saturating_add(free)
    }

    /// Those that wait, in the order in which they may start.
    pub(crate) fn order(&self) -> impl Iterator<Item = RolloutId> {
        self.queue
            .values()
            .flat_map(|unit| unit.members.iter().map(|(id, _)| *id))
    }

    /// Lets the rollouts of one submission wait. Says for each how many wait before it.
    pub(crate) fn enter(&mut self, candidates: &[Candidate]) -> Vec<u64> {
        let mut groups: Vec<(i32, Vec<Member>)> = Vec::new();
        let mut at: HashMap<(GroupId, i32), usize> = HashMap::new();
        for candidate in candidates {
            let member = (candidate.id, self.places(candidate));
            let key = candidate.group.map(|group| (group, candidate.priority));
            let known = key
                .and_then(|key| at.get(&key))
                .and_then(|&at| groups.get_mut(at));
            if let Some((_, members)) = known {
                members.push(member);
                continue;
            }
            if let Some(key) = key {
                at.insert(key, groups.len());
            }
            groups.push((candidate.priority, vec![member]));
        }
        for (priority, members) in groups {
            let unit = Unit::of(members);
            if self.could_ever_hold(&unit) {
                self.push(priority, unit);
            } else {
                for member in unit.members {
                    self.push(priority, Unit::of(vec![member]));
                }
            }
        }
        self.changed = true;
        let ids = candidates.iter().map(|candidate| candidate.id);
        ids.map(|id| self.before(id)).collect()
    }

    fn push(&mut self, priority: i32, unit: Unit) {
        let rank = Rank {
            priority: Reverse(priority),
            arrival: self.arrivals,
        };
        self.arrivals += 1;
        self.ranks.extend(unit.members.iter().map(|(id, _)| (*id, rank)));
        self.queue.insert(rank, unit);
    }

    fn could_ever_hold(&self, unit: &Unit) -> bool {
        let holds =
            |(pool, need): (usize, usize)| self.pools.get(pool).is_some_and(|pool| pool.limit >= need);
        let whole = std::iter::once((WHOLE, unit.members.len()));
        whole
            .chain(unit.needs.iter().map(|(&pool, &need)| (pool, need)))
            .all(holds)
    }

    /// How many wait before a rollout that waits.
    fn before(&self, id: RolloutId) -> u64 {
        let Some(rank) = self.ranks.get(&id) else { return 0 };
        let ahead: usize = self.queue.range(..rank).map(|(_, unit)| unit.members.len()).sum();
        let members = self.queue.get(rank).map(|unit| unit.members.as_slice());
        let within = members
            .unwrap_or_default()
            .iter()
            .position(|(member, _)| *member == id);
        (ahead + within.unwrap_or_default()) as u64
    }

    /// Takes a rollout out of the queue; false if it does not wait.
    pub(crate) fn withdraw(&mut self, id: RolloutId) -> bool {
        let Some(rank) = self.ranks.remove(&id) else {
            return false;
        };
        if let Some(unit) = self.queue.remove(&rank) {
            let members: Vec<_> = unit
                .members
                .into_iter()
                .filter(|(member, _)| *member != id)
                .collect();
            if !members.is_empty() {
                let passed = unit.passed;
                self.queue.insert(
                    rank,
                    Unit {
                        passed,
                        ..Unit::of(members)
                    },
                );
            }
        }
        self.changed = true;
        true
    }

    /// Gives places to those that may have them now, in order, and says who they are.
    pub(crate) fn start(&mut self) -> Vec<RolloutId> {
        let mut started = Vec::new();
        if !std::mem::take(&mut self.changed) {
            return started;
        }
        self.pools.iter_mut().for_each(|pool| pool.kept = 0);
        let mut starting = Vec::new();
        // The first single one that has to wait, and how many had started then.
        let mut passed: Option<(Rank, usize)> = None;
        for (&rank, unit) in &self.queue {
            if free(&self.pools, WHOLE) == 0 {
                break;
            }
            let own = unit
                .needs
                .iter()
                .all(|(&pool, &need)| free(&self.pools, pool) >= need);
            if own && free(&self.pools, WHOLE) >= unit.members.len() {
                take(&mut self.pools, unit);
                starting.push(rank);
                continue;
            }
            let is_first = unit.members.len() == 1 && passed.is_none();
            if is_first {
                passed = Some((rank, starting.len()));
            }
            if unit.members.len() > 1 || is_first && unit.passed >= PATIENCE {
                keep(&mut self.pools, unit, own);
            }
        }
        if let Some((rank, before)) = passed
            && let Some(unit) = self.queue.get_mut(&rank)
        {
            let after = u32::try_from(starting.len() - before).unwrap_or(u32::MAX);
            unit.passed = unit.passed.saturating_add(after);
        }
        for rank in starting {
            for (id, places) in self.queue.remove(&rank).into_iter().flat_map(|unit| unit.members) {
                self.ranks.remove(&id);
                self.running.insert(id, places);
                started.push(id);
            }
        }
        started
    }

    /// A rollout is held: it needs its endpoint no more.
    pub(crate) fn hold(&mut self, id: RolloutId) {
        let endpoint = self
            .running
            .get_mut(&id)
            .and_then(|places| places.endpoint.take());
        if let Some(endpoint) = endpoint {
            self.give_back(endpoint);
        }
    }

    /// A rollout has ended. One that had no place is none of this module's.
    pub(crate) fn end(&mut self, id: RolloutId) {
        if let Some(places) = self.running.remove(&id) {
            self.give_back(WHOLE);
            places.pools().for_each(|pool| self.give_back(pool));
        }
    }

    fn give_back(&mut self, pool: usize) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.taken = pool.taken.saturating_sub(1);
        }
        self.changed = true;
    }

    fn places(&self, candidate: &Candidate) -> Places {
        Places {
            backend: self.backends.get(&candidate.backend).copied(),
            endpoint: self.endpoints.get(&candidate.endpoint).copied(),
        }
    }
}

fn free(pools: &[Pool], pool: usize) -> usize {
    pools.get(pool).map_or(0, Pool::free)
}

fn take(pools: &mut [Pool], unit: &Unit) {
    each(pools, unit, |pool, need| pool.taken += need);
    if let Some(whole) = pools.first_mut() {
        whole.taken += unit.members.len();
    }
}

/// Keeps the places of one that has to wait. Those of the whole are kept only once the others are there: until then
/// somebody else can use them.
fn keep(pools: &mut [Pool], unit: &Unit, own_are_there: bool) {
    each(pools, unit, |pool, need| pool.kept += need);
    if let Some(whole) = pools.first_mut()
        && own_are_there
    {
        whole.kept += unit.members.len();
    }
}

fn each(pools: &mut [Pool], unit: &Unit, change: impl Fn(&mut Pool, usize)) {
    for (&pool, &need) in &unit.needs {
        if let Some(pool) = pools.get_mut(pool) {
            change(pool, need);
        }
    }
}

#[cfg(test)]
mod tests;
