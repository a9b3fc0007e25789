use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const BACKENDS: [&str; 3] = ["local", "process", "unlimited"];
const ENDPOINTS: [&str; 3] = ["vllm", "demo", "unlimited"];

fn limits(concurrency: usize, backends: &[(&str, usize)], endpoints: &[(&str, usize)]) -> QueueLimits {
    let named = |limits: &[(&str, usize)]| {
        limits
            .iter()
            .map(|(name, limit)| ((*name).to_owned(), *limit))
            .collect()
    };
    QueueLimits {
        concurrency,
        waiting: usize::MAX,
        backends: named(backends),
        endpoints: named(endpoints),
    }
}

fn one(backend: &str, endpoint: &str) -> Candidate {
    Candidate {
        id: RolloutId::new(),
        group: None,
        priority: 0,
        backend: backend.into(),
        endpoint: endpoint.into(),
    }
}

fn group(size: usize, backend: &str, endpoint: &str) -> Vec<Candidate> {
    let group = Some(GroupId::new());
    let member = || Candidate {
        group,
        ..one(backend, endpoint)
    };
    std::iter::repeat_with(member).take(size).collect()
}

fn ids(candidates: &[Candidate]) -> Vec<RolloutId> {
    candidates.iter().map(|candidate| candidate.id).collect()
}

/// Lets rollouts wait, one submission each, and says which start.
fn enter(admission: &mut Admission, candidates: &[Candidate]) -> Vec<RolloutId> {
    for candidate in candidates {
        admission.enter(std::slice::from_ref(candidate));
    }
    admission.start()
}

#[test]
fn the_highest_priority_starts_first_then_the_oldest() {
    let mut admission = Admission::new(limits(1, &[], &[]));
    let running = one("local", "vllm");
    enter(&mut admission, std::slice::from_ref(&running));
    let mut waiting: Vec<_> = (0..4).map(|_| one("local", "vllm")).collect();
    for (candidate, priority) in waiting.iter_mut().zip([0, 5, -1, 5]) {
        candidate.priority = priority;
    }
    let positions: Vec<_> = waiting
        .iter()
        .map(|one| admission.enter(std::slice::from_ref(one))[0])
        .collect();
    assert_eq!(positions, [0, 0, 2, 1]);
    let order = [1, 3, 0, 2].map(|at: usize| waiting[at].id);
    assert_eq!(admission.order().collect::<Vec<_>>(), order);
    let mut last = running.id;
    for next in order {
        assert_eq!(admission.start(), []);
        admission.end(last);
        assert_eq!(admission.start(), [next]);
        last = next;
    }
}

#[test]
fn what_waits_for_its_own_endpoint_or_backend_keeps_nobody_waiting() {
    let mut admission = Admission::new(limits(8, &[("process", 1)], &[("vllm", 2)]));
    let all = [
        one("local", "vllm"),
        one("local", "vllm"),
        one("local", "vllm"),
        one("process", "demo"),
        one("process", "demo"),
        one("local", "demo"),
    ];
    let started = enter(&mut admission, &all);
    assert_eq!(started, [0, 1, 3, 5].map(|at: usize| all[at].id));
    admission.end(all[3].id);
    assert_eq!(admission.start(), [all[4].id]);
    admission.end(all[0].id);
    assert_eq!(admission.start(), [all[2].id]);
}

#[test]
fn a_held_rollout_has_its_places_but_not_its_endpoint() {
    let mut admission = Admission::new(limits(3, &[("local", 2)], &[("vllm", 1)]));
    let all = [
        one("local", "vllm"),
        one("local", "vllm"),
        one("local", "vllm"),
        one("process", "demo"),
    ];
    assert_eq!(enter(&mut admission, &all), [all[0].id, all[3].id]);
    admission.hold(all[0].id);
    assert_eq!(admission.start(), [all[1].id]);
    admission.hold(all[1].id);
    admission.hold(all[1].id);
    assert_eq!(admission.start(), [], "the backend has no place");
    admission.end(all[3].id);
    assert_eq!(admission.start(), []);
    admission.end(all[0].id);
    assert_eq!(admission.start(), [all[2].id]);
}

#[test]
fn a_group_starts_as_a_whole_and_is_not_overtaken_meanwhile() {
    let mut admission = Admission::new(limits(4, &[], &[]));
    let running: Vec<_> = (0..2).map(|_| one("local", "vllm")).collect();
    enter(&mut admission, &running);
    let group = group(4, "local", "vllm");
    admission.enter(&group);
    let late = one("local", "vllm");
    admission.enter(std::slice::from_ref(&late));
    assert_eq!(admission.start(), []);
    admission.end(running[0].id);
    assert_eq!(admission.start(), []);
    let mut urgent = one("local", "vllm");
    urgent.priority = 1;
    admission.enter(std::slice::from_ref(&urgent));
    assert_eq!(admission.start(), [urgent.id]);
    admission.end(running[1].id);
    admission.end(urgent.id);
    assert_eq!(admission.start(), ids(&group));
    admission.end(group[2].id);
    assert_eq!(admission.start(), [late.id]);
}

#[test]
fn a_group_that_waits_for_its_endpoint_keeps_no_places_of_others() {
    let mut admission = Admission::new(limits(6, &[], &[("vllm", 3)]));
    let running = one("local", "vllm");
    enter(&mut admission, std::slice::from_ref(&running));
    let group = group(3, "local", "vllm");
    admission.enter(&group);
    let others: Vec<_> = (0..5).map(|_| one("local", "demo")).collect();
    assert_eq!(enter(&mut admission, &others), ids(&others));
    let late: Vec<_> = [one("local", "demo"), one("local", "vllm")].into();
    assert_eq!(enter(&mut admission, &late), []);
    // Once its endpoint is free, the places that come free are kept for it.
    admission.end(running.id);
    assert_eq!(admission.start(), []);
    for other in &others[..2] {
        admission.end(other.id);
    }
    assert_eq!(admission.start(), ids(&group));
}

#[test]
fn a_group_that_can_never_be_there_at_once_starts_as_places_come_free() {
    for limits in [
        limits(3, &[], &[]),
        limits(9, &[("local", 3)], &[]),
        limits(9, &[], &[("vllm", 3)]),
    ] {
        let mut admission = Admission::new(limits);
        let group = group(5, "local", "vllm");
        assert_eq!(admission.enter(&group), [0, 1, 2, 3, 4]);
        assert_eq!(admission.start(), ids(&group[..3]));
        admission.end(group[1].id);
        assert_eq!(admission.start(), ids(&group[3..4]));
    }
}

#[test]
fn one_that_leaves_a_group_in_the_queue_makes_it_smaller() {
    let mut admission = Admission::new(limits(3, &[], &[]));
    let running = one("local", "vllm");
    enter(&mut admission, std::slice::from_ref(&running));
    let group = group(3, "local", "vllm");
    admission.enter(&group);
    assert_eq!(admission.start(), []);
    assert!(admission.withdraw(group[0].id));
    assert!(!admission.withdraw(group[0].id));
    assert_eq!(admission.start(), ids(&group[1..]));
    assert_eq!(admission.waiting(), 0);
}

#[test]
fn no_more_wait_than_may() {
    let mut limits = limits(2, &[], &[]);
    limits.waiting = 3;
    let mut admission = Admission::new(limits);
    assert!(admission.has_room_for(5) && !admission.has_room_for(6));
    let all: Vec<_> = (0..5).map(|_| one("local", "vllm")).collect();
    enter(&mut admission, &all);
    assert_eq!(admission.waiting(), 3);
    assert!(!admission.has_room_for(1));
    admission.end(all[0].id);
    admission.start();
    assert!(admission.has_room_for(1) && !admission.has_room_for(2));
}

#[test]
fn one_that_needs_two_places_that_are_never_free_together_is_not_passed_for_ever() {
    // Somebody behind it takes the backend when the endpoint comes free, and the endpoint when the backend does.
    let mut admission = Admission::new(limits(8, &[("local", 1)], &[("vllm", 1)]));
    let mut of_backend = one("local", "demo");
    let mut of_endpoint = one("process", "vllm");
    enter(&mut admission, &[of_backend.clone(), of_endpoint.clone()]);
    let patient = one("local", "vllm");
    admission.enter(std::slice::from_ref(&patient));
    for _ in 0..=PATIENCE {
        let (next_backend, next_endpoint) = (one("local", "demo"), one("process", "vllm"));
        admission.enter(&[next_backend.clone(), next_endpoint.clone()]);
        admission.end(of_backend.id);
        let started = admission.start();
        admission.end(of_endpoint.id);
        let started = [started, admission.start()].concat();
        if started.contains(&patient.id) {
            return;
        }
        (of_backend, of_endpoint) = (next_backend, next_endpoint);
    }
    panic!("it still waits");
}

#[test]
fn ten_thousand_that_wait_for_one_endpoint_are_looked_through_quickly() {
    let mut admission = Admission::new(limits(64, &[], &[("vllm", 1)]));
    let all: Vec<_> = (0..10_000).map(|_| one("local", "vllm")).collect();
    admission.enter(&all);
    let before = std::time::Instant::now();
    let mut last = admission.start();
    for _ in 0..100 {
        admission.end(last[0]);
        last = admission.start();
        assert_eq!(last.len(), 1);
    }
    // A tenth of that, where nothing else runs.
    assert!(
        before.elapsed() < std::time::Duration::from_secs(5),
        "{:?}",
        before.elapsed()
    );
}

/// What happens to a queue.
#[derive(Clone, Debug)]
enum Step {
    Submit {
        size: usize,
        grouped: bool,
        priority: i32,
        backend: usize,
        endpoint: usize,
    },
    End(prop::sample::Index),
    Hold(prop::sample::Index),
    Withdraw(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let submit = (1..7usize, any::<bool>(), -1..2i32, 0..3usize, 0..3usize);
    prop_oneof![
        4 => submit.prop_map(|(size, grouped, priority, backend, endpoint)| Step::Submit {
            size, grouped, priority, backend, endpoint
        }),
        5 => any::<prop::sample::Index>().prop_map(Step::End),
        1 => any::<prop::sample::Index>().prop_map(Step::Hold),
        1 => any::<prop::sample::Index>().prop_map(Step::Withdraw),
    ]
}

fn any_limits() -> impl Strategy<Value = QueueLimits> {
    (1..9usize, 1..5usize, 1..9usize, 1..5usize, 1..9usize).prop_map(|(whole, local, process, vllm, demo)| {
        limits(
            whole,
            &[("local", local), ("process", process)],
            &[("vllm", vllm), ("demo", demo)],
        )
    })
}

/// What is known of an admission from outside, kept in the plainest way.
struct Model {
    admission: Admission,
    limits: QueueLimits,
    all: HashMap<RolloutId, Candidate>,
    waiting: Vec<RolloutId>,
    running: Vec<RolloutId>,
    held: HashSet<RolloutId>,
}

impl Model {
    fn new(limits: QueueLimits) -> Self {
        Self {
            admission: Admission::new(limits.clone()),
            limits,
            all: HashMap::new(),
            waiting: Vec::new(),
            running: Vec::new(),
            held: HashSet::new(),
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Submit {
                size,
                grouped,
                priority,
                backend,
                endpoint,
            } => {
                let mut candidates = group(*size, BACKENDS[*backend], ENDPOINTS[*endpoint]);
                for candidate in &mut candidates {
                    candidate.priority = *priority;
                    candidate.group = candidate.group.filter(|_| *grouped);
                    self.all.insert(candidate.id, candidate.clone());
                }
                self.waiting.extend(ids(&candidates));
                self.admission.enter(&candidates);
            }
            Step::End(index) if !self.running.is_empty() => {
                let id = self.running.swap_remove(index.index(self.running.len()));
                self.held.remove(&id);
                self.admission.end(id);
            }
            Step::Hold(index) if !self.running.is_empty() => {
                let id = *index.get(&self.running);
                self.held.insert(id);
                self.admission.hold(id);
            }
            Step::Withdraw(index) if !self.waiting.is_empty() => {
                let id = self.waiting.remove(index.index(self.waiting.len()));
                assert!(self.admission.withdraw(id));
            }
            _ => {}
        }
    }

    fn start(&mut self) -> Vec<RolloutId> {
        let started = self.admission.start();
        for id in &started {
            let at = self.waiting.iter().position(|one| one == id).expect("it waited");
            self.waiting.remove(at);
        }
        self.running.extend(&started);
        started
    }

    fn taken(&self, has_place: impl Fn(&Candidate) -> bool) -> usize {
        self.running.iter().filter(|id| has_place(&self.all[*id])).count()
    }

    fn fits(&self, candidate: &Candidate) -> bool {
        let within = |limit: Option<&usize>, taken: usize| limit.is_none_or(|limit| taken < *limit);
        self.running.len() < self.limits.concurrency
            && within(
                self.limits.backends.get(&candidate.backend),
                self.taken(|one| one.backend == candidate.backend),
            )
            && within(
                self.limits.endpoints.get(&candidate.endpoint),
                self.taken(|one| one.endpoint == candidate.endpoint && !self.held.contains(&one.id)),
            )
    }

    fn assert_limits(&self) {
        assert!(self.running.len() <= self.limits.concurrency);
        for (backend, limit) in &self.limits.backends {
            assert!(self.taken(|one| one.backend == *backend) <= *limit);
        }
        for (endpoint, limit) in &self.limits.endpoints {
            let uses = |one: &Candidate| one.endpoint == *endpoint && !self.held.contains(&one.id);
            assert!(self.taken(uses) <= *limit);
        }
    }

    fn could_ever_hold(&self, members: &[&Candidate]) -> bool {
        let least = [
            Some(&self.limits.concurrency),
            self.limits.backends.get(&members[0].backend),
            self.limits.endpoints.get(&members[0].endpoint),
        ];
        least.into_iter().flatten().all(|limit| members.len() <= *limit)
    }
}

proptest! {
    #[test]
    fn limits_hold_groups_are_whole_and_nothing_that_fits_waits(
        limits in any_limits(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut model = Model::new(limits);
        for step in &steps {
            model.apply(step);
            let groups: Vec<Vec<RolloutId>> = whole_groups(&model);
            let started: HashSet<_> = model.start().into_iter().collect();
            model.assert_limits();
            prop_assert_eq!(model.admission.waiting(), model.waiting.len());
            for members in &groups {
                let count = members.iter().filter(|id| started.contains(id)).count();
                prop_assert!(count == 0 || count == members.len(), "a group started in part");
            }
            // Where no group keeps places, whoever fits has started.
            if groups.iter().all(|members| members.iter().all(|id| started.contains(id))) {
                for id in &model.waiting {
                    prop_assert!(!model.fits(&model.all[id]), "one that fits waits");
                }
            }
        }
    }

    #[test]
    fn of_rollouts_that_need_the_same_the_one_before_in_the_queue_starts_first(
        limits in any_limits(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut model = Model::new(limits);
        for step in &steps {
            model.apply(step);
            let order: Vec<_> = model.admission.order().collect();
            let started: HashSet<_> = model.start().into_iter().collect();
            let needs = |id: &RolloutId| {
                let one = &model.all[id];
                (one.backend.clone(), one.endpoint.clone())
            };
            let mut passed = HashSet::new();
            for id in &order {
                if started.contains(id) {
                    prop_assert!(!passed.contains(&needs(id)), "an earlier one of its kind waits");
                } else {
                    passed.insert(needs(id));
                }
            }
        }
    }

    /// New ones of the same priority come all the time, and what waits at a moment starts all the same, soon.
    #[test]
    fn nobody_starves(
        limits in any_limits(),
        steps in prop::collection::vec(step(), 1..40),
        flood in prop::collection::vec((1..4usize, any::<bool>(), 0..3usize, 0..3usize), 8),
    ) {
        let mut model = Model::new(limits);
        for step in &steps {
            model.apply(step);
            model.start();
        }
        let early = model.waiting.clone();
        let mut rounds = 0;
        while model.waiting.iter().any(|id| early.contains(id)) {
            let more = if model.waiting.len() < 200 { flood.as_slice() } else { &[] };
            for (size, grouped, backend, endpoint) in more {
                model.apply(&Step::Submit {
                    size: *size, grouped: *grouped, priority: -1, backend: *backend, endpoint: *endpoint,
                });
            }
            // Half of what runs ends, the oldest first.
            let ending: Vec<_> = model.running.drain(..model.running.len().div_ceil(2)).collect();
            for id in ending {
                model.held.remove(&id);
                model.admission.end(id);
                model.start();
                model.assert_limits();
            }
            rounds += 1;
            prop_assert!(rounds < 4000, "{} still wait", early.len());
        }
    }
}

/// The groups that wait as a whole: of one submission, and small enough.
fn whole_groups(model: &Model) -> Vec<Vec<RolloutId>> {
    let mut groups: BTreeMap<GroupId, Vec<RolloutId>> = BTreeMap::new();
    for id in &model.waiting {
        if let Some(group) = model.all[id].group {
            groups.entry(group).or_default().push(*id);
        }
    }
    groups.retain(|group, waiting| {
        // As it was submitted, for that is when it was decided.
        let all: Vec<_> = model
            .all
            .values()
            .filter(|one| one.group == Some(*group))
            .collect();
        model.could_ever_hold(&all) && !waiting.is_empty()
    });
    groups.into_values().collect()
}
