//! Processes that die, and processes that share.

use crate::{child, samples};
use bytes::Bytes;
use dressage_store::{RolloutState, Store};
use dressage_wire::ids::RolloutId;
use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;

fn id(word: &str) -> RolloutId {
    word.parse().unwrap()
}

/// Everything that a writer said it had stored is there, whole.
async fn check(store: &Store, said: &[String]) {
    let conversation = samples::conversation();
    for line in said {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["started", rollout] => {
                let start = store.get(id(rollout)).await.unwrap().start;
                assert_eq!(start.unwrap().id, id(rollout));
            }
            ["call", rollout, index] => {
                let index: u32 = index.parse().unwrap();
                let body = store.request_body(id(rollout), index).await.unwrap();
                assert_eq!(Bytes::from(body), conversation[index as usize].request);
                let trajectory = store.trajectory(id(rollout)).await.unwrap();
                assert_eq!(
                    trajectory.prompt_token_ids(index),
                    conversation[index as usize].prompt_token_ids
                );
            }
            ["finished", rollout] => {
                let stored = store.get(id(rollout)).await.unwrap();
                assert_eq!(stored.row.state, RolloutState::Finished);
                assert_eq!(stored.outcome.unwrap().id, id(rollout));
                assert_eq!(store.calls(id(rollout)).await.unwrap().len(), conversation.len());
            }
            other => assert_eq!(other, ["done"]),
        }
    }
}

#[tokio::test]
async fn kill_9_in_the_middle_of_writing_loses_nothing_that_was_said_to_be_stored() {
    for kill_after in [1, 7, 40] {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = child::command(&child::this_program(), "write for ever", directory.path())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(writer.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let mut said = Vec::new();
        while said.len() < kill_after {
            said.extend(lines.next().unwrap().strip_prefix('@').map(str::to_owned));
        }
        writer.kill().unwrap();
        said.extend(lines.filter_map(|line| line.strip_prefix('@').map(str::to_owned)));
        writer.wait().unwrap();

        let store = Store::open(directory.path()).await.unwrap();
        store.verify().await.unwrap();
        check(&store, &said).await;
    }
}

#[tokio::test]
async fn two_processes_that_open_and_write_at_once_do_not_disturb_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let spawn = |path: &Path| {
        child::command(&child::this_program(), "write 20", path)
            .spawn()
            .unwrap()
    };
    // Both make the directory's database, at the same moment.
    let writers = [spawn(directory.path()), spawn(directory.path())];
    let mut rollouts = HashSet::new();
    for writer in writers {
        let output = writer.wait_with_output().unwrap();
        assert!(output.status.success());
        let said = child::said(&output.stdout);
        assert_eq!(said.last().map(String::as_str), Some("done"));
        let store = Store::open(directory.path()).await.unwrap();
        check(&store, &said).await;
        rollouts.extend(
            said.iter()
                .filter_map(|line| line.strip_prefix("finished "))
                .map(id),
        );
    }
    let store = Store::open_read_only(directory.path()).await.unwrap();
    store.verify().await.unwrap();
    let rows = store.list(&dressage_store::ListFilter::default()).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.id).collect::<HashSet<_>>(), rollouts);
    assert_eq!(rollouts.len(), 40);
}

#[tokio::test]
async fn sixty_four_rollouts_at_once_are_all_stored() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let rollouts: Vec<_> = (0..64)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                use dressage_wire::rollout::Recorder;
                let (id, records, _) =
                    crate::round_trip::store_running(&store, samples::conversation()).await;
                store.finished(&samples::outcome(id)).await.unwrap();
                (id, records)
            })
        })
        .collect();
    for rollout in rollouts {
        let (id, records) = rollout.await.unwrap();
        assert_eq!(store.calls(id).await.unwrap(), records);
    }
}
