//! Rollouts that wait: in the queue, in lists, through the death of their owners.

use crate::{child, samples};
use bytes::Bytes;
use dressage_store::{
    Enqueued, Idempotency, ListFilter, QueuedRollout, RolloutCounts, RolloutState, Store, StoreError,
};
use dressage_wire::fault::Ended;
use dressage_wire::ids::{GroupId, OwnerId, RolloutId};
use dressage_wire::rollout::{Recorder, RolloutStart};
use dressage_wire::trajectory::TrajectoryBuilder;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use std::collections::HashSet;

async fn opened() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    (directory, store)
}

async fn raw(store: &Store) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(store.path())
        .connect()
        .await
        .unwrap()
}

async fn count(store: &Store, query: &'static str) -> i64 {
    let mut raw = raw(store).await;
    let count = sqlx::query_scalar(query).fetch_one(&mut raw).await.unwrap();
    raw.close().await.unwrap();
    count
}

pub fn queued(owner: OwnerId) -> QueuedRollout {
    QueuedRollout {
        id: RolloutId::new(),
        owner,
        group: None,
        sample: 0,
        task_id: Some("task".into()),
        title: "Write a binary search.".into(),
        agent: "opencode".into(),
        backend: "local".into(),
        endpoint: "demo".into(),
        model: "m".into(),
        priority: 0,
        created_unix_ms: 1_800_000_000_000,
        spec: Bytes::from_static(br#"{"task":{"instruction":"Write a binary search."}}"#),
    }
}

async fn enqueue(store: &Store, rollouts: &[QueuedRollout]) {
    assert_eq!(store.enqueue(rollouts, None).await.unwrap(), Enqueued::New);
}

/// As the engine starts it.
fn started(queued: &QueuedRollout) -> RolloutStart {
    RolloutStart {
        id: queued.id,
        owner: queued.owner,
        group: queued.group,
        ..samples::start()
    }
}

async fn state(store: &Store, id: RolloutId) -> RolloutState {
    store.get(id).await.unwrap().row.state
}

async fn ids(store: &Store, filter: &ListFilter) -> Vec<RolloutId> {
    let rows = store.list(filter).await.unwrap();
    rows.into_iter().map(|row| row.id).collect()
}

fn request(key: &str, fingerprint: u8) -> Option<Idempotency> {
    Some(Idempotency {
        key: key.into(),
        fingerprint: [fingerprint; 32],
    })
}

#[tokio::test]
async fn a_rollout_is_queued_then_running_then_finished_with_what_it_was_asked_for_with() {
    let (_directory, store) = opened().await;
    let one = QueuedRollout {
        group: Some(GroupId::new()),
        sample: 3,
        priority: -5,
        created_unix_ms: 1_700_000_000_000,
        ..queued(OwnerId::new())
    };
    enqueue(&store, std::slice::from_ref(&one)).await;

    let waiting = store.get(one.id).await.unwrap();
    assert_eq!((&waiting.start, &waiting.outcome), (&None, &None));
    let row = waiting.row;
    assert_eq!(
        (row.id, row.owner, row.state),
        (one.id, one.owner, RolloutState::Queued)
    );
    assert_eq!((row.group, row.sample, row.priority), (one.group, 3, -5));
    assert_eq!(
        (row.created_unix_ms, row.started_unix_ms),
        (1_700_000_000_000, None)
    );
    assert_eq!(
        (row.title.as_str(), row.agent.as_str()),
        ("Write a binary search.", "opencode")
    );
    assert_eq!(store.find(&one.id.to_string()).await.unwrap(), one.id);
    assert_eq!(store.calls(one.id).await.unwrap(), []);
    assert_eq!(store.events(one.id).await.unwrap(), None);
    let exported = store.export_trajectory(one.id, Vec::new()).await.unwrap();
    let exported: serde_json::Value = serde_json::from_slice(&exported).unwrap();
    assert_eq!(exported["state"], "queued");
    assert_eq!(exported["rollout"], serde_json::Value::Null);

    store.started(&started(&one)).await.unwrap();
    let row = store.get(one.id).await.unwrap().row;
    assert_eq!(
        (row.state, row.group, row.priority),
        (RolloutState::Running, one.group, -5)
    );
    assert_eq!(row.created_unix_ms, 1_700_000_000_000);
    assert_eq!(row.started_unix_ms, Some(1_800_000_000_000));
    assert_eq!(
        ids(&store, &ListFilter::default()).await,
        [one.id],
        "it is listed once"
    );
    assert_eq!(store.find(&one.id.to_string()).await.unwrap(), one.id);
    assert_eq!(store.queue_owners().await.unwrap(), [one.owner]);

    store.finished(&samples::outcome(one.id)).await.unwrap();
    assert_eq!(state(&store, one.id).await, RolloutState::Finished);
    assert_eq!(store.queue_owners().await.unwrap(), []);
    assert_eq!(
        count(&store, "SELECT count(*) FROM specs").await,
        0,
        "the spec is gone"
    );
}

#[tokio::test]
async fn one_that_was_not_in_the_queue_was_asked_for_when_it_started() {
    let (_directory, store) = opened().await;
    let start = samples::start();
    store.started(&start).await.unwrap();
    let row = store.get(start.id).await.unwrap().row;
    assert_eq!(
        (row.group, row.priority, row.created_unix_ms),
        (None, 0, start.started_unix_ms)
    );
}

#[tokio::test]
async fn filters_and_counts_know_those_that_wait() {
    let (_directory, store) = opened().await;
    let owner = OwnerId::new();
    let group = GroupId::new();
    let finished = queued(owner);
    let running = QueuedRollout {
        model: "other".into(),
        ..queued(owner)
    };
    let waiting = QueuedRollout {
        group: Some(group),
        backend: "process".into(),
        task_id: None,
        title: "100% of_it".into(),
        created_unix_ms: 1_800_000_000_001,
        ..queued(owner)
    };
    enqueue(&store, &[finished.clone(), running.clone(), waiting.clone()]).await;
    for one in [&finished, &running] {
        let mut start = started(one);
        start.model.clone_from(&one.model);
        store.started(&start).await.unwrap();
    }
    store.finished(&samples::outcome(finished.id)).await.unwrap();

    let [finished, running, waiting] = [finished.id, running.id, waiting.id];
    let all = ListFilter::default;
    let states = |states: &[RolloutState]| ListFilter {
        states: states.to_vec(),
        ..all()
    };
    let search = |part: &str| ListFilter {
        search: Some(part.into()),
        ..all()
    };
    let cases = [
        (all(), vec![waiting, running, finished]),
        (states(&[RolloutState::Queued]), vec![waiting]),
        (states(&[RolloutState::Running]), vec![running]),
        (states(&[RolloutState::Interrupted]), vec![]),
        (
            states(&[RolloutState::Queued, RolloutState::Finished]),
            vec![waiting, finished],
        ),
        (states(&RolloutState::ALL), vec![waiting, running, finished]),
        (
            ListFilter {
                group: Some(group),
                ..all()
            },
            vec![waiting],
        ),
        (
            ListFilter {
                group: Some(GroupId::new()),
                ..all()
            },
            vec![],
        ),
        (
            ListFilter {
                backend: Some("process".into()),
                ..all()
            },
            vec![waiting],
        ),
        (
            ListFilter {
                model: Some("other".into()),
                ..all()
            },
            vec![running],
        ),
        (
            ListFilter {
                since_unix_ms: Some(1_800_000_000_001),
                ..all()
            },
            vec![waiting],
        ),
        (
            ListFilter {
                ended: Some(Ended::Timeout),
                ..all()
            },
            vec![finished],
        ),
        (
            ListFilter {
                ended: Some(Ended::Timeout),
                states: vec![RolloutState::Queued],
                ..all()
            },
            vec![],
        ),
        (
            ListFilter {
                after: Some(waiting),
                limit: Some(1),
                ..all()
            },
            vec![running],
        ),
        (search("BINARY"), vec![running, finished]),
        (search("tas"), vec![running, finished]),
        (search("100%"), vec![waiting]),
        (search("f_i"), vec![waiting]),
        (search("f%t"), vec![]),
        (search("\\"), vec![]),
        (search("' OR 1=1 --"), vec![]),
    ];
    for (filter, expected) in cases {
        assert_eq!(ids(&store, &filter).await, expected, "{filter:?}");
    }
    let expected = RolloutCounts {
        queued: 1,
        running: 1,
        finished: 1,
        interrupted: 0,
    };
    assert_eq!(store.counts().await.unwrap(), expected);
}

#[tokio::test]
async fn pages_show_each_rollout_once_while_others_come_begin_end_and_leave() {
    let (_directory, store) = opened().await;
    let owner = OwnerId::new();
    let all: Vec<QueuedRollout> = (0..60).map(|_| queued(owner)).collect();
    enqueue(&store, &all).await;
    let mut shown = Vec::new();
    let mut filter = ListFilter {
        limit: Some(7),
        ..ListFilter::default()
    };
    for page in 0.. {
        let ids = ids(&store, &filter).await;
        let Some(last) = ids.last().copied() else {
            break;
        };
        filter.after = Some(last);
        shown.extend(ids);
        enqueue(&store, &[queued(owner), queued(owner)]).await;
        for one in all.iter().skip(page).step_by(9) {
            // Begins or ends, whichever it can.
            match store.get(one.id).await.map(|stored| stored.row.state) {
                Ok(RolloutState::Queued) => store.started(&started(one)).await.unwrap(),
                Ok(_) => store.finished(&samples::outcome(one.id)).await.unwrap(),
                Err(error) => assert!(matches!(error, StoreError::NotFound { .. }), "{error}"),
            }
        }
        store.withdraw(&[last], None).await.unwrap();
    }
    let mut expected: Vec<RolloutId> = all.iter().map(|one| one.id).collect();
    expected.reverse();
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn a_request_that_comes_again_has_the_same_answer_and_changes_nothing() {
    let (_directory, store) = opened().await;
    let owner = OwnerId::new();
    let first = [queued(owner), queued(owner)];
    let again = [queued(owner), queued(owner)];
    assert_eq!(
        store.enqueue(&first, request("key", 1)).await.unwrap(),
        Enqueued::New
    );
    let made = first.iter().map(|one| one.id).collect();
    assert_eq!(
        store.enqueue(&again, request("key", 1)).await.unwrap(),
        Enqueued::Repeated(made)
    );
    assert_eq!(
        store.enqueue(&again, request("key", 2)).await.unwrap(),
        Enqueued::Conflict
    );
    assert_eq!(store.counts().await.unwrap().queued, 2);

    let other = [queued(owner)];
    assert_eq!(
        store.enqueue(&other, request("other", 1)).await.unwrap(),
        Enqueued::New
    );
    store.withdraw(&[other[0].id], Some("other")).await.unwrap();
    assert_eq!(
        store.enqueue(&other, request("other", 2)).await.unwrap(),
        Enqueued::New,
        "what was withdrawn was never asked for"
    );

    let mut raw = raw(&store).await;
    sqlx::query("UPDATE idempotency SET created_unix_ms = created_unix_ms - 86400001 WHERE key = 'key'")
        .execute(&mut raw)
        .await
        .unwrap();
    raw.close().await.unwrap();
    assert_eq!(
        store.enqueue(&again, request("key", 2)).await.unwrap(),
        Enqueued::New,
        "a day later"
    );
}

#[tokio::test]
async fn of_a_request_sent_many_times_at_once_one_is_new() {
    let (_directory, store) = opened().await;
    let answers: Vec<_> = (0..16)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let one = queued(OwnerId::new());
                let answer = store.enqueue(std::slice::from_ref(&one), request("key", 1));
                match answer.await.unwrap() {
                    Enqueued::New => (one.id, true),
                    Enqueued::Repeated(ids) => (ids[0], false),
                    Enqueued::Conflict => panic!("the request is the same"),
                }
            })
        })
        .collect();
    let mut ids = HashSet::new();
    let mut new = 0;
    for answer in answers {
        let (id, is_new) = answer.await.unwrap();
        ids.insert(id);
        new += u32::from(is_new);
    }
    assert_eq!((ids.len(), new), (1, 1));
    assert_eq!(store.counts().await.unwrap().queued, 1);
}

#[tokio::test]
async fn all_are_put_into_the_queue_or_none_and_the_key_is_free_then() {
    let (_directory, store) = opened().await;
    let owner = OwnerId::new();
    let known = queued(owner);
    enqueue(&store, std::slice::from_ref(&known)).await;
    let mut last = known.clone();
    last.spec = Bytes::from_static(b"another");
    let refused = store
        .enqueue(&[queued(owner), last], request("key", 1))
        .await
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("putting rollouts into the queue in "),
        "{refused}"
    );
    assert_eq!(ids(&store, &ListFilter::default()).await, [known.id]);
    assert_eq!(count(&store, "SELECT count(*) FROM specs").await, 1);
    assert_eq!(
        store.enqueue(&[], request("key", 2)).await.unwrap(),
        Enqueued::New
    );
}

#[tokio::test]
async fn a_spec_is_stored_once_for_a_group_and_for_as_long_as_one_of_it_is_in_the_queue() {
    let (_directory, store) = opened().await;
    let owner = OwnerId::new();
    let large = Bytes::from(vec![b'x'; 1_000_000]);
    let group: Vec<QueuedRollout> = (0..100)
        .map(|sample| QueuedRollout {
            sample,
            spec: large.clone(),
            ..queued(owner)
        })
        .collect();
    let alike = QueuedRollout {
        spec: Bytes::from(large.to_vec()),
        ..queued(owner)
    };
    enqueue(&store, &group).await;
    enqueue(&store, std::slice::from_ref(&alike)).await;
    let specs = async || count(&store, "SELECT count(*) FROM specs").await;
    assert_eq!(specs().await, 1);
    for one in &group {
        assert!(store.dequeue(one.id).await.unwrap());
    }
    assert!(!store.dequeue(group[0].id).await.unwrap(), "it has left already");
    assert_eq!(specs().await, 1);
    let adopted = store.adopt(OwnerId::new(), &[owner]).await.unwrap();
    assert_eq!(adopted[0].queued.spec, large);
    assert!(store.dequeue(alike.id).await.unwrap());
    assert_eq!(specs().await, 0);
}

#[tokio::test]
async fn what_the_dead_leave_is_taken_over_and_what_they_ran_can_begin_again() {
    let (_directory, store) = opened().await;
    let [dead, alive, heir] = [(); 3].map(|()| OwnerId::new());
    let ran = QueuedRollout {
        group: Some(GroupId::new()),
        sample: 7,
        priority: 9,
        ..queued(dead)
    };
    let waits = queued(dead);
    let done = queued(dead);
    let other = queued(alive);
    enqueue(&store, &[ran.clone(), waits.clone(), done.clone(), other.clone()]).await;
    for one in [&ran, &done, &other] {
        store.started(&started(one)).await.unwrap();
    }
    store.finished(&samples::outcome(done.id)).await.unwrap();
    let mut builder = TrajectoryBuilder::new();
    for call in samples::conversation() {
        store.call(ran.id, &builder.push(call)).await.unwrap();
    }

    let adopted = store.adopt(heir, &[dead, OwnerId::new()]).await.unwrap();
    let told: Vec<_> = adopted
        .iter()
        .map(|one| (one.queued.clone(), one.interrupted, one.interruptions))
        .collect();
    let of_heir = |queued: &QueuedRollout| QueuedRollout {
        owner: heir,
        ..queued.clone()
    };
    assert_eq!(told, [(of_heir(&ran), true, 1), (of_heir(&waits), false, 0)]);
    assert_eq!(state(&store, ran.id).await, RolloutState::Interrupted);
    assert_eq!(state(&store, other.id).await, RolloutState::Running);
    assert_eq!(store.adopt(OwnerId::new(), &[dead]).await.unwrap(), []);
    assert_eq!(
        store.adopt(heir, &[heir]).await.unwrap(),
        [],
        "nobody inherits from himself"
    );

    // The heir dies too, before it began.
    let second = OwnerId::new();
    let adopted = store.adopt(second, &[heir]).await.unwrap();
    assert_eq!((adopted[0].interrupted, adopted[0].interruptions), (true, 1));

    let again = adopted[0].queued.clone();
    store.started(&started(&again)).await.unwrap();
    assert_eq!(
        store.calls(again.id).await.unwrap(),
        [],
        "what was left of it is gone"
    );
    let row = store.get(again.id).await.unwrap().row;
    assert_eq!(
        (row.state, row.owner, row.priority),
        (RolloutState::Running, second, 9)
    );
    let adopted = store.adopt(OwnerId::new(), &[second]).await.unwrap();
    assert_eq!((adopted[0].interrupted, adopted[0].interruptions), (true, 2));
    store.finished(&samples::outcome(again.id)).await.unwrap();
    assert_eq!(state(&store, again.id).await, RolloutState::Finished);
}

#[tokio::test]
async fn an_interrupted_rollout_that_is_not_in_the_queue_stays_as_it_is() {
    let (_directory, store) = opened().await;
    let one = queued(OwnerId::new());
    enqueue(&store, std::slice::from_ref(&one)).await;
    store.started(&started(&one)).await.unwrap();
    store.adopt(OwnerId::new(), &[one.owner]).await.unwrap();
    assert!(store.dequeue(one.id).await.unwrap());
    assert!(store.started(&started(&one)).await.is_err());
    assert_eq!(state(&store, one.id).await, RolloutState::Interrupted);
    assert!(!store.dequeue(one.id).await.unwrap());
}

#[tokio::test]
async fn of_processes_that_take_over_at_once_each_rollout_goes_to_one() {
    let (directory, store) = opened().await;
    let dead = OwnerId::new();
    let left: Vec<QueuedRollout> = (0..200).map(|_| queued(dead)).collect();
    enqueue(&store, &left).await;
    let heirs: Vec<_> = (0..4)
        .map(|_| {
            child::command(&child::this_program(), &format!("adopt {dead}"), directory.path())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut taken = Vec::new();
    for heir in heirs {
        let output = heir.wait_with_output().unwrap();
        assert!(output.status.success());
        taken.extend(child::said(&output.stdout));
    }
    taken.sort();
    let left: Vec<String> = left.iter().map(|one| one.id.to_string()).collect();
    assert_eq!(taken, left);
}

#[tokio::test]
async fn events_come_back_as_they_were_given_and_go_with_what_began_again() {
    let (_directory, store) = opened().await;
    let one = queued(OwnerId::new());
    enqueue(&store, std::slice::from_ref(&one)).await;
    let lines = Bytes::from("{\"sequence\":0}\n".repeat(10_000));
    let early = store.save_events(one.id, lines.clone()).await.unwrap_err();
    assert!(matches!(early, StoreError::NotFound { .. }), "{early}");
    store.started(&started(&one)).await.unwrap();
    assert_eq!(store.events(one.id).await.unwrap(), None);
    for given in [Bytes::from_static(b"{}\n"), lines, Bytes::new()] {
        store.save_events(one.id, given.clone()).await.unwrap();
        assert_eq!(
            store.events(one.id).await.unwrap().as_deref(),
            Some(given.as_ref())
        );
    }
    let mut again = one.clone();
    again.owner = OwnerId::new();
    store.adopt(again.owner, &[one.owner]).await.unwrap();
    store.started(&started(&again)).await.unwrap();
    assert_eq!(store.events(one.id).await.unwrap(), None);
    let unknown = store.events(RolloutId::new()).await.unwrap_err();
    assert!(matches!(unknown, StoreError::NotFound { .. }), "{unknown}");
}
