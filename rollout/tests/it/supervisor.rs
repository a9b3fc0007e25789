use crate::fake::{FakeBackend, Trouble};
use crate::world::{BackendChoice, Done, World, WorldPlan, task};
use dressage_rollout::{LiveState, SubmitError};
use dressage_wire::event::{Event, Stage};
use dressage_wire::fault::Ended;
use std::time::{Duration, Instant};

async fn fake(trouble: Trouble, concurrency: usize) -> (World, std::sync::Arc<FakeBackend>) {
    let backend = FakeBackend::with(trouble);
    let plan = WorldPlan {
        backend: BackendChoice::Given(backend.clone()),
        concurrency,
        ..WorldPlan::default()
    };
    (World::planned(plan).await, backend)
}

#[tokio::test]
async fn no_more_than_so_many_run_at_once_and_the_others_wait_in_order() {
    let (world, _) = fake(Trouble::CreateHangs, 2).await;
    let mut handles = Vec::new();
    for _ in 0..4 {
        handles.push(world.supervisor.submit(world.request(task(&[]))).await.unwrap());
    }
    let mut live = world.supervisor.live();
    let booting = |state: LiveState| state == LiveState::In(Stage::Boot);
    let states = |live: &dressage_rollout::Live| live.iter().map(|one| one.state).collect::<Vec<_>>();
    let now = live
        .wait_for(|live| live.len() == 4 && live.iter().filter(|one| booting(one.state)).count() == 2)
        .await
        .unwrap()
        .clone();
    assert_eq!(states(&now)[2..], [LiveState::Queued, LiveState::Queued]);
    world.supervisor.cancel(handles[0].id);
    let now = live
        .wait_for(|live| live.len() == 3 && booting(live[1].state))
        .await
        .unwrap()
        .clone();
    assert_eq!(states(&now)[2], LiveState::Queued);
    world.supervisor.cancel_all();
    world.supervisor.drained().await;
    for handle in handles {
        assert_eq!(handle.outcome().await.unwrap().ended, Ended::Cancelled);
    }
}

#[tokio::test]
async fn a_rollout_that_is_cancelled_while_it_waits_has_a_row_and_no_sandbox() {
    let (world, backend) = fake(Trouble::CreateHangs, 1).await;
    let running = world.supervisor.submit(world.request(task(&[]))).await.unwrap();
    let waiting = world.supervisor.submit(world.request(task(&[]))).await.unwrap();
    world.supervisor.cancel(waiting.id);
    let id = waiting.id;
    let done = Done::of(waiting).await;
    assert_eq!(done.outcome.ended, Ended::Cancelled);
    assert_eq!(done.outcome.fault, None);
    assert_eq!(done.stages(), []);
    assert_eq!(world.recorder.kept.lock().unwrap().finished[0].id, id);
    world.supervisor.cancel(running.id);
    assert_eq!(Done::of(running).await.outcome.ended, Ended::Cancelled);
    assert_eq!(backend.log(), ["create"]);
}

#[tokio::test]
async fn a_cancelled_agent_is_gone_with_its_sandbox() {
    let world = World::where_the_agent_runs("sleep 600").await;
    let mut handle = world
        .supervisor
        .submit(world.request(task(&["true"])))
        .await
        .unwrap();
    while !matches!(handle.events.recv().await.unwrap().event, Event::CallEnded { .. }) {}
    world.supervisor.cancel(handle.id);
    let before = Instant::now();
    let done = Done::of(handle).await;
    assert_eq!(done.outcome.ended, Ended::Cancelled, "{:?}", done.outcome);
    assert_eq!(done.outcome.reward, None);
    assert!(!done.stages().contains(&Stage::Collect));
    assert_eq!(done.outcome.agent.as_ref().unwrap().signal, Some(9));
    assert!(before.elapsed() < Duration::from_secs(20));
    assert!(world.backend.list(&Default::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn nothing_is_admitted_after_the_end_and_no_id_twice() {
    let (world, _) = fake(Trouble::CreateHangs, 1).await;
    let request = world.request(task(&[]));
    let handle = world.supervisor.submit(request.clone()).await.unwrap();
    let twice = world.supervisor.submit(request).await;
    assert_eq!(twice.err(), Some(SubmitError::Duplicate(handle.id)));
    world.supervisor.stop_admitting();
    let late = world.supervisor.submit(world.request(task(&[]))).await;
    assert_eq!(late.err(), Some(SubmitError::Closed));
    world.supervisor.cancel_all();
    world.supervisor.drained().await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_the_grace_period_and_then_cancels() {
    let (world, _) = fake(Trouble::CreateHangs, 1).await;
    let mut request = task(&[]);
    request.limits.boot_timeout_s = 3600.0;
    let handle = world.supervisor.submit(world.request(request)).await.unwrap();
    let before = tokio::time::Instant::now();
    world.supervisor.shutdown(Duration::from_secs(30)).await;
    assert!(before.elapsed() >= Duration::from_secs(30) && before.elapsed() < Duration::from_secs(60));
    assert_eq!(handle.outcome().await.unwrap().ended, Ended::Cancelled);
}

#[tokio::test]
async fn hurry_leaves_a_sandbox_that_does_not_go() {
    let (world, _) = fake(Trouble::KillHangs, 1).await;
    let handle = world.supervisor.submit(world.request(task(&[]))).await.unwrap();
    world.supervisor.hurry();
    let done = Done::of(handle).await;
    assert_eq!(done.outcome.ended, Ended::Completed);
    assert!(
        done.outcome.warnings[0].contains("in a hurry"),
        "{:?}",
        done.outcome.warnings
    );
}

#[tokio::test]
async fn sixty_four_at_once_end_well() {
    let plan = WorldPlan {
        concurrency: 64,
        ..WorldPlan::default()
    };
    let world = World::planned(plan).await;
    let mut handles = Vec::new();
    for sample in 0..64 {
        let mut task = task(&["true"]);
        task.limits.memory_mb = 256;
        let mut request = world.request(task);
        request.sample = sample;
        handles.push(world.supervisor.submit(request).await.unwrap());
    }
    for handle in handles {
        let outcome = handle.outcome().await.unwrap();
        assert_eq!(outcome.ended, Ended::Completed, "{outcome:?}");
        assert_eq!(outcome.reward.unwrap().value, Some(1.0));
    }
    assert!(world.backend.list(&Default::default()).await.unwrap().is_empty());
}
