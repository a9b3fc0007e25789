use crate::fake::{FakeBackend, Trouble};
use crate::world::{BackendChoice, Done, World, WorldPlan, task};
use dressage_rollout::{LiveState, Observer, QueueLimits, RolloutRequest, SubmitError};
use dressage_wire::event::{Event, RolloutEvent, Stage};
use dressage_wire::fault::Ended;
use dressage_wire::ids::{GroupId, RolloutId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Keeps every event it sees.
#[derive(Default)]
struct Log(Mutex<Vec<Arc<RolloutEvent>>>);

impl Observer for Log {
    fn event(&self, event: &Arc<RolloutEvent>) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Log {
    /// Events by rollout, after a check that none is missing and none is there twice.
    fn by_rollout(&self) -> BTreeMap<RolloutId, Vec<Arc<RolloutEvent>>> {
        let mut rollouts: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for event in self.0.lock().unwrap().iter() {
            let events = rollouts.entry(event.rollout).or_default();
            assert_eq!(event.sequence, events.len() as u64, "{event:?}");
            events.push(event.clone());
        }
        rollouts
    }
}

async fn with(trouble: Trouble, limits: QueueLimits) -> World {
    World::planned(WorldPlan {
        backend: BackendChoice::Given(FakeBackend::with(trouble)),
        limits: Some(limits),
        ..WorldPlan::default()
    })
    .await
}

fn group(world: &World, size: u32) -> Vec<RolloutRequest> {
    let group = Some(GroupId::new());
    let member = |sample| RolloutRequest {
        sample,
        group,
        ..world.request(task(&[]))
    };
    (0..size).map(member).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_sees_every_event_once_and_in_order_from_queued_to_finished() {
    let log = Arc::new(Log::default());
    let world = World::planned(WorldPlan {
        concurrency: 64,
        observer: Some(log.clone()),
        ..WorldPlan::default()
    })
    .await;
    let requests: Vec<_> = (0..64)
        .map(|sample| {
            let mut task = task(&["head -c 100000 /dev/zero | base64; true"]);
            task.limits.memory_mb = 256;
            RolloutRequest {
                sample,
                ..world.request(task)
            }
        })
        .collect();
    let mut done = Vec::new();
    for handle in world.supervisor.submit_all(requests).await.unwrap() {
        done.push(Done::of(handle).await);
    }
    let seen = log.by_rollout();
    assert_eq!(seen.len(), 64);
    for (at, done) in done.iter().enumerate() {
        let events = &seen[&done.outcome.id];
        assert_eq!(events[0].event, Event::Queued { position: at as u64 });
        assert_eq!(
            events.last().unwrap().event,
            Event::Finished {
                ended: Ended::Completed,
                fault: None
            }
        );
        // Whoever listens sees the same, as far as they keep up.
        let heard: Vec<_> = done.events.iter().map(|event| event.sequence).collect();
        assert!(heard.is_sorted());
        assert!(
            done.events
                .iter()
                .all(|event| events[event.sequence as usize] == *event)
        );
    }
}

#[tokio::test]
async fn a_cancelled_rollout_that_never_ran_was_queued_and_has_finished() {
    let log = Arc::new(Log::default());
    let world = World::planned(WorldPlan {
        backend: BackendChoice::Given(FakeBackend::with(Trouble::CreateHangs)),
        concurrency: 1,
        observer: Some(log.clone()),
        ..WorldPlan::default()
    })
    .await;
    let handles = world.supervisor.submit_all(group(&world, 2)).await.unwrap();
    world.supervisor.cancel_all();
    world.supervisor.drained().await;
    let seen = log.by_rollout();
    let events: Vec<_> = seen[&handles[1].id]
        .iter()
        .map(|event| event.event.clone())
        .collect();
    let finished = Event::Finished {
        ended: Ended::Cancelled,
        fault: None,
    };
    assert_eq!(events, [Event::Queued { position: 1 }, finished]);
}

#[tokio::test]
async fn a_submission_is_taken_as_a_whole_or_not_at_all() {
    let mut limits = QueueLimits::of(1);
    limits.waiting = 2;
    let world = with(Trouble::CreateHangs, limits).await;
    let mut twice = group(&world, 2);
    twice[1].id = twice[0].id;
    let id = twice[0].id;
    let refused = world.supervisor.submit_all(twice).await;
    assert_eq!(refused.err(), Some(SubmitError::Duplicate(id)));
    let refused = world.supervisor.submit_all(group(&world, 4)).await;
    assert_eq!(refused.err(), Some(SubmitError::Full { waiting: 0, limit: 2 }));
    assert!(world.supervisor.live().borrow().is_empty());
    let taken = world.supervisor.submit_all(group(&world, 3)).await.unwrap();
    assert_eq!(world.supervisor.live().borrow().len(), taken.len());
    let refused = world.supervisor.submit(world.request(task(&[]))).await;
    assert_eq!(refused.err(), Some(SubmitError::Full { waiting: 2, limit: 2 }));
    world.supervisor.cancel_all();
    world.supervisor.drained().await;
}

#[tokio::test]
async fn what_is_live_tells_where_it_is_and_who_is_next() {
    let mut limits = QueueLimits::of(8);
    limits.backends.insert("fake".into(), 1);
    let world = with(Trouble::CreateHangs, limits).await;
    let request = |priority| RolloutRequest {
        priority,
        ..world.request(task(&[]))
    };
    let requests: Vec<_> = [0, 1, 2].map(request).into();
    let ids: Vec<_> = requests.iter().map(|request| request.id).collect();
    let mut live = world.supervisor.live();
    for request in requests {
        world.supervisor.submit(request).await.unwrap();
    }
    let now = live
        .wait_for(|live| live.len() == 3 && live[0].state == LiveState::In(Stage::Boot))
        .await
        .unwrap()
        .clone();
    let order: Vec<_> = now.iter().map(|one| (one.id, one.priority)).collect();
    assert_eq!(order, [(ids[0], 0), (ids[2], 2), (ids[1], 1)]);
    assert_eq!((now[1].backend, &*now[1].endpoint), ("fake", "scripted"));
    assert_eq!(now[1].state, LiveState::Queued);
    world.supervisor.cancel_all();
    world.supervisor.drained().await;
}

#[tokio::test]
async fn a_group_starts_together() {
    let world = with(Trouble::CreateHangs, QueueLimits::of(3)).await;
    let first = world.supervisor.submit(world.request(task(&[]))).await.unwrap();
    let group = world.supervisor.submit_all(group(&world, 3)).await.unwrap();
    let queued = || {
        let live = world.supervisor.live();
        let live = live.borrow();
        live.iter().filter(|one| one.state == LiveState::Queued).count()
    };
    assert_eq!(queued(), 3);
    world.supervisor.cancel(first.id);
    Done::of(first).await;
    let mut live = world.supervisor.live();
    live.wait_for(|live| live.len() == 3).await.unwrap();
    assert_eq!(queued(), 0);
    drop(group);
    world.supervisor.cancel_all();
    world.supervisor.drained().await;
}

#[tokio::test]
async fn those_that_wait_can_be_left_to_the_next_process() {
    let log = Arc::new(Log::default());
    let world = World::planned(WorldPlan {
        backend: BackendChoice::Given(FakeBackend::with(Trouble::CreateHangs)),
        concurrency: 1,
        observer: Some(log.clone()),
        ..WorldPlan::default()
    })
    .await;
    let mut handles = world
        .supervisor
        .submit_all((0..3).map(|_| world.request(task(&[]))).collect())
        .await
        .unwrap();
    let forgotten = world.supervisor.forget_waiting().await;
    assert_eq!(forgotten, [handles[1].id, handles[2].id]);
    let last = handles.pop().unwrap();
    assert!(last.outcome().await.is_none());
    world.supervisor.cancel_all();
    world.supervisor.drained().await;
    assert_eq!(world.recorder.kept.lock().unwrap().finished.len(), 1);
    assert_eq!(log.by_rollout()[&forgotten[0]].len(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_is_outside_of_every_deadline() {
    let world = with(Trouble::CreateHangs, QueueLimits::of(1)).await;
    let mut slow = task(&[]);
    slow.limits.boot_timeout_s = 7200.0;
    let running = world.supervisor.submit(world.request(slow)).await.unwrap();
    let mut quick = task(&[]);
    quick.limits.boot_timeout_s = 1.0;
    let waiting = world.supervisor.submit(world.request(quick)).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(7000)).await;
    let live = world.supervisor.live();
    assert_eq!(live.borrow()[1].state, LiveState::Queued);
    drop(running);
    let done = Done::of(waiting).await;
    assert_eq!(done.code(), Some("sandbox_boot_timeout"));
    assert!(done.outcome.wall_ms < 10_000, "{}", done.outcome.wall_ms);
}

#[tokio::test]
async fn thousands_can_wait_and_cost_little() {
    let world = with(Trouble::None, QueueLimits::of(64)).await;
    let before = std::time::Instant::now();
    let requests: Vec<_> = (0..2000).map(|_| world.request(task(&[]))).collect();
    let handles = world.supervisor.submit_all(requests).await.unwrap();
    for handle in handles {
        assert_eq!(handle.outcome().await.unwrap().ended, Ended::Completed);
    }
    assert!(
        before.elapsed() < std::time::Duration::from_secs(60),
        "{:?}",
        before.elapsed()
    );
}
