use crate::fake::{FakeBackend, Trouble};
use crate::world::{BackendChoice, Done, MemoryRecorder, World, WorldPlan, shell, task};
use dressage_sandbox::{PoolConfig, Pools};
use dressage_wire::event::Stage;
use dressage_wire::fault::{Ended, FaultOwner};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// Waits until a pool of one has it.
pub async fn until_ready(pools: &Pools) {
    let ready = async {
        while pools.counts()[0].ready == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ready)
        .await
        .expect("a sandbox is made ready");
}

async fn run_with(trouble: Trouble) -> (Done, Arc<FakeBackend>) {
    let backend = FakeBackend::with(trouble);
    let plan = WorldPlan {
        backend: BackendChoice::Given(backend.clone()),
        ..WorldPlan::default()
    };
    let world = World::planned(plan).await;
    let mut task = task(&["check"]);
    task.setup = vec!["prepare".into()];
    if trouble == Trouble::CreateHangs {
        task.limits.boot_timeout_s = 0.2;
    }
    if trouble == Trouble::Unresponsive {
        task.limits.setup_timeout_s = 0.2;
    }
    (world.run(task).await, backend)
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_made_is_a_fault_with_its_causes() {
    let (done, _) = run_with(Trouble::CreateFails).await;
    let fault = done.outcome.fault.as_ref().unwrap();
    assert_eq!(done.outcome.ended, Ended::SetupError);
    assert_eq!(
        (fault.code.as_str(), fault.owner),
        ("sandbox_boot_failed", FaultOwner::Sandbox)
    );
    assert_eq!((fault.stage, fault.retryable), (Some(Stage::Boot), true));
    assert_eq!(fault.causes, ["no space left on device"]);
    assert_eq!(done.stages(), [Stage::Boot]);
}

#[tokio::test]
async fn a_sandbox_that_never_comes_ends_at_the_boot_deadline() {
    let (done, _) = run_with(Trouble::CreateHangs).await;
    assert_eq!(done.code(), Some("sandbox_boot_timeout"));
    assert_eq!(done.outcome.ended, Ended::SetupError);
}

#[tokio::test]
async fn a_sandbox_that_goes_before_the_agent_is_the_sandboxes_fault() {
    let (done, backend) = run_with(Trouble::GoneAtAgent).await;
    assert_eq!(done.code(), Some("sandbox_gone"));
    assert_eq!(done.outcome.ended, Ended::AgentError);
    assert_eq!(done.outcome.reward, None);
    assert_eq!(backend.log().last().unwrap(), "kill");
}

#[tokio::test]
async fn a_sandbox_that_goes_at_verify_gives_no_reward_and_keeps_how_the_agent_ended() {
    let (done, _) = run_with(Trouble::GoneAtVerify).await;
    assert_eq!(done.code(), Some("sandbox_gone"));
    assert_eq!(done.outcome.ended, Ended::Completed);
    assert_eq!(done.reward(), None);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_reports_nothing_does_not_hang_the_rollout() {
    let (done, _) = run_with(Trouble::Unresponsive).await;
    assert_eq!(done.code(), Some("sandbox_gone"));
    assert_eq!(done.outcome.ended, Ended::SetupError);
}

#[tokio::test]
async fn a_failed_take_down_is_a_warning_and_hides_nothing() {
    let (done, _) = run_with(Trouble::KillFails).await;
    assert_eq!(done.outcome.ended, Ended::Completed);
    assert_eq!(done.code(), None);
    assert_eq!(done.reward(), Some(1.0));
    assert!(
        done.outcome.warnings[0].contains("device busy"),
        "{:?}",
        done.outcome.warnings
    );
}

#[tokio::test(start_paused = true)]
async fn a_take_down_that_hangs_is_left_to_the_lease() {
    let (done, _) = run_with(Trouble::KillHangs).await;
    assert_eq!(done.outcome.ended, Ended::Completed);
    assert!(
        done.outcome.warnings[0].contains("left to the next sweep"),
        "{:?}",
        done.outcome.warnings
    );
}

#[tokio::test]
async fn a_panic_is_our_fault_and_leaves_a_row_and_no_sandbox() {
    let (done, backend) = run_with(Trouble::PanicsAtSetup).await;
    let fault = done.outcome.fault.as_ref().unwrap();
    assert_eq!(
        (fault.code.as_str(), fault.owner),
        ("internal", FaultOwner::Server)
    );
    assert_eq!(backend.log().last().unwrap(), "kill");
}

#[tokio::test]
async fn what_cannot_be_stored_is_told_and_nothing_runs_without_a_row() {
    for (operation, ran) in [("start", false), ("outcome", true)] {
        let recorder = MemoryRecorder::refusing(operation);
        let backend = FakeBackend::with(Trouble::None);
        let plan = WorldPlan {
            backend: BackendChoice::Given(backend.clone()),
            recorder,
            ..WorldPlan::default()
        };
        let done = World::planned(plan).await.run(task(&["check"])).await;
        let fault = done.outcome.fault.as_ref().unwrap();
        assert_eq!(
            (fault.code.as_str(), fault.owner),
            ("store_failed", FaultOwner::Server),
            "{operation}"
        );
        assert!(fault.message.ends_with(": no space is left"), "{}", fault.message);
        assert_eq!(fault.causes, ["no space left"]);
        assert_eq!(fault.hint.as_deref(), Some("free some space"));
        // This recorder takes an outcome without a start; a store does not.
        let unstored = ran.then_some(fault);
        assert_eq!(done.outcome.unstored.as_ref(), unstored, "{operation}");
        assert!(done.outcome.warnings.is_empty(), "{operation}");
        assert_eq!(!backend.log().is_empty(), ran, "{operation}");
    }
}

#[tokio::test]
async fn a_call_that_cannot_be_stored_is_a_fault_and_the_rollout_goes_on() {
    let recorder = MemoryRecorder::refusing("call");
    let done = World::planned(WorldPlan {
        recorder,
        ..WorldPlan::default()
    })
    .await
    .run(task(&["true"]))
    .await;
    assert_eq!(done.code(), Some("store_failed"));
    assert_eq!(done.outcome.unstored, None, "the outcome is there");
    assert_eq!(done.outcome.ended, Ended::Completed);
    assert_eq!(done.reward(), Some(1.0));
    assert_eq!(done.outcome.totals.calls, 1);
}

#[tokio::test]
async fn a_sandbox_that_is_ready_is_the_next_rollouts_and_its_boot_says_so() {
    let config = PoolConfig {
        size: NonZeroUsize::MIN,
        max_age: Duration::from_secs(600),
    };
    let pools = Pools::new(BTreeMap::from([("local".to_owned(), config)]));
    let world = World::planned(WorldPlan {
        script: shell("test ! -e made && touch made"),
        pools: pools.clone(),
        ..WorldPlan::default()
    })
    .await;
    let mut sandboxes = Vec::new();
    for is_warm in [false, true, true] {
        let done = world.run(task(&["test -e made"])).await;
        assert_eq!(done.reward(), Some(1.0));
        assert_eq!(done.outcome.stages[0].stage, Stage::Boot);
        let warm: Vec<bool> = done.outcome.stages.iter().map(|time| time.warm).collect();
        assert_eq!(warm, [is_warm, false, false, false, false]);
        sandboxes.push(done.outcome.sandbox.unwrap());
        until_ready(&pools).await;
    }
    sandboxes.sort();
    sandboxes.dedup();
    assert_eq!(sandboxes.len(), 3, "none is used twice");
    pools.close().await;
}
