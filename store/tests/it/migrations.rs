//! Databases of earlier versions.

use crate::samples;
use dressage_store::{ListFilter, RolloutState, Store, StoreError};
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::Recorder;
use serde_json::json;
use sqlx::migrate::Migrator;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use std::path::Path;

/// A database as the first version made it, with a rollout in each state.
async fn of_version_1(directory: &Path) -> [RolloutId; 3] {
    let first = directory.join("migrations");
    std::fs::create_dir(&first).unwrap();
    let name = "0001_rollouts.sql";
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    std::fs::copy(ours.join(name), first.join(name)).unwrap();
    let mut raw = SqliteConnectOptions::new()
        .filename(directory.join("dressage.db"))
        .create_if_missing(true)
        .connect()
        .await
        .unwrap();
    let migrator = Migrator::new(first).await.unwrap();
    migrator.run(&mut raw).await.unwrap();
    let mut made = Vec::new();
    for (age, state) in ["finished", "interrupted", "running"].into_iter().enumerate() {
        let mut start = samples::start();
        start.started_unix_ms += age as u64;
        let number: i64 = sqlx::query_scalar(
            "INSERT INTO rollouts (id, owner, state, title, sample, agent, agent_version, backend, endpoint, model, \
             started_unix_ms) VALUES (?, ?, ?, 'title', 0, 'opencode', '1', 'local', 'demo', 'm', ?) RETURNING number",
        )
        .bind(start.id.to_string())
        .bind(start.owner.to_string())
        .bind(state)
        .bind(start.started_unix_ms as i64)
        .fetch_one(&mut raw)
        .await
        .unwrap();
        let mut document = serde_json::to_value(&start).unwrap();
        document.as_object_mut().unwrap().remove("group");
        let plain = [&[0], document.to_string().as_bytes()].concat();
        sqlx::query("INSERT INTO documents (rollout, kind, body) VALUES (?, 'start', ?)")
            .bind(number)
            .bind(plain)
            .execute(&mut raw)
            .await
            .unwrap();
        made.push(start.id);
    }
    raw.close().await.unwrap();
    made.try_into().unwrap()
}

#[tokio::test]
async fn a_database_of_the_first_version_keeps_its_rows_and_takes_new_ones() {
    let directory = tempfile::tempdir().unwrap();
    let [finished, interrupted, running] = of_version_1(directory.path()).await;
    let error = Store::open_read_only(directory.path()).await.unwrap_err();
    assert!(
        matches!(error, StoreError::OlderSchema { found: 1, .. }),
        "{error}"
    );

    for _ in 0..2 {
        let store = Store::open(directory.path()).await.unwrap();
        store.verify().await.unwrap();
        let rows = store.list(&ListFilter::default()).await.unwrap();
        let shown: Vec<_> = rows.iter().map(|row| (row.id, row.state)).collect();
        let expected = [
            (running, RolloutState::Running),
            (interrupted, RolloutState::Interrupted),
            (finished, RolloutState::Finished),
        ];
        assert_eq!(shown, expected);
        let titled = ListFilter {
            search: Some("TITLE".into()),
            ..ListFilter::default()
        };
        assert_eq!(
            store.list(&titled).await.unwrap(),
            rows,
            "what was there is found by its text"
        );
        for row in &rows {
            assert_eq!((row.group, row.priority), (None, 0));
            assert_eq!(row.started_unix_ms, Some(row.created_unix_ms));
            let start = store.get(row.id).await.unwrap().start.unwrap();
            assert_eq!((start.id, start.group), (row.id, None));
        }
        store.close().await;
    }
    let store = Store::open(directory.path()).await.unwrap();
    store.finished(&samples::outcome(running)).await.unwrap();
    store.started(&samples::start()).await.unwrap();
    assert_eq!(store.list(&ListFilter::default()).await.unwrap().len(), 4);
    let json = serde_json::to_value(store.get(finished).await.unwrap().row).unwrap();
    assert_eq!(json["group"], json!(null));
}
