//! Files that are not what they should be, disks that are full, directories that cannot be written.

use crate::round_trip::store_running;
use crate::{child, samples};
use dressage_store::{ListFilter, Problem, RolloutState, Store, StoreError};
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::{Recorder, Remains};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::Uid;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Runs a statement behind the store's back.
async fn meddle(path: &Path, statement: &'static str) {
    let mut raw = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .connect()
        .await
        .unwrap();
    raw.execute(statement).await.unwrap();
    raw.close().await.unwrap();
}

async fn one_finished(directory: &Path) -> RolloutId {
    let store = Store::open(directory).await.unwrap();
    let (id, _, _) = store_running(&store, samples::conversation()).await;
    store.finished(&samples::outcome(id)).await.unwrap();
    store.close().await;
    id
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dressage.db");
    let content = "not a database, but somebody's notes\n".repeat(200);
    fs::write(&path, &content).unwrap();
    let error = Store::open(directory.path()).await.unwrap_err();
    assert_eq!(error.problem(), Some(Problem::NotADatabase), "{error}");
    let expected = format!(
        "opening the database in {} failed: the file is not a database",
        path.display()
    );
    assert_eq!(error.to_string(), expected);
    assert!(
        error
            .hint()
            .unwrap()
            .starts_with(&format!("move {} aside", path.display()))
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), content);
}

#[tokio::test]
async fn another_programs_database_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dressage.db");
    meddle(&path, "CREATE TABLE theirs (a)").await;
    for opened in [
        Store::open(directory.path()).await,
        Store::open_read_only(directory.path()).await,
    ] {
        let error = opened.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{} is a database of another program", path.display())
        );
    }
    let mut raw = SqliteConnectOptions::new()
        .filename(&path)
        .connect()
        .await
        .unwrap();
    let tables: Vec<String> = sqlx::query_scalar("SELECT name FROM sqlite_schema")
        .fetch_all(&mut raw)
        .await
        .unwrap();
    assert_eq!(tables, ["theirs"]);
}

#[tokio::test]
async fn a_database_of_a_later_version_is_refused_by_its_number() {
    let directory = tempfile::tempdir().unwrap();
    one_finished(directory.path()).await;
    let path = directory.path().join("dressage.db");
    meddle(
        &path,
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'later', true, x'00', 0)",
    )
    .await;
    for opened in [
        Store::open(directory.path()).await,
        Store::open_read_only(directory.path()).await,
    ] {
        let error = opened.unwrap_err();
        assert!(
            matches!(
                error,
                StoreError::NewerSchema {
                    found: 9999,
                    known: 3,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("later"));
    }
}

#[tokio::test]
async fn a_database_of_an_earlier_version_cannot_be_read_before_it_is_brought_up_to_date() {
    let directory = tempfile::tempdir().unwrap();
    one_finished(directory.path()).await;
    meddle(
        &directory.path().join("dressage.db"),
        "DELETE FROM _sqlx_migrations",
    )
    .await;
    let error = Store::open_read_only(directory.path()).await.unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::OlderSchema {
                found: 0,
                known: 3,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn damage_is_found_and_what_is_whole_can_still_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let whole = one_finished(directory.path()).await;
    let store = Store::open(directory.path()).await.unwrap();
    let text: String = (0..200_000_u32).map(|word| format!("{word} ")).collect();
    let (damaged, _, _) =
        store_running(&store, vec![samples::call(0, &[samples::message("user", &text)])]).await;
    store.close().await;
    let path = directory.path().join("dressage.db");
    let mut bytes = fs::read(&path).unwrap();
    // In the last pages there is nothing but that message.
    let at = bytes.len() - 20_000;
    bytes[at..at + 8_192].fill(0x5a);
    fs::write(&path, &bytes).unwrap();

    let store = Store::open(directory.path()).await.unwrap();
    let error = store.verify().await.unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    assert!(store.request_body(damaged, 0).await.is_err());
    assert_eq!(
        store.request_body(whole, 0).await.unwrap(),
        samples::conversation()[0].request
    );
    assert_eq!(store.get(whole).await.unwrap().row.state, RolloutState::Finished);
}

#[tokio::test]
async fn a_database_that_was_cut_short_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    one_finished(directory.path()).await;
    let path = directory.path().join("dressage.db");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = match Store::open(directory.path()).await {
        Err(error) => error,
        Ok(store) => store.verify().await.unwrap_err(),
    };
    assert!(error.to_string().contains("damaged"), "{error}");
}

#[tokio::test]
async fn no_database_is_told_from_an_empty_one_when_reading() {
    let directory = tempfile::tempdir().unwrap();
    let error = Store::open_read_only(directory.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Missing { .. }), "{error}");
    assert!(error.hint().unwrap().contains("--data-dir"));
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        0,
        "looking makes nothing"
    );
}

#[tokio::test]
async fn a_data_directory_that_is_a_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Store::open(&file.join("data")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("creating {} failed", file.join("data").display())
    );
}

#[tokio::test]
async fn an_outcome_that_the_database_refuses_is_kept_aside_and_taken_in_later() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (id, _, _) = store_running(&store, samples::conversation()).await;
    let outcome = samples::outcome(id);
    meddle(
        store.path(),
        "CREATE TRIGGER refuse BEFORE UPDATE ON rollouts BEGIN SELECT raise(ABORT, 'no'); END",
    )
    .await;
    let error = store.finished(&outcome).await.unwrap_err();
    let path = directory.path().join("unsaved").join(format!("{id}.json"));
    let expected = format!(
        "the outcome of rollout {id} was kept in {}, since the database did not take it",
        path.display()
    );
    assert_eq!(error.source.to_string(), expected);
    assert_eq!(error.remains, Remains::Aside);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(store.get(id).await.unwrap().row.state, RolloutState::Running);
    store.close().await;

    // Not taken in as long as it is refused, nor lost.
    Store::open(directory.path()).await.unwrap().close().await;
    assert!(path.exists());
    meddle(&directory.path().join("dressage.db"), "DROP TRIGGER refuse").await;
    let store = Store::open(directory.path()).await.unwrap();
    assert_eq!(store.get(id).await.unwrap().outcome, Some(outcome));
    assert!(!path.exists());
}

#[tokio::test]
async fn what_is_written_to_a_database_that_was_removed_is_not_taken_for_kept() {
    for replaced in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let store = Store::open(&data).await.unwrap();
        let (id, _, _) = store_running(&store, samples::conversation()).await;
        fs::remove_dir_all(&data).unwrap();
        if replaced {
            Store::open(&data).await.unwrap().close().await;
        }
        let path = data.join("dressage.db");
        let gone = format!("{} was removed or replaced", path.display());
        let error = store.finished(&samples::outcome(id)).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the outcome of rollout {id} could not be stored: {gone}")
        );
        assert_eq!(error.remains, Remains::Nothing);
        assert!(error.hint.unwrap().contains("in place"), "replaced: {replaced}");
        assert_eq!(path.exists(), replaced, "nothing is made in its place");
        assert_eq!(fs::read_dir(&data).is_ok(), replaced);
        let start = store.started(&samples::start()).await.unwrap_err();
        assert!(start.to_string().ends_with(&gone), "{start}");
        store.close().await;
    }
}

#[tokio::test]
async fn an_outcome_kept_aside_that_is_garbage_does_not_keep_the_database_from_opening() {
    let directory = tempfile::tempdir().unwrap();
    let id = one_finished(directory.path()).await;
    let garbage = directory.path().join("unsaved").join("x.json");
    fs::write(&garbage, "{").unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    assert_eq!(store.get(id).await.unwrap().row.state, RolloutState::Finished);
    assert!(garbage.exists(), "somebody may want to look at it");
}

/// Checks what a store that could not grow says and keeps.
async fn check_filled(directory: &Path, said: &[String], problem: &str) -> String {
    let [first, second, large, small, batch, outcome] = said else {
        panic!("{said:?}");
    };
    let path = directory.join("dressage.db");
    for (operation, refused) in [
        ("storing a call", large),
        ("storing a call", small),
        ("putting rollouts into the queue", batch),
    ] {
        let expected = format!("refused {operation} in {} failed: {problem} | ", path.display());
        assert!(refused.starts_with(&expected), "{refused}");
        assert!(refused.len() > expected.len(), "a hint is given");
    }
    let store = Store::open(directory).await.unwrap();
    store.verify().await.unwrap();
    let first: RolloutId = first.strip_prefix("finished ").unwrap().parse().unwrap();
    let second: RolloutId = second.strip_prefix("started ").unwrap().parse().unwrap();
    assert_eq!(
        store.get(first).await.unwrap().outcome.unwrap().totals,
        samples::outcome(first).totals
    );
    assert_eq!(
        store.request_body(first, 2).await.unwrap(),
        samples::conversation()[2].request
    );
    let kept = store.get(second).await.unwrap();
    assert_eq!(kept.row.state, RolloutState::Finished);
    assert_eq!(kept.outcome.unwrap().files["noise"].len(), 600_000);
    outcome.clone()
}

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        umount2(self.0, MntFlags::MNT_DETACH).unwrap();
    }
}

#[tokio::test]
async fn no_space_left_is_a_clear_error_and_loses_no_finished_rollout() {
    let directory = tempfile::tempdir().unwrap();
    let size = |size, flags| mount(Some("tmpfs"), directory.path(), Some("tmpfs"), flags, Some(size));
    if let Err(error) = size("size=10m", MsFlags::empty()) {
        eprintln!(
            "a small file system cannot be mounted here ({error}); the test with a limit on file sizes remains"
        );
        return;
    }
    let _mounted = Mounted(directory.path());
    let filling = child::command(&child::this_program(), "fill the disk", directory.path())
        .output()
        .unwrap();
    let said = child::said(&filling.stdout);
    let full = Store::open_read_only(directory.path()).await.unwrap();
    full.verify().await.unwrap();
    assert_eq!(
        full.list(&ListFilter::default()).await.unwrap().len(),
        2,
        "what is there can be read"
    );
    full.close().await;
    size("size=32m", MsFlags::MS_REMOUNT).unwrap();
    let outcome = check_filled(directory.path(), &said, "no space is left").await;
    assert!(outcome.contains("was kept in"), "{outcome}");
}

#[tokio::test]
async fn a_limit_on_file_sizes_is_a_clear_error_and_the_outcome_is_kept_aside() {
    let directory = tempfile::tempdir().unwrap();
    let program = child::this_program();
    let role = child::command(&program, "fill the disk", directory.path());
    // SQLite's log may not grow over 4 MB, in blocks of 512 bytes; the signal that says so is ignored.
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 8192; exec \"$@\"", "sh"])
        .arg(&program)
        .args(role.get_args());
    limited.envs(role.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = child::said(&limited.output().unwrap().stdout);
    let outcome = check_filled(directory.path(), &said, "reading or writing the file failed").await;
    assert!(outcome.contains("was kept in"), "{outcome}");
}

/// Runs a role as a user that may not write in the directory, and gives what it says.
fn as_another_user(role: &str, directory: &Path) -> Vec<String> {
    if !Uid::effective().is_root() {
        let output = child::command(&child::this_program(), role, directory)
            .output()
            .unwrap();
        return child::said(&output.stdout);
    }
    // Where that user can reach it.
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("it");
    fs::copy(child::this_program(), &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let mut command = child::command(&program, role, directory);
    let output = command.uid(65_534).gid(65_534).current_dir("/").output().unwrap();
    child::said(&output.stdout)
}

#[tokio::test]
async fn a_read_only_data_directory_is_a_clear_error_for_writing_and_none_for_reading() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    one_finished(&path).await;
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        let mode = if entry.path().is_dir() { 0o555 } else { 0o444 };
        fs::set_permissions(entry.path(), Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(&path, Permissions::from_mode(0o555)).unwrap();

    let lock = path.join("dressage.db.lock");
    let hint = format!(
        "make {} writable, or choose another place with --data-dir",
        path.display()
    );
    assert_eq!(
        as_another_user("open", &path),
        [format!("opening {} failed | {hint}", lock.display())]
    );
    assert_eq!(as_another_user("read", &path), ["1 rollouts"]);
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn an_outcome_is_taken_in_once_and_lists_stay_as_they_are_when_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let id = one_finished(directory.path()).await;
    for _ in 0..3 {
        let store = Store::open(directory.path()).await.unwrap();
        let rows = store.list(&ListFilter::default()).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [id]);
        store.close().await;
    }
}
