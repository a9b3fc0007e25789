//! What goes in comes out.

use crate::samples;
use bytes::Bytes;
use dressage_store::{RolloutState, Store, StoreError};
use dressage_wire::call::Call;
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::Recorder;
use dressage_wire::trajectory::{CallRecord, Sequence, TrajectoryBuilder};
use std::os::unix::fs::PermissionsExt;

/// Stores a rollout that runs; gives its records and the builder they came from.
pub async fn store_running(
    store: &Store,
    calls: Vec<Call>,
) -> (RolloutId, Vec<CallRecord>, TrajectoryBuilder) {
    let start = samples::start();
    store.started(&start).await.unwrap();
    let mut builder = TrajectoryBuilder::new();
    let mut records = Vec::new();
    for call in calls {
        let recorded = builder.push(call);
        store.call(start.id, &recorded).await.unwrap();
        records.push(recorded.record);
    }
    (start.id, records, builder)
}

#[tokio::test]
async fn a_rollout_comes_back_as_it_was_at_each_step() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let start = samples::start();
    store.started(&start).await.unwrap();

    let running = store.get(start.id).await.unwrap();
    assert_eq!(running.start.as_ref(), Some(&start));
    assert_eq!(running.outcome, None);
    assert_eq!(running.row.state, RolloutState::Running);
    assert_eq!(running.row.title, "Write a binary search.");

    let outcome = samples::outcome(start.id);
    store.finished(&outcome).await.unwrap();
    store.close().await;

    let store = Store::open_read_only(directory.path()).await.unwrap();
    let finished = store.get(start.id).await.unwrap();
    assert_eq!(finished.start, Some(start.clone()));
    assert_eq!(finished.outcome.as_ref(), Some(&outcome));
    assert_eq!(finished.row.state, RolloutState::Finished);
    assert_eq!(finished.row.reward, Some(0.1 + 0.2), "to the last bit");
    assert_eq!(finished.row.ended, Some(outcome.ended));
    assert_eq!(finished.row.fault_code.as_deref(), Some("agent_timeout"));
    assert_eq!(finished.row.totals, outcome.totals);
}

#[tokio::test]
async fn calls_come_back_as_records_bodies_ids_and_sequences() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let calls = samples::conversation();
    let (id, records, mut builder) = store_running(&store, calls.clone()).await;
    builder.finalise();
    store.close().await;

    let store = Store::open(directory.path()).await.unwrap();
    assert_eq!(store.calls(id).await.unwrap(), records);
    for call in &calls {
        let index = call.meta.index;
        let body = store.request_body(id, index).await.unwrap();
        assert_eq!(Bytes::from(body), call.request, "call {index}");
        assert_eq!(
            store.response_body(id, index).await.unwrap().as_ref(),
            Some(&call.response)
        );
    }
    let trajectory = store.trajectory(id).await.unwrap();
    for call in &calls {
        assert_eq!(
            trajectory.prompt_token_ids(call.meta.index),
            call.prompt_token_ids
        );
    }
    assert_eq!(trajectory.totals(), builder.totals());
    let sequences: Vec<Sequence> = trajectory.sequences().collect();
    assert_eq!(sequences, builder.sequences().collect::<Vec<_>>());
    let masks: Vec<&[u8]> = sequences
        .iter()
        .map(|sequence| sequence.loss_mask.as_slice())
        .collect();
    assert_eq!(masks, [&[0, 0, 0, 1, 1, 1][..], &[0, 0, 0, 0, 0, 0, 1, 1, 0, 1]]);
}

#[tokio::test]
async fn a_call_with_nothing_in_it_and_one_that_is_no_json_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let mut empty = samples::call(0, &[]);
    empty.request = Bytes::new();
    empty.response = Bytes::new();
    let mut garbage = samples::call(1, &[]);
    garbage.request = Bytes::from_static(b"\xff\x00 not json");
    garbage.response = Bytes::from_static(b"<html>");
    let (id, _, _) = store_running(&store, vec![empty, garbage]).await;
    assert_eq!(store.request_body(id, 0).await.unwrap(), b"");
    assert_eq!(store.response_body(id, 0).await.unwrap(), None);
    assert_eq!(store.request_body(id, 1).await.unwrap(), b"\xff\x00 not json");
    assert_eq!(store.response_body(id, 1).await.unwrap().unwrap(), &b"<html>"[..]);
    let missing = store.request_body(id, 2).await.unwrap_err();
    assert!(
        matches!(missing, StoreError::NoSuchCall { index: 2, .. }),
        "{missing}"
    );
}

#[tokio::test]
async fn a_body_of_50_mb_passes() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let text = "0123456789abcdef".repeat(50 * 1024 * 1024 / 16);
    let mut call = samples::call(0, &[]);
    call.request = Bytes::from(format!(
        r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#
    ));
    let sent = call.request.clone();
    let (id, _, _) = store_running(&store, vec![call]).await;
    let body = store.request_body(id, 0).await.unwrap();
    assert!(body == sent, "{} bytes came back", body.len());
}

#[tokio::test]
async fn a_rollout_that_nobody_started_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let id = RolloutId::new();
    let error = store.finished(&samples::outcome(id)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the outcome of rollout {id} could not be stored")
    );
    assert_eq!(error.source.to_string(), format!("there is no rollout {id}"));
    let recorded = TrajectoryBuilder::new().push(samples::call(0, &[]));
    assert!(store.call(id, &recorded).await.is_err());
    assert!(
        !directory
            .path()
            .join("unsaved")
            .join(format!("{id}.json"))
            .exists()
    );
}

#[tokio::test]
async fn the_database_is_for_its_owner_alone_and_the_directory_lets_others_through() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("a/b");
    let store = Store::open(&directory).await.unwrap();
    store.started(&samples::start()).await.unwrap();
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory.join("dressage.db")), 0o600);
    assert_eq!(mode(directory.join("dressage.db-wal")), 0o600);
    assert_eq!(mode(directory.clone()) & 0o011, 0o011, "others may pass");
    assert_eq!(mode(directory) & 0o066, 0, "but not look");
    assert_eq!(
        store.installation().await.unwrap(),
        store.installation().await.unwrap()
    );
}
