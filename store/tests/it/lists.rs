//! Lists, finding by the beginning of an id, interrupted rollouts.

use crate::samples;
use dressage_store::{GroupFilter, ListFilter, ListOrder, ListSort, RolloutState, Store};
use dressage_wire::fault::{Ended, FaultOwner};
use dressage_wire::ids::{GroupId, OwnerId, RolloutId};
use dressage_wire::rollout::{Recorder, RolloutStart};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor};
use std::time::{Duration, Instant};

async fn opened() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    (directory, store)
}

async fn started(store: &Store, change: impl FnOnce(&mut RolloutStart)) -> RolloutStart {
    let mut start = samples::start();
    change(&mut start);
    store.started(&start).await.unwrap();
    start
}

async fn ids(store: &Store, filter: ListFilter) -> Vec<RolloutId> {
    store
        .list(&filter)
        .await
        .unwrap()
        .into_iter()
        .map(|row| row.id)
        .collect()
}

#[tokio::test]
async fn a_list_is_latest_first_filtered_and_in_pages() {
    let (_directory, store) = opened().await;
    let old = started(&store, |start| start.started_unix_ms = 1_000).await.id;
    let middle = started(&store, |start| {
        start.started_unix_ms = 2_000;
        start.task.id = Some("other".into());
        start.endpoint = "vllm".into();
        start.task.agent.name = "codex".into();
    });
    let middle = middle.await.id;
    let latest = started(&store, |start| start.started_unix_ms = 2_000).await.id;
    store.finished(&samples::outcome(old)).await.unwrap();
    let mut good = samples::outcome(latest);
    good.fault = None;
    good.ended = Ended::Completed;
    good.reward.as_mut().unwrap().value = Some(1.0);
    store.finished(&good).await.unwrap();

    let all = ListFilter::default;
    assert_eq!(ids(&store, all()).await, [latest, middle, old]);
    let word = |word: &str| Some(word.to_owned());
    let cases = [
        (
            ListFilter {
                states: vec![RolloutState::Running],
                ..all()
            },
            vec![middle],
        ),
        (
            ListFilter {
                task_id: word("other"),
                ..all()
            },
            vec![middle],
        ),
        (
            ListFilter {
                task_id: word("' OR 1=1 --"),
                ..all()
            },
            vec![],
        ),
        (
            ListFilter {
                agent: word("codex"),
                ..all()
            },
            vec![middle],
        ),
        (
            ListFilter {
                endpoint: word("demo"),
                ..all()
            },
            vec![latest, old],
        ),
        (
            ListFilter {
                ended: Some(Ended::Completed),
                ..all()
            },
            vec![latest],
        ),
        (
            ListFilter {
                fault_owner: Some(FaultOwner::Agent),
                ..all()
            },
            vec![old],
        ),
        (
            ListFilter {
                reward_at_least: Some(0.5),
                ..all()
            },
            vec![latest],
        ),
        (
            ListFilter {
                reward_at_most: Some(0.5),
                ..all()
            },
            vec![old],
        ),
        (
            ListFilter {
                since_unix_ms: Some(2_000),
                ..all()
            },
            vec![latest, middle],
        ),
        (
            ListFilter {
                limit: Some(1),
                ..all()
            },
            vec![latest],
        ),
        (
            ListFilter {
                limit: Some(1),
                after: Some(latest),
                ..all()
            },
            vec![middle],
        ),
        (
            ListFilter {
                after: Some(middle),
                ..all()
            },
            vec![old],
        ),
        (
            ListFilter {
                limit: Some(0),
                ..all()
            },
            vec![],
        ),
    ];
    for (filter, expected) in cases {
        assert_eq!(ids(&store, filter.clone()).await, expected, "{filter:?}");
    }
    let gone = ListFilter {
        after: Some(RolloutId::new()),
        ..all()
    };
    assert_eq!(
        ids(&store, gone).await,
        [latest, middle, old],
        "a page can begin after one that is gone"
    );
}

#[tokio::test]
async fn a_list_is_sorted_and_what_lacks_a_value_comes_last() {
    let (_directory, store) = opened().await;
    let mut made = Vec::new();
    for value in [Some(0.5), None, Some(1.0), Some(0.0)] {
        let id = started(&store, |_| {}).await.id;
        let mut outcome = samples::outcome(id);
        outcome.reward.as_mut().unwrap().value = value;
        outcome.wall_ms = value.map_or(9, |value| (value * 100.0) as u64);
        store.finished(&outcome).await.unwrap();
        made.push(id);
    }
    let [half, none, one, zero] = made[..] else {
        panic!("{made:?}")
    };
    let sorted = |sort, order, skip| ListFilter {
        sort,
        order,
        skip,
        limit: Some(3),
        ..ListFilter::default()
    };
    use ListOrder::{Ascending, Descending};
    for (filter, expected) in [
        (sorted(ListSort::Reward, Descending, 0), vec![one, half, zero]),
        (sorted(ListSort::Reward, Descending, 3), vec![none]),
        (sorted(ListSort::Reward, Ascending, 0), vec![zero, half, one]),
        (sorted(ListSort::Reward, Ascending, 2), vec![one, none]),
        (sorted(ListSort::WallMs, Descending, 0), vec![one, half, none]),
        // What is equal: the latest first.
        (sorted(ListSort::Calls, Ascending, 0), vec![zero, one, none]),
    ] {
        assert_eq!(ids(&store, filter.clone()).await, expected, "{filter:?}");
    }
    let filter = ListFilter {
        reward_at_least: Some(0.1),
        ..sorted(ListSort::Reward, Ascending, 0)
    };
    assert_eq!(ids(&store, filter).await, [half, one]);
}

#[tokio::test]
async fn groups_are_summed_up_the_latest_first() {
    let (_directory, store) = opened().await;
    let (first, second) = (GroupId::new(), GroupId::new());
    for (sample, value) in [(0, Some(1.0)), (1, Some(0.0)), (2, None)] {
        let start = started(&store, |start| {
            (start.group, start.sample) = (Some(first), sample)
        });
        let mut outcome = samples::outcome(start.await.id);
        outcome.fault = outcome.fault.filter(|_| value.is_none());
        outcome.reward.as_mut().unwrap().value = value;
        outcome.wall_ms = 100;
        store.finished(&outcome).await.unwrap();
    }
    started(&store, |start| (start.group, start.sample) = (Some(first), 3)).await;
    started(&store, |start| {
        start.group = Some(second);
        start.task.id = Some("other".into());
    })
    .await;
    started(&store, |_| {}).await;
    let groups = store.groups(&GroupFilter::default()).await.unwrap();
    assert_eq!(
        groups.iter().map(|group| group.id).collect::<Vec<_>>(),
        [second, first]
    );
    let group = &groups[1];
    assert_eq!(
        (
            group.rollouts,
            group.finished,
            group.running,
            group.rewarded,
            group.failed
        ),
        (4, 3, 1, 2, 1)
    );
    assert_eq!(
        (
            group.reward_mean,
            group.reward_best,
            group.reward_worst,
            group.reward_deviation,
            group.wall_mean_ms
        ),
        (Some(0.5), Some(1.0), Some(0.0), Some(0.5), Some(100.0))
    );
    assert_eq!(
        (group.title.as_str(), groups[0].reward_mean),
        ("Write a binary search.", None)
    );
    for (filter, expected) in [
        (
            GroupFilter {
                limit: Some(1),
                ..GroupFilter::default()
            },
            vec![second],
        ),
        (
            GroupFilter {
                rollouts_at_least: 2,
                ..GroupFilter::default()
            },
            vec![first],
        ),
        (
            GroupFilter {
                after: Some(second),
                ..GroupFilter::default()
            },
            vec![first],
        ),
        (
            GroupFilter {
                task_id: Some("other".into()),
                ..GroupFilter::default()
            },
            vec![second],
        ),
        (
            GroupFilter {
                search: Some("OTHE".into()),
                ..GroupFilter::default()
            },
            vec![second],
        ),
        (
            GroupFilter {
                search: Some("nowhere".into()),
                ..GroupFilter::default()
            },
            vec![],
        ),
    ] {
        let found = store.groups(&filter).await.unwrap();
        assert_eq!(
            found.iter().map(|group| group.id).collect::<Vec<_>>(),
            expected,
            "{filter:?}"
        );
    }
}

#[tokio::test]
async fn a_search_finds_text_wherever_it_stands_and_as_it_is_meant() {
    let (_directory, store) = opened().await;
    let titled = async |title: &str, task: Option<&str>| {
        let made = started(&store, |start| {
            start.task.instruction = title.into();
            start.task.id = task.map(str::to_owned);
        });
        made.await.id
    };
    let plain = titled("Write binary_search.py", Some("search-1")).await;
    let odd = titled("100% \"quoted\" über_alles NEAR(x) AND OR NOT *", None).await;
    let other = titled("Fix the build", Some("BUILD-7")).await;
    let search = async |text: &str| {
        let filter = ListFilter {
            search: Some(text.into()),
            ..ListFilter::default()
        };
        ids(&store, filter).await
    };
    for (text, expected) in [
        ("binary_search", vec![plain]),
        ("BINARY_SEARCH.PY", vec![plain]),
        ("y_s", vec![plain]),
        ("ySs", vec![]),
        ("y%s", vec![]),
        ("search-1", vec![plain]),
        ("1", vec![odd, plain]),
        ("x)", vec![odd]),
        ("0% \"q", vec![odd]),
        ("\"quoted\"", vec![odd]),
        ("über_", vec![odd]),
        (" AND OR NOT *", vec![odd]),
        ("NEAR(", vec![odd]),
        ("build", vec![other]),
        ("build the", vec![]),
        ("the build", vec![other]),
        ("nowhere", vec![]),
        ("", vec![other, odd, plain]),
        ("Write binary_search.py and much more that is not there", vec![]),
    ] {
        assert_eq!(search(text).await, expected, "{text}");
    }
    let filter = ListFilter {
        search: Some("build".into()),
        task_id: Some("search-1".into()),
        ..ListFilter::default()
    };
    assert_eq!(ids(&store, filter).await, []);
}

#[tokio::test]
async fn a_rollout_is_found_by_the_beginning_of_its_id() {
    let (_directory, store) = opened().await;
    let with_id = |id: &str| {
        let id = id.parse().unwrap();
        move |start: &mut RolloutStart| start.id = id
    };
    let first = started(&store, with_id("01890000-0000-7000-8000-00000000000a"))
        .await
        .id;
    let second = started(&store, with_id("01890000-0000-7000-8000-00000000000f"))
        .await
        .id;
    let other = started(&store, with_id("ffff0000-0000-7000-8000-000000000000"))
        .await
        .id;
    assert_eq!(store.find("f").await.unwrap(), other);
    assert_eq!(
        store.find("FFFF0000-0").await.unwrap(),
        other,
        "capitals are read"
    );
    assert_eq!(
        store.find("01890000-0000-7000-8000-00000000000f").await.unwrap(),
        second
    );
    assert_eq!(
        store.find("0189000000007000800000000000000a").await.unwrap(),
        first,
        "without its dashes"
    );
    let ambiguous = store.find("0189").await.unwrap_err();
    assert_eq!(
        ambiguous.to_string(),
        format!("0189 is the beginning of {first} and 1 more")
    );
    assert_eq!(ambiguous.hint().as_deref(), Some("give more of the id"));
    for unknown in ["02", "%", "_", "f'", "not an id"] {
        let error = store.find(unknown).await.unwrap_err();
        assert_eq!(error.to_string(), format!("there is no rollout {unknown}"));
    }
}

#[tokio::test]
async fn what_a_dead_owner_ran_is_interrupted_and_nothing_else() {
    let (_directory, store) = opened().await;
    let dead = OwnerId::new();
    let of_the_dead = |start: &mut RolloutStart| start.owner = dead;
    let lost = started(&store, of_the_dead).await.id;
    let done = started(&store, of_the_dead).await.id;
    store.finished(&samples::outcome(done)).await.unwrap();
    let alive = started(&store, |_| {}).await;
    let mut owners = store.running_owners().await.unwrap();
    owners.sort();
    let mut expected = vec![dead, alive.owner];
    expected.sort();
    assert_eq!(owners, expected);

    assert_eq!(
        store.mark_interrupted(&[dead, OwnerId::new()]).await.unwrap(),
        [lost]
    );
    assert_eq!(store.mark_interrupted(&[dead]).await.unwrap(), []);
    let state = async |id| store.get(id).await.unwrap().row.state;
    assert_eq!(state(lost).await, RolloutState::Interrupted);
    assert_eq!(state(done).await, RolloutState::Finished);
    assert_eq!(state(alive.id).await, RolloutState::Running);
}

#[tokio::test]
async fn of_a_task_that_was_run_more_than_once_every_rollout_is_known_to_be() {
    let (_directory, store) = opened().await;
    let group = OwnerId::new();
    let first = started(&store, |start| start.owner = group).await.id;
    let second = started(&store, |start| (start.owner, start.sample) = (group, 1))
        .await
        .id;
    let other_task = started(&store, |start| {
        start.owner = group;
        start.task.id = Some("another".into());
    });
    let other_task = other_task.await.id;
    let other_process = started(&store, |_| {}).await.id;
    let rows = store.list(&ListFilter::default()).await.unwrap();
    let all: Vec<_> = rows.iter().map(|row| row.id).collect();
    for id in [first, second, other_task, other_process] {
        assert!(all.contains(&id));
    }
    assert_eq!(store.repeated(&rows).await.unwrap(), [first, second].into());
    let only_first: Vec<_> = rows.into_iter().filter(|row| row.id == first).collect();
    assert_eq!(store.repeated(&only_first).await.unwrap(), [first].into());
}

/// 10,000 rollouts of 8 a group and 500 tasks, and 500 that wait; gives the latest of those that do not.
async fn many(store: &Store) -> RolloutId {
    let template = started(store, |start| start.task.instruction = "x".repeat(100_000)).await;
    let mut raw = SqliteConnectOptions::new()
        .filename(store.path())
        .connect()
        .await
        .unwrap();
    raw.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) \
         INSERT INTO rollouts (id, owner, state, task_id, title, sample, agent, agent_version, backend, endpoint, model, \
             started_unix_ms, created_unix_ms, reward, ended, fault_owner, group_id) \
         SELECT printf('018f0000-0000-7000-8000-%012x', i), owner, iif(i % 2000, 'finished', 'interrupted'), \
             'task ' || (i % 500), title || i, i % 8, agent, agent_version, backend, iif(i % 3000, endpoint, 'rare'), model, \
             started_unix_ms - i, created_unix_ms - i, i / 10000.0, iif(i % 2500, 'completed', 'timeout'), \
             iif(i % 2500, NULL, 'agent'), printf('018f0000-0000-7000-8000-%012x', i / 8) FROM rollouts, n; \
         INSERT INTO specs (hash, body) VALUES (x'00', x'00'); \
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) \
         INSERT INTO queue (id, owner, sample, title, agent, backend, endpoint, model, priority, created_unix_ms, spec) \
         SELECT printf('018e0000-0000-7000-8000-%012x', i), owner, 0, title, agent, backend, endpoint, model, 0, 0, 1 \
             FROM rollouts, n WHERE rollouts.state = 'running'",
    )
    .await
    .unwrap();
    raw.close().await.unwrap();
    template.id
}

#[tokio::test]
async fn a_list_of_10_000_rollouts_is_fast() {
    let (_directory, store) = opened().await;
    let latest = many(&store).await;
    let began = Instant::now();
    let page = ids(
        &store,
        ListFilter {
            limit: Some(50),
            ..ListFilter::default()
        },
    );
    let page = page.await;
    let page_took = began.elapsed();
    assert_eq!((page.len(), page[0]), (50, latest));
    let began = Instant::now();
    let all = store.list(&ListFilter::default()).await.unwrap();
    let all_took = began.elapsed();
    assert_eq!(all.len(), 10_500);
    // What few, and what nearly all of them have: through the index, and by comparing.
    for (text, page, expected) in [("TASK 77", 50, 20), ("task", 50, 50), ("task", 20_000, 10_000)] {
        let filter = ListFilter {
            search: Some(text.into()),
            limit: Some(page),
            ..ListFilter::default()
        };
        assert_eq!(store.list(&filter).await.unwrap().len(), expected, "{text}");
    }
    let began = Instant::now();
    let groups = store
        .groups(&GroupFilter {
            limit: Some(50),
            ..GroupFilter::default()
        })
        .await
        .unwrap();
    let groups_took = began.elapsed();
    assert_eq!((groups.len(), groups[1].rollouts), (50, 8));
    assert!(
        groups_took < Duration::from_secs(1),
        "groups took {groups_took:?}"
    );
    let good = ListFilter {
        reward_at_least: Some(0.9999),
        ..ListFilter::default()
    };
    assert_eq!(store.list(&good).await.unwrap().len(), 1);
    // Far above what it takes (without optimisation, on a busy machine), and below what reading documents would.
    assert!(page_took < Duration::from_secs(1), "a page took {page_took:?}");
    assert!(all_took < Duration::from_secs(10), "all took {all_took:?}");
}

#[tokio::test]
#[ignore = "measures, and is worth reading where it is compiled with optimisation"]
async fn pages_of_10_000_rollouts_by_each_filter() {
    let (_directory, store) = opened().await;
    many(&store).await;
    let all = ListFilter::default;
    let text = |text: &str| Some(text.to_owned());
    let middle = "018f0000-0000-7000-8000-000000001388".parse().unwrap();
    let group = "018f0000-0000-7000-8000-000000000111".parse().unwrap();
    #[rustfmt::skip]
    let filters = [
        ("none", all()),
        ("after the 5,000th", ListFilter { after: Some(middle), ..all() }),
        ("state finished", ListFilter { states: vec![RolloutState::Finished], ..all() }),
        ("state running", ListFilter { states: vec![RolloutState::Running], ..all() }),
        ("state queued", ListFilter { states: vec![RolloutState::Queued], ..all() }),
        ("state running, queued, interrupted", ListFilter {
            states: vec![RolloutState::Running, RolloutState::Queued, RolloutState::Interrupted], ..all()
        }),
        ("task", ListFilter { task_id: text("task 7"), ..all() }),
        ("group", ListFilter { group: Some(group), ..all() }),
        ("agent, of all", ListFilter { agent: text("opencode"), ..all() }),
        ("agent, of none", ListFilter { agent: text("codex"), ..all() }),
        ("endpoint, of three", ListFilter { endpoint: text("rare"), ..all() }),
        ("backend, of none", ListFilter { backend: text("e2b"), ..all() }),
        ("model, of none", ListFilter { model: text("other"), ..all() }),
        ("ended timeout, of four", ListFilter { ended: Some(Ended::Timeout), ..all() }),
        ("fault of the agent, of four", ListFilter { fault_owner: Some(FaultOwner::Agent), ..all() }),
        ("reward at least 2, of none", ListFilter { reward_at_least: Some(2.0), ..all() }),
        ("reward at least 0.5", ListFilter { reward_at_least: Some(0.5), ..all() }),
        ("since, of none", ListFilter { since_unix_ms: Some(u64::MAX), ..all() }),
        ("search, of none", ListFilter { search: text("needle"), ..all() }),
        ("search, of some", ListFilter { search: text("TASK 77"), ..all() }),
        ("search, of nearly all", ListFilter { search: text("task"), ..all() }),
        ("search for two characters, of none", ListFilter { search: text("zz"), ..all() }),
        ("several, of none", ListFilter {
            states: vec![RolloutState::Finished],
            agent: text("opencode"),
            endpoint: text("rare"),
            search: text("needle"),
            reward_at_most: Some(0.9),
            ..all()
        }),
    ];
    for (name, filter) in filters {
        let filter = ListFilter {
            limit: Some(50),
            ..filter
        };
        let mut took = Vec::new();
        let mut found = 0;
        for _ in 0..101 {
            let began = Instant::now();
            found = store.list(&filter).await.unwrap().len();
            took.push(began.elapsed());
        }
        took.sort();
        println!("{name}: {found} rows, p50 {:?}, p90 {:?}", took[50], took[90]);
    }
    let mut took = Vec::new();
    for _ in 0..101 {
        let began = Instant::now();
        store.counts().await.unwrap();
        took.push(began.elapsed());
    }
    took.sort();
    let batch: Vec<_> = (0..1_000).map(|_| crate::queue::queued(OwnerId::new())).collect();
    let began = Instant::now();
    store.enqueue(&batch, None).await.unwrap();
    println!("1,000 into the queue: {:?}", began.elapsed());
    println!("counts: p50 {:?}, p90 {:?}", took[50], took[90]);
}
