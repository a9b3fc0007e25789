use super::PoolConfig;
use crate::SandboxSpec;
use dressage_wire::ids::SandboxId;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// The wait after a first failure; it doubles with each that follows.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The longest wait after a failure.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Carried by what is ready, until it is handed out.
const LABEL: (&str, &str) = ("dressage.warm", "true");

/// What is ready, and what is to be, by spec. Does nothing itself; times are given to it.
pub(super) struct Shelves<T> {
    config: PoolConfig,
    /// In the order in which they came, at most as many as the pool has places.
    shelves: Vec<Shelf<T>>,
    /// Of shelves that were given up.
    given_up: Vec<T>,
}

struct Shelf<T> {
    /// Its id is that of the shelf; its labels and lifetime are those of what is ready.
    spec: SandboxSpec,
    asked: Instant,
    /// Oldest first.
    ready: VecDeque<(Instant, T)>,
    making: usize,
    failures: u32,
    not_before: Option<Instant>,
}

impl<T> Shelves<T> {
    pub(super) fn new(config: PoolConfig) -> Self {
        Self {
            config,
            shelves: Vec::new(),
            given_up: Vec::new(),
        }
    }

    /// Takes the oldest that may be handed out for `spec`.
    pub(super) fn take(&mut self, spec: &SandboxSpec, now: Instant) -> Option<T> {
        let wanted = self.kept(spec);
        let max_age = self.config.max_age;
        let shelf = self.shelves.iter_mut().find(|shelf| shelf.is_of(&wanted))?;
        while let Some((made, found)) = shelf.ready.pop_front() {
            if now.saturating_duration_since(made) < max_age {
                return Some(found);
            }
            self.given_up.push(found);
        }
        None
    }

    /// `spec` was asked for, and can be made.
    pub(super) fn want(&mut self, spec: &SandboxSpec, now: Instant) {
        let wanted = self.kept(spec);
        if let Some(shelf) = self.shelves.iter_mut().find(|shelf| shelf.is_of(&wanted)) {
            shelf.asked = now;
            return;
        }
        if self.shelves.len() >= self.config.size.get() {
            let asked = |(_, shelf): &(usize, &Shelf<T>)| shelf.asked;
            if let Some((longest_ago, _)) = self.shelves.iter().enumerate().min_by_key(asked) {
                self.give_up(longest_ago);
            }
        }
        self.shelves.push(Shelf {
            spec: wanted,
            asked: now,
            ready: VecDeque::new(),
            making: 0,
            failures: 0,
            not_before: None,
        });
    }

    /// Takes out what is to end: what is too old, or more than its shelf's share.
    pub(super) fn tidy(&mut self, now: Instant) -> Vec<T> {
        let max_age = self.config.max_age;
        let is_over = |since: Instant| now.saturating_duration_since(since) >= max_age;
        while let Some(forgotten) = self.shelves.iter().position(|shelf| is_over(shelf.asked)) {
            self.give_up(forgotten);
        }
        let count = self.shelves.len();
        for (place, shelf) in self.shelves.iter_mut().enumerate() {
            let share = share(self.config.size.get(), count, place);
            while shelf.ready.len() > share || shelf.ready.front().is_some_and(|(made, _)| is_over(*made)) {
                self.given_up
                    .extend(shelf.ready.pop_front().map(|(_, found)| found));
            }
        }
        std::mem::take(&mut self.given_up)
    }

    /// What is to be made next: the shelf, and the spec with an id of its own. [`Shelves::put`] or [`Shelves::failed`] is
    /// to follow.
    pub(super) fn next_to_make(&mut self, now: Instant) -> Option<(SandboxId, SandboxSpec)> {
        let (size, count) = (self.config.size.get(), self.shelves.len());
        let mut shelves = self.shelves.iter_mut().enumerate();
        let (_, shelf) = shelves.find(|(place, shelf)| {
            // Where the last attempt failed, one at a time.
            let more = shelf.failures == 0 || shelf.making == 0;
            let due = shelf.not_before.is_none_or(|not_before| not_before <= now);
            more && due && shelf.ready.len() + shelf.making < share(size, count, *place)
        })?;
        shelf.making += 1;
        let spec = SandboxSpec {
            id: SandboxId::new(),
            ..shelf.spec.clone()
        };
        Some((shelf.spec.id, spec))
    }

    /// One was made; it is given back where nobody wants it any more.
    pub(super) fn put(&mut self, shelf: SandboxId, made: T, now: Instant) -> Option<T> {
        let Some(shelf) = self.shelves.iter_mut().find(|other| other.spec.id == shelf) else {
            return Some(made);
        };
        shelf.making = shelf.making.saturating_sub(1);
        shelf.failures = 0;
        shelf.not_before = None;
        shelf.ready.push_back((now, made));
        None
    }

    /// One could not be made.
    pub(super) fn failed(&mut self, shelf: SandboxId, now: Instant) {
        if let Some(shelf) = self.shelves.iter_mut().find(|other| other.spec.id == shelf) {
            shelf.making = shelf.making.saturating_sub(1);
            let doubled = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(shelf.failures));
            shelf.failures = shelf.failures.saturating_add(1);
            shelf.not_before = now.checked_add(doubled.min(LONGEST_WAIT));
        }
    }

    /// When [`Shelves::tidy`] or [`Shelves::next_to_make`] will have something to do that they have not now.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        let (max_age, size, count) = (self.config.max_age, self.config.size.get(), self.shelves.len());
        let wakes = self.shelves.iter().enumerate().flat_map(|(place, shelf)| {
            let is_short = shelf.ready.len() < share(size, count, place);
            let oldest = shelf.ready.front().map(|(made, _)| *made);
            let ages = [Some(shelf.asked), oldest].map(|since| since?.checked_add(max_age));
            let retry = shelf.not_before.filter(|_| is_short && shelf.making == 0);
            ages.into_iter().chain([retry]).flatten()
        });
        wakes.min()
    }

    /// How many are ready.
    pub(super) fn ready(&self) -> usize {
        self.shelves.iter().map(|shelf| shelf.ready.len()).sum()
    }

    /// Takes everything out, and wants nothing any more.
    pub(super) fn clear(&mut self) -> Vec<T> {
        while !self.shelves.is_empty() {
            self.give_up(0);
        }
        std::mem::take(&mut self.given_up)
    }

    fn give_up(&mut self, place: usize) {
        let shelf = self.shelves.remove(place);
        self.given_up
            .extend(shelf.ready.into_iter().map(|(_, found)| found));
    }

    /// The spec of what is ready for `spec`: it may wait for its use, and nobody has it yet.
    fn kept(&self, spec: &SandboxSpec) -> SandboxSpec {
        SandboxSpec {
            labels: BTreeMap::from([(LABEL.0.to_owned(), LABEL.1.to_owned())]),
            lifetime: match spec.lifetime {
                // It never ends by itself.
                Duration::ZERO => Duration::ZERO,
                lifetime => lifetime.saturating_add(self.config.max_age),
            },
            ..spec.clone()
        }
    }
}

impl<T> Shelf<T> {
    fn is_of(&self, kept: &SandboxSpec) -> bool {
        SandboxSpec {
            id: self.spec.id,
            ..kept.clone()
        } == self.spec
    }
}

/// How many places of a pool are for a shelf: as many as for every other, and what is left over for the first ones.
fn share(size: usize, shelves: usize, place: usize) -> usize {
    let all = size.checked_div(shelves).unwrap_or_default();
    let over = size.checked_rem(shelves).unwrap_or_default();
    all + usize::from(place < over)
}
